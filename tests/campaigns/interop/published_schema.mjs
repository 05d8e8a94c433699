// Validates responses by the OpenAPI document in npm @interledger/open-payments, and prints the complaints as JSON.
// It is started by published_schema.py with one argument: a JSON object with the folder in which the package is
// installed, and the responses: path, method, status and body of each.

import { createRequire } from 'node:module'
import { join } from 'node:path'

const given = JSON.parse(process.argv[2])
const require = createRequire(join(given.installed, 'package.json'))
const { getResourceServerOpenAPI } = require('@interledger/open-payments')

const openApi = await getResourceServerOpenAPI()
const complaints = given.responses.map(({ path, method, status, body }) => {
  try {
    openApi.createResponseValidator({ path, method })({ status, body })
    return null
  } catch (error) {
    return error.errors ?? error.message
  }
})
console.log(JSON.stringify(complaints))
