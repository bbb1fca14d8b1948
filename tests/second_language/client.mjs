// Devices of ODP in Node.js: they share the protos with the other parties, and no code. docs/protocol.md is the guide.
//
//   node client.mjs < request.json > answer.json
//
// A request holds `command` ("take_part" or "audit"), `protos` (the folder of the protos), `ca` and `reference_values`
// (files), `server` (host:port) and what the command's function below reads. Devices of one process share connections
// and verified evidence, and nothing else.

import { createPublicKey, randomBytes, randomInt, verify } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import grpc from '@grpc/grpc-js';
import loader from '@grpc/proto-loader';
import * as domains from './domains.mjs';
import { domain, sha256 } from './domains.mjs';
import { encode, keysOf, payloadOf, rankOf, termsOf } from './dpam.mjs';
import { verifyEvidence } from './evidence.mjs';
import { openGcm, seal } from './hpke.mjs';

const FILES = ['aggregator', 'attestation', 'common', 'distributor', 'population', 'server'].map((name) => `odp/v1/${name}.proto`);
const LOADING = { keepCase: true, longs: String, enums: String, bytes: Buffer, defaults: true, oneofs: true };
const CHANNEL = {
  'grpc.max_receive_message_length': 16 * 2 ** 20,
  'grpc.max_send_message_length': 16 * 2 ** 20,
  'grpc.enable_http_proxy': 0,
};
const DEADLINE_MS = 30_000;
const SUBMIT_TRIES = 5;
const ED25519_SPKI = Buffer.from('302a300506032b6570032100', 'hex');
const AGAIN = [grpc.status.UNAVAILABLE, grpc.status.DEADLINE_EXCEEDED];

const hex = (data) => data.toString('hex');

function requireThat(holds, message) {
  if (!holds) throw new Error(message);
}

function requireSigned(key, signature, signed) {
  requireThat(key.length === 32 && signature.length === 64, 'a key or a signature has a wrong length');
  const spki = createPublicKey({ key: Buffer.concat([ED25519_SPKI, key]), format: 'der', type: 'spki' });
  requireThat(verify(null, signed, spki, signature), 'a signature does not match');
}

/** Messages and connections. */
class Wire {
  constructor({ protos, ca }) {
    this.types = loader.loadSync(FILES, { ...LOADING, includeDirs: [protos] });
    this.packages = grpc.loadPackageDefinition(this.types).odp.v1;
    this.credentials = grpc.credentials.createSsl(readFileSync(ca));
    this.stubs = new Map();
  }

  parse(type, data) {
    return this.types[`odp.v1.${type}`].deserialize(data);
  }

  /** The bytes that every protobuf library agrees on: no field that has its default value. */
  bytes(type, message) {
    const present = Object.entries(message).filter(([, value]) => value !== 0 && value.length !== 0);
    return this.types[`odp.v1.${type}`].serialize(Object.fromEntries(present));
  }

  call(service, method, address, request, token) {
    const key = `${service} ${address}`;
    if (!this.stubs.has(key)) this.stubs.set(key, new this.packages[service](address, this.credentials, CHANNEL));
    const metadata = new grpc.Metadata();
    if (token !== undefined) metadata.set('authorization', `Bearer ${token}`);
    const options = { deadline: Date.now() + DEADLINE_MS };
    return new Promise((resolve, reject) => {
      const done = (error, reply) => (error ? reject(error) : resolve(reply));
      this.stubs.get(key)[method](request, metadata, options, done);
    });
  }

  close() {
    for (const stub of this.stubs.values()) stub.close();
  }
}

/** Verified enclaves by role and address, until their evidence expires. */
class Enclaves {
  constructor(wire, values) {
    this.wire = wire;
    this.values = values;
    this.verified = new Map();
  }

  async verify(role, address) {
    const key = `${role} ${address}`;
    const known = this.verified.get(key);
    if (known !== undefined && Date.now() / 1000 < known.expires) return known;
    const nonce = randomBytes(32);
    const reply = await this.wire.call('AttestationService', 'GetEvidence', address, { nonce });
    const found = verifyEvidence({ ...reply, nonce, role, values: this.values, now: Date.now() / 1000 });
    this.verified.set(key, found);
    return found;
  }
}

/** Checks an assignment: signatures, hashes, population and its owners, the model's form, the person's limits. */
function openAssignment(wire, assignment, { population, limits }) {
  const { task, model, round, charter } = assignment;
  const definition = wire.parse('TaskDefinition', task.definition);
  const key = definition.developer_key;
  requireSigned(key, task.signature, domain('task', task.definition));
  requireSigned(key, model.signature, domain('manifest', model.manifest));
  const manifest = wire.parse('ModelManifest', model.manifest);
  const taskId = sha256(task.definition);
  requireThat(definition.training === 'dpam', 'the task trains with something unknown');
  requireThat(definition.population === population, 'the task is of another population');
  const owned = wire.parse('PopulationCharter', charter.charter);
  const owner = owned.population === population && owned.owners.some((one) => one.equals(key));
  requireThat(owner, 'the population belongs to other keys than the one that signed the task');
  const belongs = manifest.task_sha256.equals(taskId) && manifest.version === round;
  requireThat(belongs, 'the model is of another task or round');
  const terms = termsOf(definition);
  const form = manifest.tables.map((table) => [table.name, table.rows, table.width, table.keyed].join());
  const expected = [['items', terms.items, terms.width, true].join(), ['globals', 1, 2, false].join()];
  const fits = form.join(' ') === expected.join(' ') && round < terms.rounds;
  requireThat(fits, 'the model is not of the form of its task');
  const { privacy, cohort, data } = definition;
  const allowed = privacy.epsilon <= limits.max_epsilon && privacy.delta <= limits.max_delta;
  requireThat(allowed && cohort.minimum >= limits.min_cohort, 'the limits of this device decline the task');
  return {
    terms, data, round, taskId, modelId: sha256(model.manifest), globals: manifest.tables[1],
    population, charter: hex(sha256(charter.charter)),
    distributor: assignment.distributor_address, aggregator: assignment.aggregator_address,
    roundKey: assignment.round_key,
  };
}

/** Asks for work until round `round` is open; waits as the server says. */
async function checkIn(wire, request) {
  const until = Date.now() + 1000 * (request.patience_seconds ?? 60);
  for (;;) {
    const reply = await wire.call('ServerService', 'CheckIn', request.server, { population: request.population });
    const { assignment, retry } = reply;
    if (assignment && assignment.round === request.round) return openAssignment(wire, assignment, request);
    requireThat(Date.now() < until, `round ${request.round} did not open`);
    const [low, high] = retry ? [retry.min_seconds, retry.max_seconds] : [0, 1];
    await sleep(Math.max(100, randomInt(1000 * low, 1000 * high + 1)));
  }
}

/** The rows of the device's items, by item, and the table "globals". */
async function select(wire, work, enclave, keys) {
  const { terms, modelId } = work;
  const wanted = keys.length ? keys : [0];
  const packed = Buffer.alloc(4 * terms.slices);
  for (let i = 0; i < terms.slices; i++) packed.writeUInt32LE(wanted[i] ?? wanted[0], 4 * i);
  const replyKey = randomBytes(32);
  const plain = wire.bytes('SelectKeys', { table: 'items', keys: packed, reply_key: replyKey });
  const sealed = seal(enclave.hpkeKey, plain, domain('select', modelId));
  const request = { model_sha256: modelId, sealed_keys: sealed };
  const reply = await wire.call('DistributorService', 'Select', work.distributor, request);
  const aad = domain('selected', modelId);
  const selected = wire.parse(
    'SelectedRows', openGcm('aes-256-gcm', replyKey, Buffer.alloc(12), reply.sealed_rows, aad),
  );
  requireThat(selected.rows.length === 4 * terms.slices * terms.width, 'the rows have a wrong length');
  const whole = selected.dense.length === 1 && sha256(selected.dense[0]).equals(work.globals.sha256);
  requireThat(whole, 'the table "globals" does not have the hash of its manifest');
  const floats = (data) => Array.from({ length: data.length / 4 }, (_, i) => data.readFloatLE(4 * i));
  const width = 4 * terms.width;
  const rows = new Map(keys.map((item, i) => [item, floats(selected.rows.subarray(i * width, (i + 1) * width))]));
  return { rows, ridges: floats(selected.dense[0]), bytesUp: sealed.length, bytesDown: reply.sealed_rows.length };
}

function contribution(work, device, payload) {
  return {
    task_sha256: work.taskId,
    round: work.round,
    model_sha256: work.modelId,
    contribution_id: domains.contributionId(device.secret, work.taskId, work.round),
    pseudonym: domains.pseudonym(device.secret, work.taskId),
    payload,
  };
}

const contributionInfo = (work, enclave, round = work.round) =>
  domains.contributionInfo(work.taskId, round, work.modelId, enclave.policyHash);

async function submit(wire, work, sealed, changes = {}) {
  const request = { task_sha256: work.taskId, round: work.round, sealed_contribution: sealed, ...changes };
  for (let tried = 1; ; tried++) {
    try {
      return (await wire.call('AggregatorService', 'Submit', work.aggregator, request)).refusal;
    } catch (error) {
      // The same bytes again: whether the first try was counted is not known.
      if (tried === SUBMIT_TRIES || !AGAIN.includes(error.code)) throw error;
      await sleep(200 * 2 ** tried);
    }
  }
}

async function prepare(wire, enclaves, request, device) {
  const work = await checkIn(wire, request);
  const { terms, data } = work;
  requireThat(device.values.every((value) => value >= data.low && value <= data.high), 'a value is out of range');
  const distributor = await enclaves.verify('distributor', work.distributor);
  const aggregator = await enclaves.verify('aggregator', work.aggregator);
  const inForce = aggregator.populations.get(work.population) === work.charter;
  requireThat(inForce, 'the evidence shows another charter of the population');
  const { hpke_key: roundKey, signature } = work.roundKey;
  const signed = domains.roundKey(work.taskId, work.round, work.modelId, aggregator.policyHash, roundKey);
  requireSigned(aggregator.signingKey, signature, signed);
  const selected = await select(wire, work, distributor, keysOf(terms, device.seed, work.round, device.items));
  const payload = payloadOf({ terms, round: work.round, ...device, ...selected });
  const plain = wire.bytes('Contribution', contribution(work, device, payload));
  const sealed = seal(roundKey, plain, contributionInfo(work, aggregator));
  return { work, aggregator, payload, plain, sealed, selected };
}

/** What a dishonest or broken device might send; each answers with the refusal that it met. */
function attacks(wire, prepared, device) {
  const { work, aggregator, payload, plain, sealed } = prepared;
  const { terms, round } = work;
  const stranger = { ...device, secret: randomBytes(32) };
  const sealBytes = (data, info = contributionInfo(work, aggregator)) => seal(work.roundKey.hpke_key, data, info);
  const bytesOf = (who, changes) => wire.bytes('Contribution', { ...contribution(work, who, payload), ...changes });
  const sealAs = (changes, info) => sealBytes(bytesOf(stranger, changes), info);
  const places = (...given) => ({ payload: encode(terms, round, new Array(rankOf(terms, round)).fill(0), given) });
  const flipped = Buffer.from(sealed);
  flipped[flipped.length - 20] ^= 1;
  const spare = Buffer.from([0x10, round]); // the field `round` once more: valid protobuf, and longer than declared
  return {
    replay: () => submit(wire, work, sealed),
    second_payload: () =>
      submit(wire, work, sealBytes(bytesOf(device, places({ item: 1, weight: 1, target: 0 })))),
    second_id: () => submit(wire, work, sealBytes(bytesOf(device, { contribution_id: randomBytes(32) }))),
    changed_byte: () => submit(wire, work, flipped),
    other_context: () => submit(wire, work, sealAs({}, contributionInfo(work, aggregator, round + 1))),
    spare_bytes: () => submit(wire, work, sealBytes(Buffer.concat([bytesOf(stranger, {}), spare]))),
    not_sealed: () => submit(wire, work, Buffer.concat([plain, Buffer.alloc(48)])),
    other_task: () => submit(wire, work, sealed, { task_sha256: randomBytes(32) }),
    other_task_inside: () => submit(wire, work, sealAs({ task_sha256: randomBytes(32) })),
    other_round: () => submit(wire, work, sealed, { round: terms.rounds - 1 === round ? round + 1 : terms.rounds - 1 }),
    other_model_inside: () => submit(wire, work, sealAs({ model_sha256: randomBytes(32) })),
    item_twice: () =>
      submit(wire, work, sealAs(places({ item: 3, weight: 1, target: 0 }, { item: 3, weight: 1, target: 0 }))),
    item_out_of_range: () => submit(wire, work, sealAs(places({ item: terms.items, weight: 1, target: 0 }))),
    too_heavy: () => submit(wire, work, sealAs(places({ item: 3, weight: 1025, target: 0 }))),
    too_far: () => submit(wire, work, sealAs(places({ item: 3, weight: 1, target: -513 }))),
    round_before: () => submit(wire, work, sealed, { round: round - 1 }),
  };
}

/** Many devices take part in one round; `before` and `after` name attacks around their contributions. */
async function takePart(wire, request) {
  const enclaves = new Enclaves(wire, JSON.parse(readFileSync(request.reference_values, 'utf8')));
  const devices = request.devices.map((device) => ({
    ...device, secret: Buffer.from(device.secret, 'hex'), seed: BigInt(device.seed),
  }));
  const prepared = [];
  for (const device of devices) prepared.push(await prepare(wire, enclaves, request, device));
  const attacked = {};
  const attack = async (names) => {
    for (const name of names ?? []) attacked[name] = await attacks(wire, prepared[0], devices[0])[name]();
  };
  await attack(request.before);
  const refusals = [];
  for (const one of prepared) refusals.push(await submit(wire, one.work, one.sealed));
  await attack(request.after);
  const { work, aggregator, payload, sealed, plain, selected } = prepared[0];
  const sizes = {
    payload: payload.length, contribution: plain.length, sealed_contribution: sealed.length,
    sealed_keys: selected.bytesUp, sealed_rows: selected.bytesDown,
  };
  return {
    task_sha256: hex(work.taskId), model_sha256: hex(work.modelId), policy: aggregator.policy,
    refusals, attacks: attacked, sizes,
  };
}

/** The developer's and the auditor's view: every release and the ledger, under the attested signing key. */
async function audit(wire, request) {
  const enclaves = new Enclaves(wire, JSON.parse(readFileSync(request.reference_values, 'utf8')));
  const asked = { task_sha256: Buffer.from(request.task_sha256, 'hex') };
  const { status } = await wire.call('ServerService', 'GetTask', request.server, asked, request.token);
  const address = status.aggregator_address;
  const { signingKey } = await enclaves.verify('aggregator', address);
  const signed = status.rounds.map((round) => round.release).filter((release) => release !== null);
  const releases = signed.map(({ release, signature }) => {
    requireSigned(signingKey, signature, domain('release', release));
    return readRelease(wire.parse('Release', release));
  });
  return { releases, ledger: await readLedger(wire, address, asked, signingKey) };
}

function readRelease(release) {
  const tensors = release.tensors.map(({ name, integers, shape, step }) => {
    const values = [];
    for (let at = 0; at < integers.length; at += 8) values.push(Number(integers.readBigInt64LE(at)) * step);
    return { name, shape, values };
  });
  const { round, charges, epsilon_spent, epsilon_remaining, contributions } = release;
  const bound = { task_sha256: hex(release.task_sha256), model_sha256: hex(release.model_sha256) };
  return { ...bound, round, tensors, charges, epsilon_spent, epsilon_remaining, contributions };
}

/** The ledger, page by page, after its hash chain was checked over the bytes of its entries up to the signed head. */
async function readLedger(wire, address, asked, signingKey) {
  const entries = [];
  for (;;) {
    const page = await wire.call('AggregatorService', 'GetLedger', address, { ...asked, first: entries.length });
    requireSigned(signingKey, page.signature, domain('ledger', page.head));
    const head = JSON.parse(page.head.toString('ascii'));
    const lines = page.entries.toString('ascii').split('\n').slice(0, -1);
    entries.push(...lines);
    if (entries.length >= head.entries) return chained(head, entries);
    requireThat(lines.length > 0, 'the ledger ends before its head');
  }
}

function chained(head, lines) {
  let previous = sha256(Buffer.from(`${head.format} ${head.population}`, 'utf8'));
  const entries = lines.map((line) => {
    const entry = JSON.parse(line);
    requireThat(entry.previous === hex(previous), 'the ledger does not form a chain');
    previous = sha256(Buffer.from(line, 'ascii'));
    return entry;
  });
  requireThat(entries.length === head.entries && head.head === hex(previous), 'the ledger has another head');
  return { ...head, entries };
}

const COMMANDS = { take_part: takePart, audit };
const request = JSON.parse(readFileSync(0, 'utf8'));
const wire = new Wire(request);
try {
  process.stdout.write(JSON.stringify(await COMMANDS[request.command](wire, request)));
} catch (error) {
  process.stderr.write(`${error.stack}\n`);
  process.exitCode = 1;
} finally {
  wire.close();
}
