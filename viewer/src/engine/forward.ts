// One forced pass, step by step in the order of the model's own list, and the same token by token.
// What a step computes follows from the end of its name; it mirrors trace/steps.py. Letters of the
// shapes: n positions, q queries, k keys, h heads, d d_model, r rows of a search.
import { patternOf } from "../lib/maps";
import { moments } from "../lib/maths";
import { row, type Values } from "../lib/tensor";
import { wave, wavesOf } from "../lib/waves";
import { PAD, UNCHANGED, type Edits, type Model, type Pass } from "./model";
import { parameter } from "./weights";

type Tensors = Map<string, Values>;

export const tensor = (...shape: number[]): Values => ({
  shape,
  data: new Float32Array(shape.reduce((a, b) => a * b, 1)),
});

/** y = x Wᵀ + b for the rows of x [n, i], W [o, i]; four outputs at a time, for speed. */
export function linear(x: Values, weight: Values, bias: Values | null): Values {
  const [o, i] = weight.shape as [number, number];
  if (x.shape.at(-1) !== i) throw new Error(`weights of shape [${weight.shape}] for vectors of ${x.shape.at(-1)} numbers`);
  const n = x.data.length / i;
  const y = tensor(n, o);
  for (let at = 0; at < n; at++) project(x.data, at * i, weight.data, i, bias?.data ?? null, y.data, at * o, o);
  return y;
}

function project(
  x: Float32Array, from: number, w: Float32Array, i: number, b: Float32Array | null, y: Float32Array, to: number, o: number,
): void {
  let c = 0;
  for (; c + 3 < o; c += 4) {
    let [s0, s1, s2, s3] = [0, 0, 0, 0];
    const [w0, w1, w2, w3] = [c * i, (c + 1) * i, (c + 2) * i, (c + 3) * i];
    for (let f = 0; f < i; f++) {
      const each = x[from + f]!;
      s0 += each * w[w0 + f]!;
      s1 += each * w[w1 + f]!;
      s2 += each * w[w2 + f]!;
      s3 += each * w[w3 + f]!;
    }
    y[to + c] = s0 + (b ? b[c]! : 0);
    y[to + c + 1] = s1 + (b ? b[c + 1]! : 0);
    y[to + c + 2] = s2 + (b ? b[c + 2]! : 0);
    y[to + c + 3] = s3 + (b ? b[c + 3]! : 0);
  }
  for (; c < o; c++) y[to + c] = product(x, from, w, c * i, i) + (b ? b[c]! : 0);
}

function product(a: Float32Array, i: number, b: Float32Array, j: number, count: number): number {
  let sum = 0;
  for (let f = 0; f < count; f++) sum += a[i + f]! * b[j + f]!;
  return sum;
}

function addTimes(out: Float64Array, weight: number, rows: Float32Array, at: number): void {
  for (let f = 0; f < out.length; f++) out[f]! += weight * rows[at + f]!;
}

const map = (x: Values, of: (each: number) => number): Values => ({ shape: x.shape, data: x.data.map(of) });

/** a + times · b, number by number. */
function sum(a: Values, b: Values, times = 1): Values {
  const out = tensor(...a.shape);
  for (let i = 0; i < out.data.length; i++) out.data[i] = times * a.data[i]! + b.data[i]!;
  return out;
}

export function layerNorm(x: Values, weight: Values, bias: Values, epsilon: number): Values {
  const width = weight.data.length;
  const out = tensor(...x.shape);
  for (let at = 0; at < x.data.length; at += width) {
    const { mean, variance } = moments(x.data.subarray(at, at + width));
    const deviation = Math.sqrt(variance + epsilon);
    for (let f = 0; f < width; f++)
      out.data[at + f] = ((x.data[at + f]! - mean) / deviation) * weight.data[f]! + bias.data[f]!;
  }
  return out;
}

/** The error function, by its series of terms of one sign (Abramowitz and Stegun 7.1.6). */
export function erf(x: number): number {
  if (Math.abs(x) > 6) return Math.sign(x);
  let term = x;
  let all = x;
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(all); n++) all += term *= (2 * x * x) / (2 * n + 1);
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * all;
}

export const ACTIVATIONS: Record<string, (x: number) => number> = {
  relu: (x) => Math.max(0, x),
  gelu: (x) => (x * (1 + erf(x / Math.SQRT2))) / 2,
  silu: (x) => x / (1 + Math.exp(-x)),
};

/** Section 3.5 for `count` positions from `start` on, or the learned rows. */
function positions(model: Model, side: string, start: number, count: number): Values {
  const { config } = model;
  const d = config.d_model;
  const out = tensor(count, d);
  if (config.positions === "learned") {
    const rows = parameter(model, `${side}.positions`);
    if (start + count > rows.shape[0]!) throw new Error(`${start + count} positions are over max_length = ${rows.shape[0]}`);
    out.data.set(rows.data.subarray(start * d, (start + count) * d));
    return out;
  }
  const waves = wavesOf(config);
  for (let n = 0; n < count; n++) out.data.set(wave(waves, start + n), n * d);
  return out;
}

function lookedUp(table: Values, ids: number[]): Values {
  const out = tensor(ids.length, table.shape[1]!);
  ids.forEach((id, n) => out.data.set(row(table, id), n * table.shape[1]!));
  return out;
}

/** q kᵀ / √d_k of each head: [h, q, k] from [q, h d_k] and [k, h d_k]. */
function scores(q: Values, k: Values, count: number): Values {
  const [queries, width] = q.shape as [number, number];
  const keys = k.shape[0]!;
  const each = width / count;
  const root = Math.sqrt(each);
  const out = tensor(count, queries, keys);
  let at = 0;
  for (let h = 0; h < count; h++)
    for (let i = 0; i < queries; i++)
      for (let j = 0; j < keys; j++)
        out.data[at++] = product(q.data, i * width + h * each, k.data, j * width + h * each, each) / root;
  return out;
}

/** May this query of this head attend to this key? */
type Allowed = (head: number, query: number, key: number) => boolean;

/** Each row's softmax where it is allowed; elsewhere exactly 0. */
function distribution(x: Values, allowed: Allowed, block: string, first = 0): Values {
  const [count, queries, keys] = x.shape as [number, number, number];
  const out = tensor(count, queries, keys);
  for (let h = 0; h < count; h++)
    for (let i = 0; i < queries; i++) {
      const at = (h * queries + i) * keys;
      let top = -Infinity;
      for (let j = 0; j < keys; j++) if (allowed(h, i, j) && x.data[at + j]! > top) top = x.data[at + j]!;
      if (top === -Infinity) throw new Error(`${block}, head ${h}: query ${first + i} has no key left to attend to. Leave it one.`);
      let total = 0;
      for (let j = 0; j < keys; j++) if (allowed(h, i, j)) total += Math.exp(x.data[at + j]! - top);
      for (let j = 0; j < keys; j++) if (allowed(h, i, j)) out.data[at + j] = Math.exp(x.data[at + j]! - top) / total;
    }
  return out;
}

/** weights · v of each head, a head that is off being 0: [h, q, d_v] from [h, q, k] and [k, h d_v]. */
function heads(weights: Values, v: Values, off: number[]): Values {
  const [count, queries, keys] = weights.shape as [number, number, number];
  const width = v.shape[1]!;
  const each = width / count;
  const out = tensor(count, queries, each);
  const mixed = new Float64Array(each);
  for (let h = 0; h < count; h++)
    for (let i = 0; i < queries && !off.includes(h); i++) {
      mixed.fill(0);
      for (let j = 0; j < keys; j++) addTimes(mixed, weights.data[(h * queries + i) * keys + j]!, v.data, j * width + h * each);
      out.data.set(mixed, (h * queries + i) * each);
    }
  return out;
}

/** Heads beside each other: [q, h d_v] from [h, q, d_v]. */
export function join(x: Values): Values {
  const [count, queries, each] = x.shape as [number, number, number];
  const out = tensor(queries, count * each);
  for (let h = 0; h < count; h++)
    for (let i = 0; i < queries; i++) out.data.set(row(x, h, i), (i * count + h) * each);
  return out;
}

const offIn = (edits: Edits, block: string): number[] =>
  edits.off.filter(([name]) => name === block).map(([, head]) => head);

/** The mask, less the pairs that are blocked in this block. */
function open(edits: Edits, block: string, mask: (query: number, key: number) => boolean): Allowed {
  const cells = edits.blocked.filter((cell) => cell.block === block);
  if (!cells.length) return (_, query, key) => mask(query, key);
  return (head, query, key) =>
    mask(query, key) &&
    !cells.some((cell) => (cell.head ?? head) === head && cell.query === query && cell.key === key);
}

const blockOf = (name: string): string => name.slice(0, name.lastIndexOf("."));
const leafOf = (name: string): string => name.slice(name.lastIndexOf(".") + 1);

/** What is the same for a whole target and for one more token of each row: each position by itself. */
function byPosition(model: Model, name: string, [x, y]: Values[], edits: Edits): Values {
  const { config } = model;
  const leaf = leafOf(name);
  if (leaf.endsWith("_embedding")) return sum(x!, y!, edits.scale ? Math.sqrt(config.d_model) : 1);
  if (leaf === "sum") return sum(x!, y!);
  if (leaf === "activation") return map(x!, ACTIVATIONS[config.activation]!);
  if (leaf.endsWith("norm")) {
    if (leaf !== "norm" && config.norm === "post") return x!; // a step of its own, that does nothing
    const epsilon = Number(config.layer_norm_epsilon ?? 1e-6);
    return layerNorm(x!, parameter(model, `${name}.weight`), parameter(model, `${name}.bias`), epsilon);
  }
  const bias = name === "output" ? null : parameter(model, `${name}.bias`);
  return linear(x!.shape.length === 3 ? join(x!) : x!, parameter(model, `${name}.weight`), bias);
}

function isIn(model: Model, ids: number[], side: string): void {
  const size = parameter(model, `${side}.table.weight`).shape[0]!;
  const strange = ids.find((id) => !(id >= 0 && id < size));
  if (strange !== undefined) throw new Error(`${strange} is no id of the ${size} pieces`);
  if (ids.length > model.config.max_length)
    throw new Error(`${ids.length} positions are over max_length = ${model.config.max_length}`);
}

/** A step of a pass over whole sentences. */
function compute(model: Model, name: string, inputs: Values[], pass: Pass, edits: Edits): Values {
  const [leaf, block] = [leafOf(name), blockOf(name)];
  const ids = block.startsWith("source") ? pass.source : pass.decoderInput;
  if (leaf === "table") return lookedUp(parameter(model, `${block}.table.weight`), ids);
  if (leaf === "positions")
    return edits.positions ? positions(model, block, 0, ids.length) : tensor(ids.length, model.config.d_model);
  if (leaf === "scores") return scores(inputs[0]!, inputs[1]!, model.config.heads);
  if (leaf === "heads") return heads(inputs[0]!, inputs[1]!, offIn(edits, block));
  if (leaf !== "weights") return byPosition(model, name, inputs, edits);
  const mask = patternOf(block) === "decoder_self"
    ? (query: number, key: number) => pass.targetMask[query]![key]!
    : (_: number, key: number) => pass.sourceMask[key]!;
  return distribution(inputs[0]!, open(edits, block, mask), block);
}

/** Steps up to the one that makes the memory. */
const ofEncoder = (model: Model): number => model.steps.findIndex(({ name }) => name === "encoder_norm") + 1;

function walk(model: Model, steps: Model["steps"], pass: Pass, edits: Edits): void {
  for (const { name, inputs } of steps) {
    const given = inputs.map((each) => pass.tensors.get(each)!); // ids and masks are not tensors
    pass.tensors.set(name, compute(model, name, given, pass, edits));
  }
}

function begin(source: number[], decoderInput: number[], edits: Edits): Pass {
  return {
    source,
    decoderInput,
    sourceMask: source.map((id) => id !== PAD),
    targetMask: decoderInput.map((_, i) => decoderInput.map((id, j) => (j <= i || !edits.causal) && id !== PAD)),
    tensors: new Map(),
  };
}

/** All that the model computes where the target is given, as PyTorch computes it. */
export function forward(model: Model, source: number[], decoderInput: number[], edits: Edits = UNCHANGED): Pass {
  isIn(model, source, "source_embedding");
  isIn(model, decoderInput, "target_embedding");
  const pass = begin(source, decoderInput, edits);
  walk(model, model.steps, pass, edits);
  return pass;
}

/** Keys and values of what came before: one array of numbers a position. */
interface Past {
  key: Float32Array[];
  value: Float32Array[];
}

/** Decoding token by token: the memory once, then one more token for each row of a search. */
export class Decoding {
  /** How many tokens each row has read. */
  length = 0;
  /** The decoder's maps of the last step, [h, r, k], by block. */
  readonly maps: Tensors = new Map();
  private readonly memory: Pass;
  private readonly steps: Model["steps"];
  private pasts: Map<string, Past[]> = new Map(); // by block of self-attention, a row each

  constructor(readonly model: Model, source: number[], private readonly edits: Edits = UNCHANGED) {
    isIn(model, source, "source_embedding");
    const end = ofEncoder(model);
    this.memory = begin(source, [], edits);
    walk(model, model.steps.slice(0, end), this.memory, edits);
    const once = ({ name }: { name: string }) => /cross_attention\.(key|value)$/.test(name);
    walk(model, model.steps.filter(once), this.memory, edits);
    this.steps = model.steps.slice(end).filter((step) => !once(step));
  }

  /** Appends one token to each row, and returns each row's logits of the next. Rows begin with BOS. */
  step(tokens: readonly number[]): Float32Array[] {
    isIn(this.model, [...tokens], "target_embedding");
    if (this.length >= this.model.config.max_length)
      throw new Error(`${this.length + 1} positions are over max_length = ${this.model.config.max_length}`);
    const now: Tensors = new Map();
    for (const { name, inputs } of this.steps) {
      const given = inputs.map((each) => (now.get(each) ?? this.memory.tensors.get(each))!);
      now.set(name, this.compute(name, given, tokens));
    }
    this.length++;
    const logits = now.get("output")!;
    return tokens.map((_, r) => row(logits, r));
  }

  /** Makes old row rows[i] the new row i; a row may be taken several times or not at all. */
  select(rows: readonly number[]): void {
    const copy = ({ key, value }: Past): Past => ({ key: [...key], value: [...value] });
    for (const [block, pasts] of this.pasts) this.pasts.set(block, rows.map((r) => copy(pasts[r]!)));
  }

  private compute(name: string, inputs: Values[], tokens: readonly number[]): Values {
    const [leaf, block] = [leafOf(name), blockOf(name)];
    const { model, edits, length } = this;
    const self = block.endsWith("self_attention");
    if (leaf === "table") return lookedUp(parameter(model, `${block}.table.weight`), [...tokens]);
    if (leaf === "positions") return this.places(block, tokens.length);
    if (self && (leaf === "key" || leaf === "value")) return this.append(name, block, leaf, inputs, tokens.length);
    if (leaf === "scores") return self ? this.lookBack(block, inputs[0]!) : scores(inputs[0]!, inputs[1]!, model.config.heads);
    if (leaf === "weights") {
      const allowed = open(edits, block, (_, key) => self || this.memory.sourceMask[key]!);
      // Every row asks from the same place.
      const found = distribution(inputs[0]!, (head, _, key) => allowed(head, length, key), block, length);
      this.maps.set(block, found);
      return found;
    }
    if (leaf === "heads") return self ? this.mixed(block, inputs[0]!) : heads(inputs[0]!, inputs[1]!, offIn(edits, block));
    return byPosition(model, name, inputs, edits);
  }

  private places(side: string, rows: number): Values {
    const out = tensor(rows, this.model.config.d_model);
    const place = this.edits.positions ? positions(this.model, side, this.length, 1).data : [];
    for (let r = 0; r < rows; r++) out.data.set(place, r * out.shape[1]!);
    return out;
  }

  private append(name: string, block: string, leaf: "key" | "value", inputs: Values[], rows: number): Values {
    const found = byPosition(this.model, name, inputs, this.edits);
    if (!this.pasts.has(block)) this.pasts.set(block, Array.from({ length: rows }, () => ({ key: [], value: [] })));
    const pasts = this.pasts.get(block)!;
    if (pasts.length !== rows) throw new Error(`${rows} tokens for ${pasts.length} rows`);
    pasts.forEach((past, r) => past[leaf].push(row(found, r).slice()));
    return found;
  }

  /** Scores of each row's query for its own keys: [h, r, k]. */
  private lookBack(block: string, q: Values): Values {
    const count = this.model.config.heads;
    const [rows, width] = q.shape as [number, number];
    const each = width / count;
    const out = tensor(count, rows, this.length + 1);
    const pasts = this.pasts.get(block)!;
    let at = 0;
    for (let h = 0; h < count; h++)
      for (let r = 0; r < rows; r++)
        for (const key of pasts[r]!.key)
          out.data[at++] = product(q.data, r * width + h * each, key, h * each, each) / Math.sqrt(each);
    return out;
  }

  /** Each row's values, mixed: [h, r, d_v]. */
  private mixed(block: string, weights: Values): Values {
    const [count, rows, keys] = weights.shape as [number, number, number];
    const each = this.model.config.d_v;
    const out = tensor(count, rows, each);
    const off = offIn(this.edits, block);
    const mixture = new Float64Array(each);
    for (let h = 0; h < count; h++)
      for (let r = 0; r < rows && !off.includes(h); r++) {
        mixture.fill(0);
        this.pasts.get(block)![r]!.value.forEach((value, j) =>
          addTimes(mixture, weights.data[(h * rows + r) * keys + j]!, value, h * each),
        );
        out.data.set(mixture, (h * rows + r) * each);
      }
    return out;
  }
}
