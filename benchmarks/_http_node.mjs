// A minimal service on node:http, for `http`: the same three requests, with payments in memory and nothing durable.
import { createRequire } from "node:module";
import { createServer, Agent, request } from "node:http";
import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";

const require = createRequire(`${process.argv[2]}/`);
const { validateSignature } = require("@interledger/http-signature-utils");
const agent = new Agent({ keepAlive: true, maxSockets: 64 });
const payments = new Map();
let settings;

function introspect(token) {
  const body = JSON.stringify({ access_token: token, proof: "httpsig", resource_server: "bank" });
  const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(body) };
  return new Promise((resolve, reject) => {
    request({ port: settings.asked, path: "/introspect", method: "POST", agent, headers }, async (response) => {
      resolve(JSON.parse(await textOf(response)));
    })
      .on("error", reject)
      .end(body);
  });
}

async function textOf(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

function send(response, status, document) {
  const body = JSON.stringify(document);
  response.writeHead(status, { "content-type": "application/json", "content-length": Buffer.byteLength(body) });
  response.end(body);
}

function create(terms) {
  const now = new Date().toISOString();
  const id = `${settings.baseUrl}/incoming-payments/${randomUUID()}`;
  const receivedAmount = { value: "0", assetCode: "USD", assetScale: 2 };
  const methods = [{ type: "ilp", ilpAddress: `g.bank.${randomUUID()}`, sharedSecret: randomUUID() }];
  const payment = { id, ...terms, completed: false, receivedAmount, createdAt: now, updatedAt: now, methods };
  payments.set(id, payment);
  return payment;
}

async function answer(incoming, response) {
  const { method, url: path, headers } = incoming;
  const url = settings.baseUrl + path;
  const body = method === "POST" ? await textOf(incoming) : undefined;
  if (!headers.authorization) {
    return send(response, 200, { receivedAmount: payments.get(url).receivedAmount, authServer: settings.authServer });
  }
  const info = await introspect(headers.authorization.slice("GNAP ".length));
  const action = method === "POST" ? "create" : "read";
  const allowed = info.active && info.access.some((right) => right.actions.includes(action));
  if (!allowed || !(await validateSignature(info.key.jwk, { method, url, headers, body }))) {
    return send(response, 401, { error: { code: "invalid" } });
  }
  return method === "POST" ? send(response, 201, create(JSON.parse(body))) : send(response, 200, payments.get(url));
}

for await (const line of createInterface({ input: process.stdin })) {
  settings = JSON.parse(line);
  for (const id of settings.ids) {
    const payment = create({ walletAddress: settings.walletAddress });
    payments.set(`${settings.baseUrl}/incoming-payments/${id}`, payment);
  }
  createServer((incoming, response) => {
    answer(incoming, response).catch((error) => send(response, 500, { error: { code: String(error) } }));
  }).listen(settings.port, "127.0.0.1", () => console.log(JSON.stringify({ pid: process.pid })));
}
process.exit(0);
