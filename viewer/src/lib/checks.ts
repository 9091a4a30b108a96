// The invariants again, computed here from the very numbers that the page draws.
import { recordedOf } from "./backend";
import type { Invariant, Search, Token, Trace } from "./document";
import { PATTERNS, blocksOf, mayAttend, patternOf } from "./maps";
import { dot, entropy, lengthPenalty, softmax, total } from "./maths";
import { get, row, values, type Values } from "./tensor";

/** The largest deviation of many; one that is not a number stays, and is never ok. */
class Worst {
  worst = 0;
  checked = 0;
  see(deviation: number): void {
    this.checked++;
    if (!Number.isNaN(this.worst) && !(deviation <= this.worst)) this.worst = deviation;
  }
  /** A shape that does not fit: nothing could be compared. */
  misfit(): void {
    this.see(Infinity);
  }
  as(id: string, label: string, tolerance: number): Invariant {
    const ok = this.worst <= tolerance;
    const worst = this.checked && Number.isFinite(this.worst) ? this.worst : null;
    return { id, label, ok, worst, tolerance, checked: this.checked };
  }
}

/** The maps that are there: [heads, queries, keys] each. */
function* maps(trace: Trace): Generator<[string, Values]> {
  for (const block of blocksOf(trace)) {
    const weights = get(trace, `${block}.weights`);
    if (weights) yield [block, weights];
  }
}

const sides = (trace: Trace, block: string): [number, number] => {
  const length = { source: trace.source.tokens.length, target: trace.target.input.length };
  const { queries, keys } = PATTERNS[patternOf(block)];
  return [length[queries], length[keys]];
};

export function rowsSumTo1(trace: Trace): Invariant {
  const worst = new Worst();
  for (const [, { shape, data }] of maps(trace)) {
    const keys = shape[2]!;
    for (let at = 0; at < data.length; at += keys) {
      let sum = 0;
      let below = 0;
      for (let j = at; j < at + keys; j++) {
        sum += data[j]!;
        below = Math.min(below, data[j]!);
      }
      worst.see(Math.max(Math.abs(sum - 1), -below));
    }
  }
  return worst.as("rows_sum_1", "Each row of attention weights is at least 0 and sums to 1", 1e-5);
}

/** The mask itself is looked at too: one that lets a later piece through is a leak. */
export function causalZero(trace: Trace): Invariant {
  const worst = new Worst();
  const mask = trace.masks.target;
  const open = trace.changes?.causal === false; // the reader took the mask away
  for (const [block, { shape, data }] of maps(trace)) {
    if (open || patternOf(block) !== "decoder_self") continue;
    const [heads, queries, keys] = shape as [number, number, number];
    for (let h = 0; h < heads; h++)
      for (let i = 0; i < queries; i++)
        for (let j = i + 1; j < keys; j++)
          worst.see(Math.max(Math.abs(data[(h * queries + i) * keys + j]!), mask[i]?.[j] ? 1 : 0));
  }
  return worst.as("causal_zero", "No weight on a later piece: exactly 0", 0);
}

/** [columns of pieces, columns of padding] of the padded maps, row by row. */
function* padded(trace: Trace): Generator<[Float32Array, Float32Array, Float32Array] | null> {
  for (const [block, alone] of maps(trace)) {
    const beside = trace.padded.weights[block] ?? trace.padded.weights[`${block}.weights`];
    if (!beside) continue;
    const { shape, data } = values(beside);
    const [heads, queries, keys] = alone.shape as [number, number, number];
    const [h2, q2, k2] = shape as [number, number, number];
    if (h2 !== heads || q2 < queries || k2 < keys) {
      yield null;
      continue;
    }
    for (let h = 0; h < heads; h++)
      for (let i = 0; i < queries; i++) {
        const [a, b] = [(h * queries + i) * keys, (h * q2 + i) * k2];
        yield [alone.data.subarray(a, a + keys), data.subarray(b, b + keys), data.subarray(b + keys, b + k2)];
      }
  }
}

export function padZero(trace: Trace): Invariant {
  const worst = new Worst();
  for (const rows of padded(trace)) {
    if (rows) for (const weight of rows[2]) worst.see(Math.abs(weight));
    else worst.misfit();
  }
  return worst.as("pad_zero", "No weight on padding: exactly 0", 0);
}

export function batchedEqualsSingle(trace: Trace): Invariant {
  const worst = new Worst();
  for (const rows of padded(trace)) {
    if (rows) rows[0].forEach((weight, j) => worst.see(Math.abs(weight - rows[1][j]!)));
    else worst.misfit();
  }
  return worst.as("batched_equals_single", "In a batch beside a longer sentence as alone", 1e-5);
}

export function incrementalEqualsTeacher(trace: Trace): Invariant {
  const worst = new Worst();
  for (const [block, { data }] of maps(trace)) {
    const stepwise = trace.cached.weights[block] ?? trace.cached.weights[`${block}.weights`];
    if (!stepwise) continue;
    const again = values(stepwise).data;
    if (again.length !== data.length) worst.misfit();
    else data.forEach((weight, i) => worst.see(Math.abs(weight - again[i]!)));
  }
  return worst.as("incremental_equals_teacher", "Word by word with a cache as all words at once", 1e-4);
}

/** Words, axes and numbers belong together. A deviation counts as 1. */
export function axesFit(trace: Trace, tie = "none"): Invariant {
  const worst = new Worst();
  const expect = (fits: boolean) => worst.see(fits ? 0 : 1);
  const { input, labels } = trace.target;
  const { top, rank, log_probs } = trace.output;
  const same = (a: Token | undefined, b: Token | undefined) => !!a && !!b && a.id === b.id && a.piece === b.piece;
  for (const [block, { shape }] of maps(trace)) {
    const [queries, keys] = sides(trace, block);
    expect(shape.length === 3 && shape[1] === queries && shape[2] === keys);
  }
  expect(trace.masks.source.length === trace.source.tokens.length);
  expect(trace.masks.target.length === input.length && trace.masks.target.every((r) => r.length === input.length));
  expect(input.length === labels.length && top.length === labels.length);
  input.slice(1).forEach((token, i) => expect(same(token, labels[i])));
  labels.forEach((label, i) => {
    const at = top[i]?.[rank[i]! - 1];
    if (rank[i]! <= (top[i]?.length ?? 0)) {
      expect(same(at, label));
      expect(!!at && Math.abs(Math.log(at.p) - log_probs[i]!) < 1e-3 * (1 + Math.abs(log_probs[i]!)));
    }
    top[i]?.forEach((each, k) => expect(k === 0 || each.logit <= top[i]![k - 1]!.logit));
  });
  for (const fits of outputFits(trace)) expect(fits);
  if (!trace.source.cut) expect(spells(trace.source.tokens, trace.source.text));
  expect(spells(labels, trace.target.text));
  for (const [side, tokens] of [["source", trace.source.tokens], ["target", input]] as const) {
    const table = get(trace, `${side}_embedding.table`);
    if (table) for (const fits of rowsFit(tokens, table)) expect(fits);
    if (table && (tie === "all" || (tie === "decoder" && side === "target")))
      for (const fits of idsFit(trace, tokens, table)) expect(fits);
  }
  expect(trace.source.tokens.at(-1)?.piece === "EOS" && input[0]?.piece === "BOS");
  return worst.as("axes", "Words, axes of maps and ids belong together", 0);
}

const near = (a: number, b: number) => Math.abs(a - b) <= 1e-6 * (1 + Math.abs(b)); // false for NaN

/** What is said of each distribution is so in the logits. */
function* outputFits({ output, target, tensors }: Trace): Generator<boolean> {
  yield near(output.log_prob, total(output.log_probs));
  for (const top of output.top)
    for (const { p, logit } of top) yield near(p, top[0]!.p * Math.exp(logit - top[0]!.logit));
  if (!tensors.output) return;
  const logits = values(tensors.output);
  for (const [i, { id }] of target.labels.entries()) {
    const p = softmax(row(logits, i))!;
    for (const each of output.top[i]!) yield near(each.logit, row(logits, i)[each.id]!) && near(each.p, p[each.id]!);
    yield near(output.log_probs[i]!, Math.log(p[id]!)) && near(output.entropy[i]!, entropy(p));
    const [above, equal] = [p.filter((x) => x > p[id]!), p.filter((x) => x === p[id])];
    yield above.length < output.rank[i]! && output.rank[i]! <= above.length + equal.length;
  }
}

/** The pieces, put together, are the text; what is not spelt out (bytes, UNK) can be anything. */
function spells(tokens: Token[], text: string): boolean {
  const pieces = tokens.filter(({ id, special }) => !special || id === 3).map(({ piece }) => piece);
  if (tokens.some(({ id }) => id === 3) || pieces.some((piece) => /^<0x..>$/.test(piece))) return true;
  return pieces.join("").replaceAll("▁", " ").trim() === text.trim();
}

/** Two places of one id got one row of the table, two ids two. */
function* rowsFit(tokens: Token[], { shape, data }: Values): Generator<boolean> {
  const [count, width] = shape as [number, number];
  yield count === tokens.length;
  for (let i = 0; i < Math.min(count, tokens.length); i++)
    for (let j = 0; j < i; j++) {
      let equal = true;
      for (let f = 0; f < width && equal; f++) equal = data[i * width + f] === data[j * width + f];
      yield equal === (tokens[i]!.id === tokens[j]!.id);
    }
}

/** Where one table embeds and gives the logits: the logit of a piece's id is its own row, times x. */
function* idsFit(trace: Trace, tokens: Token[], table: Values): Generator<boolean> {
  const [x, logits] = [get(trace, "decoder_norm"), get(trace, "output")];
  if (!x || !logits || tokens.length > table.shape[0]!) return;
  for (const [i, token] of tokens.entries()) {
    const again = dot(row(x, 0), row(table, i));
    yield Math.abs(again - logits.data[token.id]!) < 1e-3 * (1 + Math.abs(again));
  }
}

// Small functions, since a browser makes them fast long before it does so with the loops around them.
function product(a: Float32Array, i: number, b: Float32Array, j: number, count: number): number {
  let sum = 0;
  for (let f = 0; f < count; f++) sum += a[i + f]! * b[j + f]!;
  return sum;
}
function addTimes(out: Float64Array, weight: number, rows: Float32Array, at: number): void {
  for (let f = 0; f < out.length; f++) out[f]! += weight * rows[at + f]!;
}

/** Scores, weights and mixed values of every head, from what went into them. */
export function replay(trace: Trace): Invariant {
  const worst = new Worst();
  const see = (recorded: number, again: number) =>
    worst.see(Math.abs(recorded - again) / (1 + Math.abs(again)));
  for (const [block, weights] of maps(trace)) {
    const [query, key, value, scores, mixed] = ["query", "key", "value", "scores", "heads"].map((leaf) =>
      get(trace, `${block}.${leaf}`),
    );
    if (!query || !key || !value || !scores || !mixed) continue;
    const [heads, queries, keys] = weights.shape as [number, number, number];
    const [d, dk, dv] = [query.shape[1]!, query.shape[1]! / heads, value.shape[1]! / heads];
    const off = trace.off.filter(([name]) => name === block).map(([, head]) => head);
    const may = mayAttend(trace, block);
    const masked = new Float64Array(keys);
    const mixture = new Float64Array(dv);
    const fits = scores.data.length === weights.data.length && key.shape[0] === keys &&
      query.shape[0] === queries && value.shape[0] === keys && mixed.data.length === heads * queries * dv;
    if (!fits) {
      worst.misfit();
      continue;
    }
    for (let h = 0; h < heads; h++)
      for (let i = 0; i < queries; i++) {
        const at = (h * queries + i) * keys;
        const a = i * d + h * dk;
        mixture.fill(0);
        for (let j = 0; j < keys; j++) {
          const b = j * d + h * dk;
          const c = (j * heads + h) * dv;
          see(scores.data[at + j]!, product(query.data, a, key.data, b, dk) / Math.sqrt(dk));
          masked[j] = may(h, i, j) ? scores.data[at + j]! : -Infinity;
          addTimes(mixture, weights.data[at + j]!, value.data, c);
        }
        const again = softmax(masked);
        for (let j = 0; j < keys; j++) see(weights.data[at + j]!, again ? again[j]! : NaN);
        for (let f = 0; f < dv; f++)
          see(mixed.data[(h * queries + i) * dv + f]!, off.includes(h) ? 0 : mixture[f]!);
      }
  }
  for (const { name, inputs } of trace.steps) {
    const [out, a, b] = [name, ...inputs].map((each) => get(trace, each));
    if (!/(\.sum|_embedding)$/.test(name) || !out || !a || !b) continue;
    const times = name.endsWith(".sum") || trace.changes?.scale === false ? 1 : Math.sqrt(out.shape[1]!);
    out.data.forEach((x, i) => see(x, times * a.data[i]! + b.data[i]!));
  }
  return worst.as("replay", "Attention, sums and embeddings computed again from what went into them", 1e-4);
}

/** The sums of each search are those of its paths, and the first output's that of the forced pass. */
export function searchesFit(trace: Trace): Invariant {
  const worst = new Worst();
  const see = (told: number, again: number) => worst.see(Math.abs(told - again) / (1 + Math.abs(again)));
  for (const { nodes, hypotheses, alpha } of Object.values<Search>(trace.searches)) {
    const at = new Map<number | null | undefined, Search["nodes"][0]>(nodes.map((node) => [node.id, node]));
    for (const { sum, parent, log_prob } of nodes) see(sum, (parent === null ? 0 : (at.get(parent)?.sum ?? NaN)) + log_prob);
    hypotheses.forEach(({ node, sum, length, penalty, score, tokens }, i) => {
      see(sum, at.get(node)?.sum ?? NaN);
      see(penalty, lengthPenalty(length, alpha));
      see(score, sum / penalty);
      let step = at.get(node);
      let fits = length === tokens.length && score <= (hypotheses[i - 1]?.score ?? Infinity);
      for (const token of tokens.toReversed()) {
        fits &&= step?.token.id === token.id;
        step = at.get(step?.parent);
      }
      if (!fits || step) worst.misfit();
    });
  }
  const [first] = trace.searches.beam.hypotheses;
  if (first && !trace.target.given) see(first.sum, trace.output.log_prob);
  return worst.as("search_equals_forced", "Sums of searches are those of their paths, and of the forced pass", 1e-4);
}

/** What PyTorch recorded of the labels, where the model in this file has computed all tensors. */
export function pageEqualsPytorch(trace: Trace): Invariant {
  const worst = new Worst();
  const told = recordedOf.get(trace)?.output.log_probs ?? [];
  if (told.length !== trace.output.log_probs.length || !trace.tensors.output) worst.misfit();
  told.forEach((each, i) => worst.see(Math.abs(each - trace.output.log_probs[i]!)));
  return worst.as("page_equals_pytorch", "The model in this page says of each label what PyTorch recorded", 1e-4);
}

const ALL: [string, (trace: Trace, tie: string) => Invariant][] = [
  ["rows_sum_1", rowsSumTo1],
  ["causal_zero", causalZero],
  ["pad_zero", padZero],
  ["batched_equals_single", batchedEqualsSingle],
  ["incremental_equals_teacher", incrementalEqualsTeacher],
  ["replay", replay],
  ["axes", axesFit],
  ["search_equals_forced", searchesFit],
];
const done = new WeakMap<Trace, Invariant[]>();

/** All of this page's checks of a trace, once; `tie` is the model's. */
export function checks(trace: Trace, tie: string): Invariant[] {
  let found = done.get(trace);
  if (!found) {
    const apply = recordedOf.has(trace) ? [...ALL, ["page_equals_pytorch", pageEqualsPytorch] as const] : ALL;
    found = apply.map(([id, check]) => {
      try {
        return check(trace, tie);
      } catch (error) {
        return { id, label: String(error), ok: false, worst: null, tolerance: 0, checked: 0 };
      }
    });
    done.set(trace, found);
  }
  return found;
}

export interface Verdict {
  id: string;
  label: string;
  recorded: Invariant | null; // by Python
  here: Invariant | null; // by this page, from the payload
  ok: boolean; // neither says no
  checked: boolean; // at least one had something to look at
}

/** Python's invariants and this page's, an id a row. */
export function verdicts(trace: Trace, tie: string): Verdict[] {
  const here = checks(trace, tie);
  const ids = new Set([...here, ...trace.invariants].map((each) => each.id));
  return [...ids].map((id) => {
    const mine = here.find((each) => each.id === id) ?? null;
    const found = trace.invariants.find((each) => each.id === id) ?? null;
    const recorded = found && { ...found, ok: found.ok && (!found.checked || (found.worst ?? NaN) <= found.tolerance) };
    const both = [mine, recorded].filter((each) => each !== null);
    const ok = both.every((each) => each.ok);
    const label = (mine ?? recorded)!.label;
    return { id, label, recorded, here: mine, ok, checked: both.some((each) => each.checked > 0) };
  });
}
