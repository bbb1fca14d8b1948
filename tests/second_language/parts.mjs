// The parts of the device that need no network and no library, for comparison with another implementation.
//
//   node parts.mjs < requests.json > answers.json
//
// Both are lists; bytes are hexadecimal. docs/protocol.md says what each part computes.

import { readFileSync } from 'node:fs';
import { contributionId, contributionInfo, pseudonym } from './domains.mjs';
import { keysOf, payloadOf, termsOf } from './dpam.mjs';
import { Refused, verifyEvidence } from './evidence.mjs';
import { open, seal } from './hpke.mjs';

const bytes = (value) => Buffer.from(value, 'hex');
const hex = (data) => data.toString('hex');

const PARTS = {
  seal: ({ key, plaintext, info }) => hex(seal(bytes(key), bytes(plaintext), bytes(info))),
  open({ key, sealed, info }) {
    try {
      return hex(open(bytes(key), bytes(sealed), bytes(info)));
    } catch {
      return null;
    }
  },
  names: ({ secret, task, round, model, policy }) => ({
    info: hex(contributionInfo(bytes(task), round, bytes(model), bytes(policy))),
    id: hex(contributionId(bytes(secret), bytes(task), round)),
    pseudonym: hex(pseudonym(bytes(secret), bytes(task))),
  }),
  payload({ definition, round, seed, items, values, keys, rows, ridges }) {
    const terms = termsOf(definition);
    const device = { seed: BigInt(seed), items, values };
    const given = new Map(keys.map((key, i) => [key, rows[i]]));
    return {
      keys: keysOf(terms, device.seed, round, items),
      payload: hex(payloadOf({ terms, round, ...device, rows: given, ridges })),
    };
  },
  evidence({ token, policy, event_log: log, nonce, role, values, now }) {
    try {
      const given = { token, policy: bytes(policy), event_log: bytes(log), nonce: bytes(nonce), role, values, now };
      const found = verifyEvidence(given);
      return { reason: null, keys: [hex(found.hpkeKey), hex(found.signingKey)], expires: found.expires };
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      return { reason: error.reason };
    }
  },
};

const requests = JSON.parse(readFileSync(0, 'utf8'));
process.stdout.write(JSON.stringify(requests.map((request) => PARTS[request.part](request))));
