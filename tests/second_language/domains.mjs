// The byte strings that keep the purposes of hashes, signatures and ciphertexts apart.

import { createHash, createHmac } from 'node:crypto';

export const sha256 = (...parts) => createHash('sha256').update(Buffer.concat(parts)).digest();
const hmac = (secret, data) => createHmac('sha256', secret).update(data).digest();

/** "odp/v1/<name>" in ASCII, and `parts` behind it. */
export const domain = (name, ...parts) => Buffer.concat([Buffer.from(`odp/v1/${name}`, 'ascii'), ...parts]);

function bigEndian(round) {
  const data = Buffer.alloc(4);
  data.writeUInt32BE(round);
  return data;
}

/** HPKE info of a contribution. */
export const contributionInfo = (taskId, round, modelId, policyHash) =>
  domain('contribution', taskId, bigEndian(round), modelId, policyHash);

/** What the aggregator's enclave signs of the key of a round. */
export const roundKey = (taskId, round, modelId, policyHash, hpkeKey) =>
  domain('round-key', taskId, bigEndian(round), modelId, policyHash, hpkeKey);

/** One per device and round. */
export const contributionId = (secret, taskId, round) =>
  hmac(secret, domain('contribution-id', taskId, bigEndian(round)));

/** One per device and task. */
export const pseudonym = (secret, taskId) => hmac(secret, domain('pseudonym', taskId));
