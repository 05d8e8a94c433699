// Writes and reads packets with npm ilp-packet and ilp-protocol-stream, for test_packets.py. Its argument is the folder of
// the packages. Standard input is {"secret", "nonce", "prepares", "fulfills", "rejects", "streams", "sealed"}, in which each
// packet has its fields and our bytes. It prints the bytes that it writes from the fields, and the fields that it reads.

import { createCipheriv, createHash } from 'node:crypto'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { readFileSync } from 'node:fs'

const require = createRequire(join(process.argv[2], 'package.json'))
const ilp = require('ilp-packet')
const stream = require('ilp-protocol-stream/dist/src/packet')
const crypto = require('ilp-protocol-stream/dist/src/crypto')
const Long = require('long')

const given = JSON.parse(readFileSync(0, 'utf8'))
const bytes = (hex) => Buffer.from(hex, 'hex')
const long = (text) => Long.fromString(text, true)

// Fields of packets, with bytes as hex and integers as text.
const prepare = {
  write: (p) =>
    ilp.serializeIlpPrepare({
      amount: p.amount,
      expiresAt: new Date(p.expiresAt),
      executionCondition: bytes(p.condition),
      destination: p.destination,
      data: bytes(p.data)
    }),
  read: (packet) => {
    const p = ilp.deserializeIlpPrepare(packet)
    return {
      amount: p.amount,
      expiresAt: p.expiresAt.toISOString(),
      condition: p.executionCondition.toString('hex'),
      destination: p.destination,
      data: p.data.toString('hex')
    }
  }
}
const fulfill = {
  write: (p) => ilp.serializeIlpFulfill({ fulfillment: bytes(p.fulfillment), data: bytes(p.data) }),
  read: (packet) => {
    const p = ilp.deserializeIlpFulfill(packet)
    return { fulfillment: p.fulfillment.toString('hex'), data: p.data.toString('hex') }
  }
}
const reject = {
  write: (p) => ilp.serializeIlpReject({ ...p, data: bytes(p.data) }),
  read: (packet) => {
    const p = ilp.deserializeIlpReject(packet)
    return { ...p, data: p.data.toString('hex') }
  }
}

// A frame is [name, fields...], each field {"number"}, {"integer"}, {"text"} or {"bytes"}.
const field = (value) => {
  if ('integer' in value) return long(value.integer)
  if ('bytes' in value) return bytes(value.bytes)
  return value.number ?? value.text
}
const shown = (value) => {
  if (Long.isLong(value)) return { integer: value.toString() }
  if (Buffer.isBuffer(value)) return { bytes: value.toString('hex') }
  return typeof value === 'number' ? { number: value } : { text: value }
}
const frame = ([name, ...fields]) => new stream[`${name}Frame`](...fields.map(field))
const streams = {
  write: (p) =>
    new stream.Packet(long(p.sequence), p.kind, long(p.amount), p.frames.map(frame))._serialize(),
  read: (packet) => describe(stream.Packet._deserializeUnencrypted(packet))
}
const describe = (p) => ({
  kind: p.ilpPacketType,
  sequence: p.sequence.toString(),
  amount: p.prepareAmount.toString(),
  frames: p.frames.map(({ type, name, ...fields }) => [name, ...Object.values(fields).map(shown)])
})

const both = ({ write, read }, packets) =>
  packets.map(({ fields, packet }) => ({ written: write(fields).toString('hex'), read: read(bytes(packet)) }))

const secret = bytes(given.secret)
const key = await crypto.generatePskEncryptionKey(secret)
const fulfillmentKey = await crypto.generateFulfillmentKey(secret)
const seal = (nonce, plaintext) => {
  const cipher = createCipheriv('aes-256-gcm', key, nonce)
  const ciphertext = Buffer.concat([cipher.update(plaintext), cipher.final()])
  return Buffer.concat([nonce, cipher.getAuthTag(), ciphertext])
}
const sealed = []
for (const { fields, packet } of given.sealed) {
  const data = await new stream.Packet(
    long(fields.sequence),
    fields.kind,
    long(fields.amount),
    fields.frames.map(frame)
  ).serializeAndEncrypt(key)
  const fulfillment = await crypto.generateFulfillment(fulfillmentKey, data)
  sealed.push({
    written: data.toString('hex'), // with a nonce that the package chooses
    read: describe(await stream.Packet.decryptAndDeserialize(key, bytes(packet))),
    resealed: seal(bytes(packet).subarray(0, 12), streams.write(fields)).toString('hex'),
    fulfillment: fulfillment.toString('hex'),
    condition: createHash('sha256').update(fulfillment).digest('hex')
  })
}

console.log(
  JSON.stringify({
    prepares: both(prepare, given.prepares),
    fulfills: both(fulfill, given.fulfills),
    rejects: both(reject, given.rejects),
    streams: both(streams, given.streams),
    sealed
  })
)
