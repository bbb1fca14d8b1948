// What a device computes in DPAM: its items of a round, its local solve, and the bytes of its payload.

const COUNTS_ROUND = 0;
const FIRST_FACTOR_ROUND = 2;
const NO_ITEM = 0xffffffff;
const ROW_UNITS = 2 ** 11;
const WEIGHT_UNITS = 2 ** 10;
const TARGET_UNITS = 2 ** 9;
const GUARD = 1e-6;
const FACTOR_COLUMNS = 3; // behind count, bias, trust
const MASK = (1n << 64n) - 1n;

/** The numbers of a TaskDefinition that a device needs. */
export function termsOf(definition) {
  const { model, privacy, dpam } = definition;
  return {
    items: model.items,
    rank: model.rank,
    rounds: FIRST_FACTOR_ROUND + dpam.steps,
    places: privacy.max_items_per_user,
    slices: dpam.slices_per_device,
    width: FACTOR_COLUMNS + model.rank,
    centre: dpam.centre,
    biasClip: dpam.bias_target_clip,
    factorClip: dpam.factor_target_clip,
    biasVectorClip: dpam.bias_vector_clip,
    factorVectorClip: dpam.factor_vector_clip,
    fullRowBound: Math.hypot(1, dpam.row_clip),
    adaptive: dpam.weighting === 'WEIGHTING_ADAPTIVE',
    exponent: dpam.weight_exponent,
  };
}

export const rankOf = (terms, round) => (round >= FIRST_FACTOR_ROUND ? terms.rank : 0);

function splitmix64(number) {
  let mixed = (number + 0x9e3779b97f4a7c15n) & MASK;
  mixed = ((mixed ^ (mixed >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  mixed = ((mixed ^ (mixed >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return mixed ^ (mixed >> 31n);
}

/** The positions of `items` in the order in which a device of `seed` (BigInt) uses them in `round`. */
export function hashOrder(seed, round, items) {
  const stream = splitmix64(splitmix64(seed) ^ BigInt(round));
  const places = items.map((item) => splitmix64(stream ^ splitmix64(BigInt(item))));
  return items.map((_, position) => position).sort((a, b) => (places[a] < places[b] ? -1 : 1));
}

/** The rows that a device asks for: those of its first items, ascending. */
export function keysOf(terms, seed, round, items) {
  const order = hashOrder(seed, round, items).slice(0, terms.slices);
  return order.map((position) => items[position]).sort((a, b) => a - b);
}

/**
 * The payload of one device: `items` and `values` are its ratings, `rows` a Map from item to its row (numbers), and
 * `ridges` the two numbers of the table "globals". Rows are not used in the round of counts.
 */
export function payloadOf({ terms, round, seed, items, values, rows, ridges }) {
  const order = hashOrder(seed, round, items);
  if (round === COUNTS_ROUND) {
    const counted = order.slice(0, terms.places).map((position) => items[position]);
    return encode(terms, round, [], counted.map((item) => ({ item, weight: 1, target: 0 })));
  }
  const entries = order
    .filter((position) => rows.has(items[position]))
    .map((position) => ({ item: items[position], value: values[position], row: rows.get(items[position]) }));
  const rank = rankOf(terms, round);
  const [bias, ...row] = solve(terms, entries, ridges, rank);
  const first = entries.slice(0, terms.places);
  const weights = quantisedWeights(terms, first.map((entry) => entry.row[0]));
  const clip = rank ? terms.factorClip : terms.biasClip;
  const targets = first.map((entry) => {
    const residual = entry.value - terms.centre - entry.row[1] - bias;
    return roundHalfEven(Math.min(1, Math.max(-1, residual / clip)) * TARGET_UNITS);
  });
  const ratio = (rank ? terms.factorVectorClip : terms.biasVectorClip) / clip;
  const bounded = boundedTargets(weights, targets, Math.floor(ratio * ratio * (WEIGHT_UNITS * TARGET_UNITS) ** 2));
  const places = first.map(({ item }, place) => ({ item, weight: weights[place], target: bounded[place] }));
  return encode(terms, round, quantisedRow(terms, row), places);
}

/** [bias, ...row] of the user: weighted ridge regression of its residuals on (1, item row). */
function solve(terms, entries, [rowRidge, biasRidge], rank) {
  const size = 1 + rank;
  const matrix = Array.from({ length: size }, (_, i) => {
    const line = new Array(size + 1).fill(0);
    line[i] = i === 0 ? biasRidge : rowRidge;
    return line;
  });
  for (const { value, row } of entries) {
    const [, itemBias, trust] = row;
    const features = [1, ...row.slice(FACTOR_COLUMNS, FACTOR_COLUMNS + rank)];
    const residual = value - terms.centre - itemBias;
    for (let i = 0; i < size; i++) {
      for (let j = 0; j < size; j++) matrix[i][j] += trust * features[i] * features[j];
      matrix[i][size] += trust * features[i] * residual;
    }
  }
  // Gauss and Jordan; the ridges make every pivot positive.
  for (let i = 0; i < size; i++) {
    for (let k = 0; k < size; k++) {
      if (k === i) continue;
      const factor = matrix[k][i] / matrix[i][i];
      for (let j = i; j <= size; j++) matrix[k][j] -= factor * matrix[i][j];
    }
  }
  return matrix.map((line, i) => line[size] / line[i]);
}

function quantisedWeights(terms, counts) {
  if (!terms.adaptive) return counts.map(() => Math.trunc(WEIGHT_UNITS / Math.sqrt(terms.places) + GUARD));
  const raw = counts.map((count) => Math.max(count, 1) ** -terms.exponent);
  const norm = Math.sqrt(raw.reduce((sum, weight) => sum + weight * weight, 0)) || 1;
  return raw.map((weight) => Math.floor((weight * WEIGHT_UNITS) / norm + GUARD));
}

/** All targets, scaled down toward zero where their weighted squares sum to more than `limit`, a number below 2^39. */
function boundedTargets(weights, targets, limit) {
  const squares = targets.reduce((sum, target, place) => sum + (weights[place] * target) ** 2, 0);
  if (squares <= limit) return targets;
  const scale = Math.sqrt(limit / squares);
  return targets.map((target) => Math.trunc(target * scale));
}

function quantisedRow(terms, row) {
  const constant = roundHalfEven(ROW_UNITS / terms.fullRowBound);
  const limit = ROW_UNITS ** 2 - constant ** 2;
  const squares = (numbers) => numbers.reduce((sum, number) => sum + number * number, 0);
  const units = row.map((number) => (number * ROW_UNITS) / terms.fullRowBound);
  const scale = Math.min(1, Math.sqrt(limit) / Math.max(Math.sqrt(squares(units)), 1));
  const integers = units.map((number) => roundHalfEven(number * scale));
  const total = squares(integers);
  return total > limit ? integers.map((number) => Math.trunc(number * Math.sqrt(limit / total))) : integers;
}

function roundHalfEven(number) {
  const below = Math.floor(number);
  const rest = number - below;
  if (rest !== 0.5) return rest < 0.5 ? below : below + 1;
  return below % 2 === 0 ? below : below + 1;
}

/** Little-endian: row int16, items uint32, weights uint16, targets int16. `places` are at most terms.places. */
export function encode(terms, round, row, places) {
  const count = terms.places;
  if (places.length > count) throw new Error(`a payload has ${count} places, got ${places.length}`);
  const start = 2 * row.length;
  const data = Buffer.alloc(start + (round === COUNTS_ROUND ? 4 : 8) * count);
  row.forEach((number, i) => data.writeInt16LE(number, 2 * i));
  for (let i = 0; i < count; i++) {
    const { item, weight, target } = places[i] ?? { weight: 0 };
    const used = weight > 0;
    data.writeUInt32LE(used ? item : NO_ITEM, start + 4 * i);
    if (round === COUNTS_ROUND) continue;
    data.writeUInt16LE(used ? weight : 0, start + 4 * count + 2 * i);
    data.writeInt16LE(used ? target : 0, start + 6 * count + 2 * i);
  }
  return data;
}
