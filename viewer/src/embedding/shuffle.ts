// What the model makes of the source's pieces in another order, with positions and without.
import type { Engine } from "../engine/engine";
import { Decoding, forward } from "../engine/forward";
import { UNCHANGED, type Edits } from "../engine/model";
import { described, limitFor, search } from "../engine/search";
import { random } from "../lib/maths";
import { row, type Values } from "../lib/tensor";
import { difference } from "./rows";

/** A permutation of 0 … n − 1 that leaves the last one, EOS, where it is. */
export function shuffled(n: number, seed: number): number[] {
  const order = Array.from({ length: n }, (_, i) => i);
  const draw = random(seed);
  for (let i = n - 2; i > 0; i--) {
    const j = Math.floor(draw() * (i + 1));
    [order[i], order[j]] = [order[j]!, order[i]!];
  }
  return order;
}

export interface Told {
  text: string; // greedy translation
  memory: Values; // [s, d], the encoder's rows
}

/** Encodes and translates these ids. */
export function told(engine: Engine, source: number[], decoderInput: number[], edits: Partial<Edits>): Told {
  const { model, target } = engine;
  const all = { ...UNCHANGED, ...edits };
  const limit = limitFor(source.length - 1, [], model.config.max_length);
  const tree = search(new Decoding(model, source, all), { beam: 1, alpha: 0, limit, prefix: [] });
  return {
    text: described(tree, target).hypotheses[0]?.text ?? "",
    memory: forward(model, source, decoderInput, all).tensors.get("encoder_norm")!,
  };
}

/** Largest difference between row i of `after` and row order[i] of `before`: 0 where only the order changed. */
export const beyondOrder = (before: Values, after: Values, order: readonly number[]): number =>
  Math.max(...order.map((from, i) => difference(row(before, from), row(after, i))));
