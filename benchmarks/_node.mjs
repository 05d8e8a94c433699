// Verifies one signed request with npm @interledger/http-signature-utils.
// It reads lines of JSON. The first line is {"jwk", "request"}. Each later line is {"seconds": S}: the program verifies the
// request for S seconds, and answers {"seconds": the time of one verification}.

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
      if (!(await validateSignature(given.jwk, given.request))) throw new Error('the signature was refused')
    }
    done += 50
    now = performance.now()
  }
  return (now - start) / done / 1000
}

for await (const line of createInterface({ input: process.stdin })) {
  const input = JSON.parse(line)
  if (input.jwk) given = input
  console.log(JSON.stringify(input.jwk ? { ready: true } : { seconds: await mean(input.seconds) }))
}
