// Signs and verifies with two npm packages. Each line of standard input is a job, and each line of standard output its
// answer. signature_peers.py starts it with one argument: a JSON object with the folder of the packages, and the private
// keys as PEM by algorithm.

import { constants, createPublicKey, sign } from 'node:crypto'
import { createInterface } from 'node:readline'
import { createRequire } from 'node:module'
import { join } from 'node:path'

const given = JSON.parse(process.argv[2])
const require = createRequire(join(given.installed, 'package.json'))
const { createSigner, createVerifier, httpbis } = require('http-message-signatures')
const { createHeaders, validateSignature } = require('@interledger/http-signature-utils')

// The lines of each field by its name in lower case, as in Node's `headersDistinct`.
const distinct = (headers) => {
  const lines = new Map()
  for (const [name, value] of headers) {
    lines.set(name.toLowerCase(), [...(lines.get(name.toLowerCase()) ?? []), value])
  }
  return Object.fromEntries(lines)
}

// The joined lines of each field, as in Node's `headers`.
const joined = (headers) =>
  Object.fromEntries(Object.entries(distinct(headers)).map(([name, lines]) => [name, lines.join(', ')]))

// For rsa-pss-sha512, createSigner uses another salt length than RFC 9421 §3.3.1 requires. `asItComes` chooses that
// signer. Otherwise this is a correct one, which the package accepts as well.
const signer = ({ alg, id, asItComes }) => {
  const key = given.keys[alg]
  if (alg !== 'rsa-pss-sha512' || asItComes) return createSigner(key, alg, id)
  const padding = constants.RSA_PKCS1_PSS_PADDING
  return { id, alg, sign: async (data) => sign('sha512', data, { key, padding, saltLength: 64 }) }
}

const peers = {
  'http-message-signatures': {
    // The values that it signs, one a line, because it may find several.
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

// Stops the clock at the time in the job.
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
