// Receives packets with npm @interledger/stream-receiver (createReply and accept), from bytes to bytes.
// It reads lines of JSON. From the first line, {"payments", "packets", "amount"}, it makes the packets. For each later line,
// {"turn": true}, it receives all packets once, and answers {"seconds": the time of one packet}.

import { createHash, createHmac, randomBytes } from 'node:crypto'
import { createInterface } from 'node:readline'
import { createRequire } from 'node:module'
import { join } from 'node:path'

const require = createRequire(join(process.argv[2], 'package.json'))
const { StreamServer } = require('@interledger/stream-receiver')
const { deserializeIlpPrepare, serializeIlpFulfill, serializeIlpPrepare } = require('ilp-packet')
const { Packet, StreamMoneyFrame } = require('ilp-protocol-stream/dist/src/packet')

const hmac = (key, data) => createHmac('sha256', key).update(data).digest()
const server = new StreamServer({ serverSecret: randomBytes(32), serverAddress: 'test.bank' })

const make = async ({ payments, packets, amount }) => {
  const made = []
  const senders = Array.from({ length: payments }, (_, number) => {
    const paymentTag = `00000000-0000-7000-8000-${String(number).padStart(12, '0')}`
    const { ilpAddress, sharedSecret } = server.generateCredentials({ paymentTag, asset: { code: 'USD', scale: 2 } })
    const encryption = hmac(sharedSecret, 'ilp_stream_encryption')
    return { ilpAddress, encryption, fulfillment: hmac(sharedSecret, 'ilp_stream_fulfillment') }
  })
  for (let number = 0; number < packets; number++) {
    const sender = senders[number % payments]
    const sequence = Math.floor(number / payments) + 1
    const packet = new Packet(sequence, 12, amount, [new StreamMoneyFrame(1, 1)])
    const data = await packet.serializeAndEncrypt(sender.encryption)
    const executionCondition = createHash('sha256').update(hmac(sender.fulfillment, data)).digest()
    const expiresAt = new Date(Date.now() + 3_600_000)
    const destination = sender.ilpAddress
    made.push(serializeIlpPrepare({ amount: String(amount), expiresAt, destination, executionCondition, data }))
  }
  return made
}

const receive = (packet) => {
  const money = server.createReply(deserializeIlpPrepare(packet))
  return serializeIlpFulfill(money.accept())
}

let packets = []
for await (const line of createInterface({ input: process.stdin })) {
  const input = JSON.parse(line)
  if (input.packets) {
    packets = await make(input)
    console.log(JSON.stringify({ made: packets.length }))
    continue
  }
  const start = performance.now()
  for (const packet of packets) {
    if (receive(packet)[0] !== 13) throw new Error('a packet was not fulfilled')
  }
  console.log(JSON.stringify({ seconds: (performance.now() - start) / 1000 / packets.length }))
}
