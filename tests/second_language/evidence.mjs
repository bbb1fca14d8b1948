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
// 1.3.6.1.4.1.3704.1, and what follows it for the chip's id and for the versions of its firmware.
const AMD = '2b060104019c7801';
const CHIP_ID = `0609${AMD}04`;
const TCB = { boot_loader: '01', tee: '02', snp: '03', microcode: '08' };
const REGISTERS = ['configuration', 'sandbox', 'runtime'];
const LARGEST_LOG = 2 ** 18;
const EVENT_LINE = /^(configuration|sandbox|runtime) ([\x21-\x7e]+(?: [\x21-\x7e]+)*)$/;
const POPULATION = /^population ([a-z0-9][a-z0-9_.-]{0,63}) ([0-9a-f]{64})$/;
const POLICY_KEYS = ['accumulation', 'minimum_cohort', 'population_delta', 'population_epsilon', 'role', 'select'];

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

/** { hpkeKey, signingKey, policy, policyHash, imageDigest, populations, expires }, or throws Refused; `values` is a reference_values.json. */
export function verifyEvidence({ token, policy, event_log, nonce, role, values, now }) {
  const { header, claims: text, signed, signature } = takeApart(token);
  const chip = verifyChain(header.x5c, values.roots, now);
  const revoked =
    chip.serials.some((serial) => (values.revoked_certificates ?? []).includes(serial)) ||
    (values.revoked_chips ?? []).includes(chip.id.toString('hex'));
  require_(!revoked, 'revoked', 'a certificate, or the chip, was revoked');
  const key = { key: chip.key, dsaEncoding: 'ieee-p1363' };
  require_(verify('sha384', signed, key, signature), 'bad_signature', 'not signed by the platform in it');

  const claims = readClaims(text);
  require_(claims.iat <= now + SKEW_SECONDS, 'not_yet_valid', 'issued in the future');
  const expires = Math.min(claims.exp, claims.iat + (values.max_age_seconds ?? 3600));
  require_(now < expires, 'expired', 'ask for fresh evidence');
  require_(claims.eat_nonce.equals(nonce), 'wrong_nonce', 'it answers another nonce');
  const debug = claims.dbgstat === 'disabled-since-boot' || (values.allow_debug && claims.dbgstat === 'enabled');
  require_(debug, 'debug_enabled', 'a debugger may read its memory');
  const emulated = claims.emulated || claims.hwmodel === 'ODP-EMULATED' || chip.emulated;
  require_(!emulated || values.allow_emulated === true, 'emulated_not_allowed', 'its platform is emulated');
  for (const name of Object.keys(TCB)) {
    require_(chip.tcb[name] >= (values.minimum_tcb?.[name] ?? 0), 'tcb_outdated', `firmware component ${name}`);
  }
  require_(claims.swname === `odp-${role}`, 'wrong_role', 'it is for another role');
  const withdrawn = (values.withdrawn_images ?? []).includes(claims.image_digest);
  require_(!withdrawn, 'image_withdrawn', 'its code was withdrawn');
  const listed = (values.image_digests[role] ?? []).includes(claims.image_digest);
  require_(listed, 'wrong_image', 'its code is not listed');
  const validity = values.image_validity?.[claims.image_digest] ?? {};
  const until = validity.not_after ?? 2 ** 40;
  require_((validity.not_before ?? 0) <= now && now < until, 'image_not_valid', 'its code is not accepted now');
  const terms = readPolicy(policy, role, values.policy_sha256[role] ?? [], values.allow_test_noise);
  const keys = [claims.hpke_key, claims.signing_key];
  const bound = createHash('sha512').update(domain('report', sha256(nonce), ...keys, sha256(policy))).digest();
  require_(bound.equals(claims.report_data), 'key_binding', 'the report does not bind these keys');
  const { held, populations } = checkEvents(event_log, claims, policy);
  for (const name of values.required_restrictions ?? []) {
    require_(held.includes(name), 'unrestricted', `its process runs without ${name}`);
  }
  return {
    hpkeKey: claims.hpke_key,
    signingKey: claims.signing_key,
    policy: terms,
    policyHash: sha256(policy),
    imageDigest: claims.image_digest,
    populations,
    expires: Math.min(expires, chip.expires, until),
  };
}

/** Replays the log into the registers of the report; the restrictions that hold, and the charter of each population. */
function checkEvents(log, claims, policy) {
  const bad = (message) => new Refused('event_log', message);
  const text = log.toString('latin1');
  if (log.length > LARGEST_LOG || (text !== '' && !text.endsWith('\n'))) throw bad('too long, or cut');
  const events = text.split('\n').slice(0, -1).map((line) => {
    const found = EVENT_LINE.exec(line);
    if (found === null || found[2].length > 512) throw bad('a line is not a register and an event');
    return { register: found[1], event: found[2] };
  });
  const registers = Object.fromEntries(REGISTERS.map((name) => [name, Buffer.alloc(48)]));
  const sha384 = (...parts) => parts.reduce((hash, part) => hash.update(part), createHash('sha384')).digest();
  for (const { register, event } of events) registers[register] = sha384(registers[register], sha384(event));
  if (!REGISTERS.every((name) => registers[name].equals(claims.registers[name]))) throw bad('another history');
  const stated = events.filter(({ register, event }) => register === 'configuration' || event.startsWith('keys '));
  const expected = [
    `configuration policy ${sha256(policy).toString('hex')}`,
    `configuration debug ${claims.dbgstat === 'disabled-since-boot' ? 'off' : 'on'}`,
    `runtime keys ${claims.hpke_key.toString('hex')} ${claims.signing_key.toString('hex')}`,
  ];
  const told = stated.map(({ register, event }) => `${register} ${event}`);
  if (told.join('\n') !== expected.join('\n')) throw bad('it is of another launch, policy or keys');
  const held = events.filter(({ register, event }) => register === 'sandbox' && event.startsWith('held '));
  const charters = events.map(({ register, event }) => (register === 'runtime' ? POPULATION.exec(event) : null));
  return {
    held: held.map(({ event }) => event.slice('held '.length)),
    populations: new Map(charters.filter((found) => found !== null).map(([, name, charter]) => [name, charter])),
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
  const bytes = (name, low, high = low, from = values) => {
    const value = base64url(text(name, from));
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
  const { registers } = values;
  const named = typeof registers === 'object' && registers !== null && !Array.isArray(registers);
  require_(named && Object.keys(registers).sort().join() === [...REGISTERS].sort().join(), 'malformed', 'registers');
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
    registers: Object.fromEntries(REGISTERS.map((name) => [name, bytes(name, 48, 48, registers)])),
    report_data: bytes('report_data', 64),
    hpke_key: bytes('hpke_key', 32),
    signing_key: bytes('signing_key', 32),
  };
  require_(claims.exp > claims.iat, 'malformed', 'exp is not after iat');
  return claims;
}

function readPolicy(data, role, listed, allowTestNoise) {
  require_(listed.includes(sha256(data).toString('hex')), 'wrong_policy', 'its policy is not listed');
  let policy = {};
  try {
    policy = jsonObject(data);
  } catch {
    // refused below
  }
  const { test_noise_seed: seed, founders, upgrade, ...rest } = policy;
  require_(Object.keys(rest).join() === POLICY_KEYS.join(), 'wrong_policy', 'its policy cannot be read');
  require_(policy.role === role, 'wrong_role', 'its policy is for another role');
  require_(seed === undefined || allowTestNoise === true, 'test_noise_not_allowed', 'its noise protects nobody');
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
    const named = chipOf(chip);
    const serials = [chip, ask, root].map((one) => one.serialNumber.toLowerCase().replace(/^0+/, ''));
    const times = [chip, ask, root].map((one) => [Date.parse(one.validFrom) / 1000, Date.parse(one.validTo) / 1000]);
    const born = Math.max(...times.map(([from]) => from));
    const expires = Math.min(...times.map(([, to]) => to));
    require_(born <= now && now <= expires, 'chain_expired', 'a certificate is not valid now');
    const emulated = root.subject.split('\n').includes(`O=${EMULATED_ORGANIZATION}`);
    return { key: chip.publicKey, expires, emulated, serials, ...named };
  } catch (error) {
    throw error instanceof Refused ? error : new Refused('chain_invalid', 'a certificate cannot be read');
  }
}

const issued = (one, issuer) => one.issuer === issuer.subject && one.verify(issuer.publicKey);

function isAuthority(certificate, depth) {
  const { ca, pathLength, usage } = extensions(certificate);
  return ca && pathLength !== null && pathLength <= depth && (usage & 0x04) !== 0; // keyCertSign
}

/** What the chip's certificate says it is: id and firmware. */
function chipOf(certificate) {
  const { others } = extensions(certificate);
  const bad = (message) => new Refused('chain_invalid', message);
  const id = others.get(CHIP_ID);
  if (id?.length !== 64) throw bad('it does not name the chip');
  const version = (last) => {
    const der = others.get(`060a${AMD}03${last}`) ?? Buffer.alloc(0);
    const form = der[0] === 0x02 && (der[1] === 1 || der[1] === 2) && der.length === 2 + der[1];
    const value = form ? der.readIntBE(2, der[1]) : -1;
    if (value < 0 || value > 255) throw bad('it does not name its firmware');
    return value;
  };
  return { id, tcb: Object.fromEntries(Object.entries(TCB).map(([name, last]) => [name, version(last)])) };
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
  const others = new Map();
  for (const { body } of children(children(fields.find((field) => field.tag === 0xa3).body)[0].body)) {
    const [id, ...rest] = children(body);
    const name = id.raw.toString('hex');
    const critical = rest[0].tag === 0x01 && rest[0].body[0] === 0xff;
    const known = name === BASIC_CONSTRAINTS || name === KEY_USAGE;
    if (known !== critical) throw bad('an extension is critical and not known, or the reverse');
    if (known) found.set(name, children(rest.at(-1).body)[0]);
    else others.set(name, rest.at(-1).body);
  }
  const constraints = children(found.get(BASIC_CONSTRAINTS).body);
  const length = constraints.find((field) => field.tag === 0x02);
  return {
    ca: constraints.some((field) => field.tag === 0x01 && field.body[0] === 0xff),
    pathLength: length ? length.body.readIntBE(0, length.body.length) : null,
    usage: found.get(KEY_USAGE).body[1], // behind the number of unused bits
    others,
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
