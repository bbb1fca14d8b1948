// Whether evidence of an enclave is good enough to send it anything: the checks of docs/protocol.md, in their order.

import { createHash, verify, X509Certificate } from 'node:crypto';
import { domain, sha256 } from './domains.mjs';

const SKEW_SECONDS = 60;
const LARGEST_TOKEN = 16 * 1024;
const LARGEST_CERTIFICATE = 4 * 1024;
const EMULATED_ORGANIZATION = 'ODP emulated platform: no hardware protection';
const ECDSA_WITH_SHA384 = '06082a8648ce3d040303';
const BASIC_CONSTRAINTS = '0603551d13';
const KEY_USAGE = '0603551d0f';
const POLICY_KEYS = ['accumulation', 'minimum_cohort', 'population_delta', 'population_epsilon', 'role'];

/** Evidence that was refused; `reason` is one of the closed set of docs/protocol.md. */
export class Refused extends Error {
  constructor(reason, message) {
    super(`evidence refused (${reason}): ${message}`);
    this.reason = reason;
  }
}

const require_ = (holds, reason, message) => {
  if (!holds) throw new Refused(reason, message);
};

/** { hpkeKey, signingKey, policy, policyHash, imageDigest, expires }, or throws Refused; `values` is a reference_values.json. */
export function verifyEvidence({ token, policy, nonce, role, values, now }) {
  const { header, claims: text, signed, signature } = takeApart(token);
  const chip = verifyChain(header.x5c, values.roots, now);
  const key = { key: chip.key, dsaEncoding: 'ieee-p1363' };
  require_(verify('sha384', signed, key, signature), 'bad_signature', 'not signed by the platform that it names');

  const claims = readClaims(text);
  require_(claims.iat <= now + SKEW_SECONDS, 'not_yet_valid', 'issued in the future');
  const expires = Math.min(claims.exp, claims.iat + (values.max_age_seconds ?? 3600));
  require_(now < expires, 'expired', 'ask for fresh evidence');
  require_(claims.eat_nonce.equals(nonce), 'wrong_nonce', 'it answers another nonce');
  const debug = claims.dbgstat === 'disabled-since-boot' || (values.allow_debug && claims.dbgstat === 'enabled');
  require_(debug, 'debug_enabled', 'a debugger may read its memory');
  const emulated = claims.emulated || claims.hwmodel === 'ODP-EMULATED' || chip.emulated;
  require_(!emulated || values.allow_emulated === true, 'emulated_not_allowed', 'its platform is emulated');
  require_(claims.swname === `odp-${role}`, 'wrong_role', 'it is for another role');
  const listed = (values.image_digests[role] ?? []).includes(claims.image_digest);
  require_(listed, 'wrong_image', 'its code is not listed');
  const terms = readPolicy(policy, role, values.policy_sha256[role] ?? []);
  const keys = [claims.hpke_key, claims.signing_key];
  const bound = createHash('sha512').update(domain('report', sha256(nonce), ...keys, sha256(policy))).digest();
  require_(bound.equals(claims.report_data), 'key_binding', 'the report does not bind these keys');
  return {
    hpkeKey: claims.hpke_key,
    signingKey: claims.signing_key,
    policy: terms,
    policyHash: sha256(policy),
    imageDigest: claims.image_digest,
    expires: Math.min(expires, chip.expires),
  };
}

function takeApart(token) {
  require_(token.length <= LARGEST_TOKEN, 'malformed', 'the token is too long');
  const parts = token.split('.');
  require_(parts.length === 3, 'malformed', 'a JWT has 3 parts');
  const header = jsonObject(base64url(parts[0]));
  const claims = jsonObject(base64url(parts[1]));
  const signature = base64url(parts[2]);
  const names = Object.keys(header).sort().join();
  require_(names === 'alg,typ,x5c' && header.alg === 'ES384' && header.typ === 'JWT', 'malformed', 'its header');
  require_(signature.length === 96, 'malformed', 'its signature is not 96 bytes');
  const { x5c } = header;
  require_(Array.isArray(x5c) && [2, 3].includes(x5c.length), 'malformed', 'x5c is not 2 or 3 certificates');
  header.x5c = x5c.map((encoded) => {
    const der = Buffer.from(String(encoded), 'base64');
    const exact = typeof encoded === 'string' && der.toString('base64') === encoded;
    require_(exact && der.length > 0 && der.length <= LARGEST_CERTIFICATE, 'malformed', 'a certificate of x5c');
    return der;
  });
  return { header, claims, signed: Buffer.from(`${parts[0]}.${parts[1]}`, 'ascii'), signature };
}

function base64url(text) {
  const data = Buffer.from(text, 'base64url');
  // One spelling per byte string: no padding, no foreign letters, no stray bits.
  require_(data.toString('base64url') === text, 'malformed', 'not canonical base64url');
  return data;
}

function jsonObject(data) {
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(data);
    const value = JSON.parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value) && !repeatsKey(text)) return value;
  } catch {
    // refused below
  }
  throw new Refused('malformed', 'not a JSON object with single keys');
}

// JSON.parse keeps the last of two equal keys, and another parser might keep the first. `text` is valid JSON.
function repeatsKey(text) {
  const open = [];
  let last = null;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\]:,]/g)) {
    if (token === '{') open.push(new Set());
    else if (token === '[') open.push(null);
    else if (token === '}' || token === ']') open.pop();
    else if (token === ':') {
      const name = JSON.parse(last);
      if (open.at(-1).has(name)) return true;
      open.at(-1).add(name);
    }
    last = token;
  }
  return false;
}

function readClaims(values) {
  const text = (name, from = values) => {
    const value = from[name];
    require_(typeof value === 'string' && /^[\x20-\x7e]{1,256}$/.test(value), 'malformed', `claim ${name}`);
    return value;
  };
  const bytes = (name, low, high = low) => {
    const value = base64url(text(name));
    require_(value.length >= low && value.length <= high, 'malformed', `length of claim ${name}`);
    return value;
  };
  const time = (name) => {
    const whole = Number.isInteger(values[name]) && values[name] >= 0 && values[name] <= 2 ** 40;
    require_(whole, 'malformed', `claim ${name}`);
    return values[name];
  };
  require_(text('aud') === 'odp' && text('eat_profile') === 'urn:odp:evidence:v1', 'malformed', 'aud or eat_profile');
  require_(typeof values.emulated === 'boolean', 'malformed', 'claim emulated');
  const container = values.submods?.container;
  require_(typeof container === 'object' && container !== null, 'malformed', 'claim submods.container');
  text('iss');
  const claims = {
    iat: time('iat'),
    exp: time('exp'),
    eat_nonce: bytes('eat_nonce', 16, 64),
    dbgstat: text('dbgstat'),
    hwmodel: text('hwmodel'),
    swname: text('swname'),
    emulated: values.emulated,
    image_digest: text('image_digest', container),
    report_data: bytes('report_data', 64),
    hpke_key: bytes('hpke_key', 32),
    signing_key: bytes('signing_key', 32),
  };
  require_(claims.exp > claims.iat, 'malformed', 'exp is not after iat');
  return claims;
}

function readPolicy(data, role, listed) {
  require_(listed.includes(sha256(data).toString('hex')), 'wrong_policy', 'its policy is not listed');
  let policy = {};
  try {
    policy = jsonObject(data);
  } catch {
    // refused below
  }
  require_(Object.keys(policy).join() === POLICY_KEYS.join(), 'wrong_policy', 'its policy cannot be read');
  require_(policy.role === role, 'wrong_role', 'its policy is for another role');
  return policy;
}

function verifyChain(chain, roots, now) {
  const pinned = roots.map((pem) => new X509Certificate(pem));
  try {
    const [chip, ask, sent] = chain.map((der) => new X509Certificate(der));
    const root = pinned.find((one) => (sent ? one.raw.equals(sent.raw) : issued(ask, one)));
    require_(root, 'wrong_root', 'its root is not pinned');
    const sound =
      isAuthority(root, 1) && isAuthority(ask, 0) && isChip(chip) && issued(ask, root) && issued(chip, ask);
    require_(sound, 'chain_invalid', 'names, signatures, curves or extensions');
    const times = [chip, ask, root].map((one) => [Date.parse(one.validFrom) / 1000, Date.parse(one.validTo) / 1000]);
    const born = Math.max(...times.map(([from]) => from));
    const expires = Math.min(...times.map(([, to]) => to));
    require_(born <= now && now <= expires, 'chain_expired', 'a certificate is not valid now');
    const emulated = root.subject.split('\n').includes(`O=${EMULATED_ORGANIZATION}`);
    return { key: chip.publicKey, expires, emulated };
  } catch (error) {
    throw error instanceof Refused ? error : new Refused('chain_invalid', 'a certificate cannot be read');
  }
}

const issued = (one, issuer) => one.issuer === issuer.subject && one.verify(issuer.publicKey);

function isAuthority(certificate, depth) {
  const { ca, pathLength, usage } = extensions(certificate);
  return ca && pathLength !== null && pathLength <= depth && (usage & 0x04) !== 0; // keyCertSign
}

function isChip(certificate) {
  const { ca, usage } = extensions(certificate);
  return !ca && (usage & 0x04) === 0 && (usage & 0x80) !== 0; // digitalSignature
}

// X509Certificate shows neither key usage bits nor path length, so the DER is read here (RFC 5280, section 4.1).
function extensions(certificate) {
  const [tbs, algorithm] = children(certificate.raw.subarray(...content(certificate.raw, 0)));
  const fields = children(tbs.body);
  const bad = (message) => new Refused('chain_invalid', message);
  if (fields[0].tag !== 0xa0 || fields[0].body.toString('hex') !== '020102') throw bad('not X.509 version 3');
  if (!algorithm.body.toString('hex').startsWith(ECDSA_WITH_SHA384)) throw bad('not ECDSA with SHA-384');
  const key = certificate.publicKey;
  if (key.asymmetricKeyType !== 'ec' || key.asymmetricKeyDetails.namedCurve !== 'secp384r1') throw bad('not P-384');
  const found = new Map();
  for (const { body } of children(children(fields.find((field) => field.tag === 0xa3).body)[0].body)) {
    const [id, ...rest] = children(body);
    const name = id.raw.toString('hex');
    const critical = rest[0].tag === 0x01 && rest[0].body[0] === 0xff;
    const known = name === BASIC_CONSTRAINTS || name === KEY_USAGE;
    if (known !== critical) throw bad('an extension is critical and not known, or the reverse');
    if (known) found.set(name, children(rest.at(-1).body)[0]);
  }
  const constraints = children(found.get(BASIC_CONSTRAINTS).body);
  const length = constraints.find((field) => field.tag === 0x02);
  return {
    ca: constraints.some((field) => field.tag === 0x01 && field.body[0] === 0xff),
    pathLength: length ? length.body.readIntBE(0, length.body.length) : null,
    usage: found.get(KEY_USAGE).body[1], // behind the number of unused bits
  };
}

function content(data, start) {
  let length = data[start + 1];
  let from = start + 2;
  if (length >= 0x80) {
    const bytes = length & 0x7f;
    length = data.readUIntBE(from, bytes);
    from += bytes;
  }
  if (from + length > data.length) throw new Error('DER is cut');
  return [from, from + length];
}

function children(data) {
  const found = [];
  for (let at = 0; at < data.length; ) {
    const [from, to] = content(data, at);
    found.push({ tag: data[at], body: data.subarray(from, to), raw: data.subarray(at, to) });
    at = to;
  }
  return found;
}
