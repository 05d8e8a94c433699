// Pays incoming payments with a STREAM sender from npm. test_real_senders.py starts it with the folder of the sender, the
// name of the sender below, and the URL for packets. Each line of standard input is a payment to make. When the payment
// has ended, its outcome is printed as one line.

import { createRequire } from 'node:module'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

const [installed, sender, url] = process.argv.slice(2)
const require = createRequire(join(installed, 'package.json'))
const ilp = require('ilp-packet')

const ILDCP = 'peer.config'
const CENTS = 2 // the scale of the account that the packets arrive by

const CLOSED = ['the payment is completed', 'the payment has expired']

// An account with a connector, as the senders need it. The connector posts packets to our service under `token`, and
// returns the replies. For an account with another `scale` it converts amounts and rounds down. It refuses packets of
// more than `most` units of the sender. With `closed` it writes this error code into the replies of closed payments.
class Plugin {
  constructor({ token, scale = CENTS, most, closed }) {
    Object.assign(this, { token, scale, most, closed })
    this.packets = 0 // posted packets, without requests for the account's asset
    this.arrived = 0n // in cents, in fulfilled packets
  }
  async connect() {}
  async disconnect() {}
  isConnected() {
    return true
  }
  registerDataHandler() {}
  deregisterDataHandler() {}

  async sendData(packet) {
    const prepare = ilp.deserializeIlpPrepare(packet)
    if (prepare.destination === ILDCP) return this.scale === CENTS ? this.post(packet) : this.configuration()
    const amount = BigInt(prepare.amount)
    if (this.most !== undefined && amount > BigInt(this.most)) return this.tooLarge(amount)
    const converted = amount / 10n ** BigInt(this.scale - CENTS)
    const reply = await this.post(ilp.serializeIlpPrepare({ ...prepare, amount: converted.toString() }))
    this.packets += 1
    if (reply[0] === ilp.Type.TYPE_ILP_FULFILL) this.arrived += converted
    return this.closed === undefined ? reply : this.coded(reply)
  }

  coded(reply) {
    if (reply[0] !== ilp.Type.TYPE_ILP_REJECT) return reply
    const reject = ilp.deserializeIlpReject(reply)
    return CLOSED.includes(reject.message) ? ilp.serializeIlpReject({ ...reject, code: this.closed }) : reply
  }

  async post(packet) {
    const response = await fetch(url, {
      method: 'POST',
      headers: { 'content-type': 'application/octet-stream', authorization: `Bearer ${this.token}` },
      body: packet
    })
    if (response.status !== 200) throw new Error(`HTTP status ${response.status}`)
    return Buffer.from(await response.arrayBuffer())
  }

  tooLarge(amount) {
    const data = Buffer.alloc(16)
    data.writeBigUInt64BE(amount)
    data.writeBigUInt64BE(BigInt(this.most), 8)
    return ilp.serializeIlpReject({ code: 'F08', triggeredBy: 'test.connector', message: '', data })
  }

  // The connector's answer to a request for the account's asset (Interledger RFC 31).
  configuration() {
    const { serializeIldcpResponse } = require('ilp-protocol-ildcp')
    return serializeIldcpResponse({ clientAddress: 'test.connector.sender', assetCode: 'USD', assetScale: this.scale })
  }
}

// The calls by which each sender sends `amount` minor units of its account, or delivers `deliver` cents. Each returns the
// sent amount in those units, and the delivered amount in cents.
const senders = {
  '@interledger/pay 0.2.2': async (plugin, { address, secret, amount, deliver }) => {
    const { quote } = require('@interledger/pay')
    const { Int } = require('@interledger/pay/dist/src/utils')
    const target = deliver
      ? { amountToDeliver: Int.from(deliver) }
      : { amountToSend: Number(amount) / 10 ** plugin.scale } // in major units
    const { pay } = await quote({ plugin, destinationAddress: address, sharedSecret: secret, ...target })
    const { error, amountSent, amountDelivered } = await pay()
    return { error, sent: amountSent.shiftedBy(plugin.scale), delivered: amountDelivered.shiftedBy(CENTS) }
  },

  // As in its own documentation: it asks the receiver for the destination's asset.
  '@interledger/pay 0.4.0-alpha.9': async (plugin, payment) => {
    const { setupPayment } = require('@interledger/pay')
    const { address, secret } = payment
    const destination = await setupPayment({ plugin, destinationAddress: address, sharedSecret: secret })
    return payTo(destination, plugin, payment)
  },

  // As in Rafiki: the destination's asset comes from the incoming payment's resource.
  '@interledger/pay 0.4.0-alpha.9 as in Rafiki': async (plugin, payment) => {
    const { Counter } = require('@interledger/pay')
    const destination = {
      destinationAddress: payment.address,
      sharedSecret: payment.secret,
      destinationAsset: { code: 'USD', scale: CENTS },
      requestCounter: Counter.from(0)
    }
    return payTo(destination, plugin, payment)
  },

  // The same, in a copy of the package with the failure rules of 0.4.0-alpha.12.
  '@interledger/pay 0.4.0-alpha.9 as in the newest Rafiki': (plugin, payment) =>
    senders['@interledger/pay 0.4.0-alpha.9 as in Rafiki'](plugin, payment),

  'ilp-protocol-stream 2.7.1': async (plugin, { address, secret, amount, streams = 1 }) => {
    const { createConnection, DataAndMoneyStream } = require('ilp-protocol-stream')
    // It sets `closed`, which is a getter of streams since Node.js 18.
    Object.defineProperty(DataAndMoneyStream.prototype, 'closed', { value: false, writable: true })
    const connection = await createConnection({ plugin, destinationAccount: address, sharedSecret: secret })
    const send = () => connection.createStream().sendTotal(amount).catch(({ message }) => message)
    const [error] = (await Promise.all(Array.from({ length: streams }, send))).filter(Boolean)
    await connection.end()
    return { error, sent: connection.totalSent, delivered: connection.totalDelivered }
  }
}

const payTo = async (destination, plugin, { amount, deliver }) => {
  const { startQuote, pay, closeConnection } = require('@interledger/pay')
  const target = deliver ? { amountToDeliver: BigInt(deliver) } : { amountToSend: BigInt(amount) }
  const sourceAsset = { code: 'USD', scale: plugin.scale }
  const quote = await startQuote({ plugin, destination, sourceAsset, ...target })
  const { error, amountSent, amountDelivered } = await pay({ plugin, destination, quote })
  await closeConnection(plugin, destination)
  return { error, sent: amountSent, delivered: amountDelivered }
}

const OVERDUE_MS = 30_000

const outcomeOf = async (payment) => {
  const plugin = new Plugin(payment)
  const request = { ...payment, secret: Buffer.from(payment.secret, 'base64url') }
  let timer
  const overdue = new Promise((_, reject) => (timer = setTimeout(reject, OVERDUE_MS, 'has not ended')))
  const outcome = await Promise.race([senders[sender](plugin, request), overdue]).catch((error) => ({
    error: error.message ?? error
  }))
  clearTimeout(timer)
  const { error = null, sent = 0, delivered = 0 } = outcome
  const { packets, arrived } = plugin
  return { error, sent: Number(sent), delivered: Number(delivered), packets, arrived: Number(arrived) }
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await outcomeOf(JSON.parse(line))))
}
process.exit(0) // a sender may leave timers behind
