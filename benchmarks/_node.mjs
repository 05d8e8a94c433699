// Verifies one signed request with npm @interledger/http-signature-utils, for as long as it is asked to.
// It reads lines of {"seconds": S} and answers each with {"seconds": of one verification, the best of short rounds}.

import { createInterface } from 'node:readline'
import { createRequire } from 'node:module'
import { join } from 'node:path'

const given = JSON.parse(process.argv[2])
const require = createRequire(join(given.installed, 'package.json'))
const { validateSignature } = require('@interledger/http-signature-utils')

// The same as `best` in verify.py.
const best = async (seconds) => {
  let shortest = Infinity
  const end = performance.now() + seconds * 1000
  for (let start; (start = performance.now()) < end; ) {
    for (let count = 0; count < 50; count++) {
      if (!(await validateSignature(given.jwk, given.request))) throw new Error('it did not verify')
    }
    shortest = Math.min(shortest, (performance.now() - start) / 50)
  }
  return shortest / 1000
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify({ seconds: await best(JSON.parse(line).seconds) }))
}
