// Signs and verifies with two npm packages: one job a line on standard input, one answer a line on standard output.
// It is started by signature_peers.py with one argument: a JSON object with the folder in which the packages are
// installed, and the private keys as PEM by their algorithms.

import { constants, createPublicKey, sign } from 'node:crypto'
import { createInterface } from 'node:readline'
import { createRequire } from 'node:module'
import { join } from 'node:path'

const given = JSON.parse(process.argv[2])
const require = createRequire(join(given.installed, 'package.json'))
const { createSigner, createVerifier, httpbis } = require('http-message-signatures')
const { createHeaders, validateSignature } = require('@interledger/http-signature-utils')

// The fields of a message in lower case, each a list of its lines, as Node's `headersDistinct` has them.
const distinct = (headers) => {
  const lines = new Map()
  for (const [name, value] of headers) {
    lines.set(name.toLowerCase(), [...(lines.get(name.toLowerCase()) ?? []), value])
  }
  return Object.fromEntries(lines)
}

// The same as Node's `headers` has them: in one.
const joined = (headers) =>
  Object.fromEntries(Object.entries(distinct(headers)).map(([name, lines]) => [name, lines.join(', ')]))

// What createSigner makes of rsa-pss-sha512 has a salt of another length than RFC 9421 §3.3.1 asks for. `asItComes` wants
// that one; otherwise a signer is given that is right, as the package lets its users do.
const signer = ({ alg, id, asItComes }) => {
  const key = given.keys[alg]
  if (alg !== 'rsa-pss-sha512' || asItComes) return createSigner(key, alg, id)
  const padding = constants.RSA_PKCS1_PSS_PADDING
  return { id, alg, sign: async (data) => sign('sha512', data, { key, padding, saltLength: 64 }) }
}

const peers = {
  'http-message-signatures': {
    // The value that it signs over; one a line, as it may find several.
    value: ({ message, component }) => {
      const headers = distinct(message.headers)
      const [[, values]] = httpbis.createSignatureBase({ fields: [component] }, { ...message, headers })
      return values.join('\n')
    },
    sign: async ({ message, key, label, components, parameters }) => {
      const times = ['created', 'expires']
      const values = parameters.map(([name, value]) => [name, times.includes(name) ? new Date(value * 1000) : value])
      const config = {
        key: signer(key),
        name: label,
        fields: components,
        params: parameters.map(([name]) => name),
        paramValues: Object.fromEntries(values)
      }
      const { headers } = await httpbis.signMessage(config, { ...message, headers: distinct(message.headers) })
      return Object.entries(headers).flatMap(([name, lines]) => [lines].flat().map((line) => [name, line]))
    },
    verify: async ({ message, key: { id, alg } }) => {
      const verifier = { id, algs: [alg], verify: createVerifier(createPublicKey(given.keys[alg]), alg) }
      const keyLookup = async ({ keyid }) => (keyid === id ? verifier : null)
      const verified = await httpbis.verifyMessage({ keyLookup }, { ...message, headers: distinct(message.headers) })
      return verified === true
    }
  },
  '@interledger/http-signature-utils': {
    sign: async ({ message, key: { id, alg } }) => {
      const request = { ...message, headers: Object.fromEntries(message.headers) }
      const added = await createHeaders({ request, privateKey: given.keys[alg], keyId: id })
      return [...message.headers, ...Object.entries(added)]
    },
    verify: ({ message, jwk }) => validateSignature(jwk, { ...message, headers: joined(message.headers) })
  }
}

// The time is an argument: the clock stands still where the job says.
const clocks = (now) =>
  class extends RealDate {
    constructor(...parts) {
      super(...(parts.length ? parts : [now]))
    }
    static now() {
      return now
    }
  }
const RealDate = Date

for await (const line of createInterface({ input: process.stdin })) {
  const { peer, action, now, ...job } = JSON.parse(line)
  globalThis.Date = clocks(now * 1000)
  let answer
  try {
    answer = { answer: await peers[peer][action](job) }
  } catch (error) {
    answer = { error: `${error?.stack ?? error}` }
  }
  console.log(JSON.stringify(answer))
}
