// The attention equation for one query, one operation at a time; and what may be done to its numbers.
import { exact, list } from "../../lib/format";
import { dot, mix, put, softmax, total } from "../../lib/maths";

export interface Inputs {
  q: number[];
  keys: number[][];
  values: number[][];
  blocked: boolean[];
  /** Scaled scores that were set by hand; null: they follow from q·k. */
  scores: number[] | null;
  /** Whether q·k is divided by √d_k. */
  divided: boolean;
  /** What blocking does: −∞ before the softmax, or one of two mistakes. */
  blocking: "minus_infinity" | "score_zero" | "zero_after";
}

export interface Outcome {
  raw: number[];
  scaled: number[];
  masked: number[];
  /** Subtracted before exp: 0, or the largest score where exp would not fit into a float64. */
  shift: number;
  exp: number[];
  denominator: number;
  /** Null: all keys are blocked, and no distribution exists. */
  weights: number[] | null;
  sum: number | null;
  output: number[] | null;
  /** Row j: how the output moves when the scaled score of key j rises, w_j (v_j − o). */
  jacobian: number[][] | null;
  /** After zero_after: the same weights, divided by their sum. */
  repaired: { weights: number[]; output: number[] } | null;
}

export const GUIDE: Inputs = {
  q: [1, 0],
  keys: [[1, 0], [0, 1], [1, 1]],
  values: [[2, 0], [0, 2], [2, 2]],
  blocked: [false, false, false],
  scores: null,
  divided: true,
  blocking: "minus_infinity",
};

const rawScores = (x: Inputs): number[] => x.keys.map((k) => dot(x.q, k));

function scaledScores(x: Inputs): number[] {
  const by = x.divided ? Math.sqrt(x.q.length) : 1;
  return x.scores ?? rawScores(x).map((s) => s / by);
}

export function compute(x: Inputs): Outcome {
  const raw = rawScores(x);
  const scaled = scaledScores(x);
  const instead = { minus_infinity: -Infinity, score_zero: 0, zero_after: null }[x.blocking];
  const masked = scaled.map((s, j) => (x.blocked[j] && instead !== null ? instead : s));
  const top = Math.max(...masked);
  const shift = Number.isFinite(top) && Math.abs(top) > 700 ? top : 0;
  const exp = masked.map((s) => Math.exp(s - shift));
  const full = softmax(masked);
  const nothing = { raw, scaled, masked, shift, exp, denominator: total(exp) };
  if (!full || x.blocked.every(Boolean))
    return { ...nothing, weights: null, sum: null, output: null, jacobian: null, repaired: null };

  const after = x.blocking === "zero_after";
  const weights = full.map((w, j) => (after && x.blocked[j] ? 0 : w));
  const sum = total(weights);
  const output = mix(weights, x.values);
  const whole = weights.map((w) => w / sum);
  return {
    ...nothing,
    weights,
    sum,
    output,
    jacobian:
      x.blocking === "minus_infinity" || !x.blocked.some(Boolean)
        ? weights.map((w, j) => x.values[j]!.map((v, i) => w * (v - output[i]!)))
        : null,
    repaired: after ? { weights: whole, output: mix(whole, x.values) } : null,
  };
}

/** What a preset needs to know besides the numbers it starts from. */
export interface Choice {
  key: number;
  by: number;
}

const zeros = (x: Inputs): number[] => x.keys.map(() => 0);
const raise = (scores: number[], { key, by }: Choice): number[] =>
  put(scores, key, scores[key]! + by);
const block = (x: Inputs, { key }: Choice): Inputs => ({
  ...x,
  blocked: put(x.blocked, key, true),
});

/** Each starts from the untouched numbers, so that what it shows does not depend on what was before. */
export const PRESETS: Record<string, (x: Inputs, choice: Choice) => Inputs> = {
  guide: (x) => x,
  equal: (x) => ({ ...x, scores: zeros(x) }),
  "no-scale": (x) => ({ ...x, divided: false }),
  "raise-equal": (x, c) => ({ ...x, scores: raise(zeros(x), c) }),
  "raise-guide": (x, c) => ({ ...x, scores: raise(scaledScores(x), c) }),
  level: (x, c) => ({
    ...x,
    scores: put(scaledScores(x), c.key, Math.max(...scaledScores(x))),
  }),
  saturate: (x, c) => ({ ...x, scores: raise(zeros(x), { key: c.key, by: 20 }) }),
  "add-1000": (x) => ({ ...x, scores: scaledScores(x).map((s) => s + 1000) }),
  block: (x, c) => block(x, c),
  "block-equal": (x, c) => block({ ...x, scores: zeros(x) }, c),
  "block-all": (x) => ({ ...x, blocked: x.blocked.map(() => true) }),
  "wrong-a": (x, c) => ({ ...block(x, c), blocking: "score_zero" }),
  "wrong-b": (x, c) => ({ ...block(x, c), blocking: "zero_after" }),
};

/** The result, in a sentence or two. */
export function describe(x: Inputs, o: Outcome, names: string[]): string {
  if (!o.weights || !o.output)
    return "No distribution exists: a query needs at least one key. transduce refuses it with an AttentionError.";
  const top = Math.max(...o.weights);
  const most = names.filter((_, j) => top - o.weights![j]! < 1e-9);
  const who =
    most.length === names.length
      ? `All ${names.length} keys have the same weight, ${exact(top)}`
      : most.length > 1
        ? `Most weight is shared by ${most.join(" and ")}, ${exact(top)} each`
        : `Most weight is on ${most[0]}, ${exact(top)}`;
  const out = x.values[0]!.length <= 4 ? `; the output is ${list(o.output)}` : "";
  const first = `${who}; the weights sum to ${exact(Number(o.sum!.toFixed(9)))}${out}.`;
  const shut = names.filter((_, j) => x.blocked[j]);
  if (x.blocking === "score_zero" && shut.length)
    return `${first} Wrong: a score of 0 is not “blocked”: exp(0) = 1, so ${shut.join(", ")} still gets weight.`;
  if (o.repaired && shut.length)
    return `${first} Wrong: what is left no longer sums to 1. Divided by its sum it would be right.`;
  if (o.shift) return `${first} exp of such scores does not fit; the largest is subtracted first, which changes no weight.`;
  if (top > 0.999 && x.keys.length > shut.length + 1)
    return `${first} Saturated: the others’ weights are tiny but not 0, and a small change of a score moves the output hardly at all.`;
  return first;
}
