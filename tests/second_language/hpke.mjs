// HPKE in base mode for one message: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM, no additional data.
// Source: RFC 9180, sections 4, 5.1 and 7.

import { createCipheriv, createDecipheriv, createHmac, createPrivateKey, createPublicKey } from 'node:crypto';
import { diffieHellman, generateKeyPairSync } from 'node:crypto';

export const OVERHEAD = 48; // 32 bytes of encapsulated key, 16 of authentication tag
const TAG = 16;
const VERSION = Buffer.from('HPKE-v1');
const KEM = Buffer.from('KEM\x00\x20', 'latin1');
const SUITE = Buffer.from('HPKE\x00\x20\x00\x01\x00\x01', 'latin1');
const EMPTY = Buffer.alloc(0);
// DER around raw X25519 keys (RFC 8410).
const SPKI = Buffer.from('302a300506032b656e032100', 'hex');
const PKCS8 = Buffer.from('302e020100300506032b656e04220420', 'hex');

const hmac = (key, ...parts) => createHmac('sha256', key).update(Buffer.concat(parts)).digest();

function extract(suite, salt, label, material) {
  return hmac(salt, VERSION, suite, Buffer.from(label), material);
}

function expand(suite, secret, label, info, length) {
  // Every length here is at most 32 bytes: one block.
  const header = Buffer.from([length >> 8, length & 255]);
  return hmac(secret, header, VERSION, suite, Buffer.from(label), info, Buffer.from([1])).subarray(0, length);
}

const publicKey = (raw) => createPublicKey({ key: Buffer.concat([SPKI, raw]), format: 'der', type: 'spki' });
const rawPublicKey = (key) => createPublicKey(key).export({ format: 'der', type: 'spki' }).subarray(SPKI.length);

function keySchedule(dh, enc, receiver, info) {
  const shared = expand(KEM, extract(KEM, EMPTY, 'eae_prk', dh), 'shared_secret', Buffer.concat([enc, receiver]), 32);
  const context = Buffer.concat([
    Buffer.from([0]), extract(SUITE, EMPTY, 'psk_id_hash', EMPTY), extract(SUITE, EMPTY, 'info_hash', info),
  ]);
  const secret = extract(SUITE, shared, 'secret', EMPTY);
  return { key: expand(SUITE, secret, 'key', context, 16), nonce: expand(SUITE, secret, 'base_nonce', context, 12) };
}

/** enc || ciphertext || tag; throws where `receiver` (32 bytes) is a point of low order. */
export function seal(receiver, plaintext, info) {
  const ephemeral = generateKeyPairSync('x25519');
  const enc = rawPublicKey(ephemeral.publicKey.export({ format: 'pem', type: 'spki' }));
  const dh = diffieHellman({ privateKey: ephemeral.privateKey, publicKey: publicKey(receiver) });
  const { key, nonce } = keySchedule(dh, enc, receiver, info);
  const cipher = createCipheriv('aes-128-gcm', key, nonce);
  return Buffer.concat([enc, cipher.update(plaintext), cipher.final(), cipher.getAuthTag()]);
}

/** The plaintext of what was sealed to the private key `secret` (32 bytes) under `info`; throws otherwise. */
export function open(secret, sealed, info) {
  if (sealed.length < OVERHEAD) throw new Error('the sealed message is too short');
  const privateKey = createPrivateKey({ key: Buffer.concat([PKCS8, secret]), format: 'der', type: 'pkcs8' });
  const enc = sealed.subarray(0, 32);
  const dh = diffieHellman({ privateKey, publicKey: publicKey(enc) });
  const { key, nonce } = keySchedule(dh, enc, rawPublicKey(privateKey), info);
  return openGcm('aes-128-gcm', key, nonce, sealed.subarray(32), EMPTY);
}

/** AES-GCM with the tag behind the ciphertext; throws where it does not open. */
export function openGcm(algorithm, key, nonce, sealed, aad) {
  if (sealed.length < TAG) throw new Error('the sealed message is too short');
  const decipher = createDecipheriv(algorithm, key, nonce, { authTagLength: TAG });
  decipher.setAAD(aad);
  decipher.setAuthTag(sealed.subarray(-TAG));
  return Buffer.concat([decipher.update(sealed.subarray(0, -TAG)), decipher.final()]);
}
