// Verifies one signed request with npm @interledger/http-signature-utils, for as long as it is asked to.
// It reads lines of JSON: first {"jwk", "request"}, and then {"seconds": S}, each of which it answers with {"seconds": of one
// verification, over a turn of so many}.

import { createInterface } from 'node:readline'
import { createRequire } from 'node:module'
import { join } from 'node:path'

const require = createRequire(join(process.argv[2], 'package.json'))
const { validateSignature } = require('@interledger/http-signature-utils')

let given

// The same as `mean` in verify.py.
const mean = async (seconds) => {
  let done = 0
  let now = performance.now()
  const start = now
  while (now < start + seconds * 1000) {
    for (let count = 0; count < 50; count++) {
      if (!(await validateSignature(given.jwk, given.request))) throw new Error('it did not verify')
    }
    done += 50
    now = performance.now()
  }
  return (now - start) / done / 1000
}

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line)
  if (asked.jwk) given = asked
  console.log(JSON.stringify(asked.jwk ? { ready: true } : { seconds: await mean(asked.seconds) }))
}
