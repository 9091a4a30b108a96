// A step computed again from its recorded inputs, and one number of it taken apart: the paper's formulas.
import { ACTIVATIONS, join, layerNorm, linear } from "../engine/forward";
import type { Cell, ModelInfo, Step, Trace } from "../lib/document";
import { exact, number } from "../lib/format";
import { patternOf } from "../lib/maps";
import { moments } from "../lib/maths";
import { get, row, type Values } from "../lib/tensor";
import { period, wavesOf } from "../lib/waves";

export interface Term {
  label: string;
  a: number;
  b: number | null; // a · b, or a alone
}

/** One number of a step: what is summed, and what is then done with the sum. */
export interface One {
  terms: Term[];
  then: string;
  value: number;
}

export interface Replay {
  numbers: ArrayLike<number>; // row-major, as the recorded ones
  worst: number; // largest difference to them
  one: (index: number[]) => One;
}

export type Parameter = (name: string) => Values | null;

const times = (a: number, b: number | null): number => (b === null ? a : a * b);
const sumOf = (terms: readonly Term[]): number => terms.reduce((sum, { a, b }) => sum + times(a, b), 0);
/** The largest first, and the sum of the others. */
export function biggest(terms: readonly Term[], most: number): { shown: Term[]; rest: number; others: number } {
  const order = terms.toSorted((x, y) => Math.abs(times(y.a, y.b)) - Math.abs(times(x.a, x.b)));
  return { shown: order.slice(0, most), rest: sumOf(order.slice(most)), others: Math.max(0, order.length - most) };
}

const WEIGHTS = /\.(table|query|key|value|output|inner|outer|norm)$|^output$/;
/** Does this step need parameters of the model? */
export const needsWeights = (step: Step, config: ModelInfo["config"]): boolean =>
  WEIGHTS.test(step.name) ||
  (step.name.endsWith(".positions") && config.positions === "learned") ||
  (/^(en|de)coder_norm$/.test(step.name) && config.norm === "pre");

/** Null: its numbers or those of its inputs were left out. Throws where a parameter is missing. */
export function replay(trace: Trace, step: Step, config: ModelInfo["config"], parameter: Parameter): Replay | null {
  const recorded = get(trace, step.name);
  const inputs = step.inputs.map((name) => get(trace, name));
  const made = /\.(table|positions)$/.test(step.name);
  const [x, y] = inputs;
  if (!recorded || (!x && !made) || (!y && /\.(scores|heads|sum)$|_embedding$/.test(step.name))) return null;
  const given = (name: string): Values => {
    const found = parameter(name);
    if (!found) throw new Error(`${name} is not in this file`);
    return found;
  };
  const { one, numbers } = made ? embedded(trace, step, config, given) : computed(trace, step, config, given, x!, y ?? null);
  const all = numbers ?? each(recorded.shape, one);
  let worst = 0;
  for (let i = 0; i < all.length; i++) worst = Math.max(worst, Math.abs(all[i]! - recorded.data[i]!));
  return { numbers: all, worst, one };
}

interface Formula {
  one: (index: number[]) => One;
  /** All at once, where one by one would be slow. */
  numbers?: Float32Array;
}

function each(shape: number[], one: (index: number[]) => One): Float64Array {
  const out = new Float64Array(shape.reduce((a, b) => a * b, 1));
  for (let at = 0; at < out.length; at++) {
    const index = shape.map(() => 0);
    let rest = at;
    for (let k = shape.length - 1; k >= 0; k--) {
      index[k] = rest % shape[k]!;
      rest = Math.floor(rest / shape[k]!);
    }
    out[at] = one(index).value;
  }
  return out;
}

function embedded(trace: Trace, step: Step, config: ModelInfo["config"], given: (name: string) => Values): Formula {
  const side = step.name.split("_")[0]!;
  if (step.name.endsWith(".table")) {
    const table = given(`${step.name}.weight`);
    const tokens = side === "source" ? trace.source.tokens : trace.target.input;
    return { one: ([i, j]) => ({ terms: [], then: `row ${tokens[i!]!.id}, column ${j} of the table`, value: row(table, tokens[i!]!.id)[j!]! }) };
  }
  if (trace.changes?.positions === false) return { one: () => ({ terms: [], then: "positions are off", value: 0 }) };
  if (config.positions === "learned") {
    const rows = given(step.name);
    return { one: ([i, j]) => ({ terms: [], then: `row ${i}, column ${j} of P`, value: row(rows, i!)[j!]! }) };
  }
  const waves = wavesOf(config);
  return {
    one: ([i, j]) => {
      const half = waves.d / 2;
      const sine = waves.halves ? j! < half : j! % 2 === 0;
      const pair = waves.halves ? j! % half : Math.floor(j! / 2);
      const angle = (i! + waves.offset) / period(waves, pair);
      return { terms: [], then: `${sine ? "sin" : "cos"}(${i! + waves.offset} / ${number(period(waves, pair))}) = ${sine ? "sin" : "cos"}(${number(angle)})`, value: sine ? Math.sin(angle) : Math.cos(angle) };
    },
  };
}

function computed(
  trace: Trace, step: Step, config: ModelInfo["config"], given: (name: string) => Values, x: Values, y: Values | null,
): Formula {
  const leaf = step.name.slice(step.name.lastIndexOf(".") + 1);
  const root = trace.changes?.scale === false ? 1 : Math.sqrt(config.d_model);
  const plus = (scale: number) => ([i, j]: number[]): One => {
    const [a, b] = [row(x, i!)[j!]!, row(y!, i!)[j!]!];
    const terms = [{ label: step.inputs[0]!, a, b: scale === 1 ? null : scale }, { label: step.inputs[1]!, a: b, b: null }];
    return { terms, then: "", value: sumOf(terms) };
  };
  if (leaf.endsWith("_embedding")) return { one: plus(root) };
  if (leaf === "sum") return { one: plus(1) };
  if (leaf === "activation") {
    const bend = ACTIVATIONS[config.activation]!;
    return { one: ([i, j]) => ({ terms: [], then: `${config.activation}(${number(row(x, i!)[j!]!)})`, value: bend(row(x, i!)[j!]!) }) };
  }
  if (/^(en|de)coder_norm$/.test(leaf) && config.norm === "post")
    return { one: ([i, j]) => ({ terms: [], then: "x, as it is", value: row(x, i!)[j!]! }) };
  if (leaf.endsWith("norm")) return normed(step, config, given, x);
  if (leaf === "scores") return scored(x, y!, config.heads);
  if (leaf === "weights") return weighed(trace, step, x);
  if (leaf === "heads") return mixed(trace, step, x, y!);
  const flat = x.shape.length === 3 ? join(x) : x;
  const [weight, bias] = [given(`${step.name}.weight`), step.name === "output" ? null : given(`${step.name}.bias`)];
  return {
    numbers: linear(flat, weight, bias).data,
    one: ([i, j]) => {
      const terms: Term[] = Array.from(row(flat, i!), (a, c) => ({ label: `x[${c}] · W[${c}, ${j}]`, a, b: row(weight, j!)[c]! }));
      if (bias) terms.push({ label: `b[${j}]`, a: bias.data[j!]!, b: null });
      return { terms, then: "", value: sumOf(terms) };
    },
  };
}

function normed(step: Step, config: ModelInfo["config"], given: (name: string) => Values, x: Values): Formula {
  const epsilon = Number(config.layer_norm_epsilon ?? 1e-6);
  const [gamma, beta] = [given(`${step.name}.weight`), given(`${step.name}.bias`)];
  return {
    numbers: layerNorm(x, gamma, beta, epsilon).data,
    one: ([i, j]) => {
      const { mean, variance } = moments(row(x, i!));
      const [a, g, b] = [row(x, i!)[j!]!, gamma.data[j!]!, beta.data[j!]!];
      const deviation = Math.sqrt(variance + epsilon);
      return { terms: [], then: `(${number(a)} − ${number(mean)}) / ${number(deviation)} · ${number(g)} + ${number(b)}`, value: ((a - mean) / deviation) * g + b };
    },
  };
}

function scored(q: Values, k: Values, heads: number): Formula {
  const width = q.shape[1]! / heads;
  const of = (x: Values, i: number, h: number) => row(x, i).subarray(h * width, (h + 1) * width);
  return {
    one: ([h, i, j]) => {
      const keys = of(k, j!, h!);
      const terms = Array.from(of(q, i!, h!), (a, c) => ({ label: `q[${c}] · k[${c}]`, a, b: keys[c]! }));
      return { terms, then: `÷ √${width}`, value: sumOf(terms) / Math.sqrt(width) };
    },
  };
}

function weighed(trace: Trace, step: Step, scores: Values): Formula {
  const block = step.name.slice(0, -8);
  const causal = patternOf(block) === "decoder_self";
  const cells = trace.changes?.blocked.filter((cell: Cell) => cell.block === block) ?? [];
  const open = (h: number, i: number, j: number) =>
    (causal ? trace.masks.target[i]![j]! : trace.masks.source[j]!) &&
    !cells.some((cell) => (cell.head ?? h) === h && cell.query === i && cell.key === j);
  return {
    one: ([h, i, j]) => {
      const all = row(scores, h!, i!);
      const keys = Array.from(all.keys()).filter((key) => open(h!, i!, key));
      const top = Math.max(...keys.map((key) => all[key]!));
      const terms = keys.map((key) => ({ label: `exp(score of key ${key} − ${exact(top, 4)})`, a: Math.exp(all[key]! - top), b: null }));
      if (!open(h!, i!, j!)) return { terms, then: "this key is blocked: exactly 0", value: 0 };
      const own = Math.exp(all[j!]! - top);
      return { terms, then: `key ${j}: ${number(own)} ÷ that sum`, value: own / sumOf(terms) };
    },
  };
}

function mixed(trace: Trace, step: Step, weights: Values, v: Values): Formula {
  const block = step.name.slice(0, -6);
  const off = trace.off.filter(([name]) => name === block).map(([, head]) => head);
  const width = v.shape[1]! / weights.shape[0]!;
  return {
    one: ([h, i, j]) => {
      if (off.includes(h!)) return { terms: [], then: "this head is off", value: 0 };
      const terms = Array.from(row(weights, h!, i!), (a, key) => ({ label: `weight of key ${key} · v[${key}, ${h! * width + j!}]`, a, b: row(v, key)[h! * width + j!]! }));
      return { terms, then: "", value: sumOf(terms) };
    },
  };
}
