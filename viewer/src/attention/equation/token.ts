// The numbers of one query of a recorded trace, for the equation.
import { attentionMap, rowOf } from "../../lib/maps";
import { get, row, type Values } from "../../lib/tensor";
import type { Token, Trace } from "../../lib/document";
import type { Inputs } from "./equation";

export interface Recorded {
  inputs: Inputs;
  asking: Token;
  keys: readonly Token[];
  /** What the model itself computed here. */
  weights: number[];
  output: number[];
}

/** Null: the trace leaves these tensors out. */
export function recorded(trace: Trace, block: string, head: number, position: number): Recorded | null {
  const tensors = ["query", "key", "value", "weights", "heads"].map((leaf) => get(trace, `${block}.${leaf}`));
  if (tensors.includes(null)) return null;
  const [q, k, v, w, o] = tensors as [Values, Values, Values, Values, Values];
  const heads = w.shape[0]!;
  const slice = (all: Float32Array) => {
    const width = all.length / heads;
    return Array.from(all.subarray(head * width, (head + 1) * width));
  };
  const map = attentionMap(trace, block, head);
  const { queries, keys } = map;
  return {
    inputs: {
      q: slice(row(q, position)),
      keys: keys.tokens.map((_, j) => slice(row(k, j))),
      values: keys.tokens.map((_, j) => slice(row(v, j))),
      blocked: keys.tokens.map((_, j) => !map.allowed(position, j)),
      scores: null,
      divided: true,
      blocking: "minus_infinity",
    },
    asking: queries.tokens[position]!,
    keys: keys.tokens,
    weights: rowOf(map, position),
    output: Array.from(row(o, head, position)),
  };
}

/** The largest difference between two lists of numbers. */
export const worst = (a: readonly number[], b: readonly number[]): number =>
  a.reduce((most, x, i) => Math.max(most, Math.abs(x - b[i]!)), 0);
