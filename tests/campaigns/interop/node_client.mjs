// Calls a service by npm @interledger/open-payments, and prints the results as one JSON object.
// It is started by test_node_client.py with one argument: a JSON object that names, among others, the folder in
// which the client is installed.

import { createServer } from 'node:http'
import { createRequire } from 'node:module'
import { once } from 'node:events'
import { join } from 'node:path'

const given = JSON.parse(process.argv[2])
const require = createRequire(join(given.installed, 'package.json'))
const { createAuthenticatedClient, createUnauthenticatedClient } = require('@interledger/open-payments')

// The client validates responses against the published OpenAPI by default.
const client = (privateKey) =>
  createAuthenticatedClient({
    walletAddressUrl: given.client,
    privateKey,
    keyId: given.keyId,
    useHttp: true
  })

// Returns the answer of a call, or the members of its error.
const outcome = async (call) => {
  try {
    return { answer: await call }
  } catch ({ name, status, code, description, details, validationErrors }) {
    return { error: { name, status, code, description, details, validationErrors } }
  }
}

const server = { url: given.baseUrl, accessToken: given.token }
const mine = await client(given.privateKey)
const forger = await client(given.forgedKey)
const unauthenticated = await createUnauthenticatedClient({ useHttp: true })

const created = await outcome(mine.incomingPayment.create(server, given.wanted))
const url = created.answer?.id
const results = {
  created,
  least: await outcome(mine.incomingPayment.create(server, { walletAddress: given.wanted.walletAddress })),
  read: await outcome(mine.incomingPayment.get({ url, accessToken: given.token })),
  readPublicly: await outcome(unauthenticated.incomingPayment.get({ url })),
  wrongAsset: await outcome(mine.incomingPayment.create(server, given.wrongAsset)),
  missingRight: await outcome(
    mine.incomingPayment.create({ ...server, accessToken: given.readOnlyToken }, given.wanted)
  ),
  unknownToken: await outcome(mine.incomingPayment.get({ url, accessToken: 'UNKNOWN' })),
  unknownPayment: await outcome(
    mine.incomingPayment.get({ url: given.unknownPayment, accessToken: given.token })
  ),
  forgedRead: await outcome(forger.incomingPayment.get({ url, accessToken: given.token })),
  forgedCreate: await outcome(forger.incomingPayment.create(server, given.wanted))
}

// Two payments exist. Lists are read from page to page, and then one payment is completed twice.
const { walletAddress } = given.wanted
const list = (accessToken, pagination) =>
  outcome(mine.incomingPayment.list({ ...server, accessToken, walletAddress }, pagination))
const complete = () => outcome(mine.incomingPayment.complete({ url, accessToken: given.manageToken }))
results.list = await list(given.manageToken)
results.firstPage = await list(given.manageToken, { first: 1 })
const { endCursor } = results.firstPage.answer?.pagination ?? {}
results.nextPage = await list(given.manageToken, { first: 1, cursor: endCursor })
results.emptyPage = await list(given.manageToken, { cursor: results.nextPage.answer?.pagination.endCursor })
results.previousPage = await list(given.manageToken, {
  last: 1,
  cursor: results.nextPage.answer?.pagination.startCursor
})
results.foreignList = await list(given.readOnlyToken)
results.foreignCursor = await list(given.manageToken, { first: 1, cursor: given.unknownPayment })
results.bothDirections = await list(given.manageToken, { first: 1, last: 1, cursor: endCursor })
results.completed = await complete()
results.completedAgain = await complete()
results.listCompleted = await list(given.manageToken)
results.completedWithoutRight = await outcome(mine.incomingPayment.complete({ url, accessToken: given.readOnlyToken }))

// Checks that the validation is on: the client must refuse a response that the OpenAPI forbids.
const wrong = createServer((_, response) => {
  response.setHeader('content-type', 'application/json')
  response.end('{"receivedAmount": 5}')
}).listen(0, '127.0.0.1')
await once(wrong, 'listening')
const wrongUrl = `http://127.0.0.1:${wrong.address().port}/incoming-payments/1`
results.wrongService = await outcome(mine.incomingPayment.get({ url: wrongUrl, accessToken: given.token }))
results.wrongPublicly = await outcome(unauthenticated.incomingPayment.get({ url: wrongUrl }))
wrong.closeAllConnections()
wrong.close()

console.log(JSON.stringify(results))
