// How much each piece matters to one label, by three measures, and how far they agree.
import type { Trace } from "../../lib/document";
import { attentionMap, blockName, has, rowOf, type Side } from "../../lib/maps";
import { largest, total } from "../../lib/maths";
import { row, values, type Values } from "../../lib/tensor";
import { hidden } from "./hidden.svelte";

export const WAYS = { attention: "attention weight", occlusion: "occlusion", gradient: "gradient × input" };
export type Way = keyof typeof WAYS;
export const PAIRS: [Way, Way][] = [["attention", "occlusion"], ["attention", "gradient"], ["occlusion", "gradient"]];

/** The attention that a side is read by, on a layer of the decoder. */
export const blockOf = (side: Side, layer: number): string => blockName(side === "source" ? "cross" : "decoder_self", layer);

/** Recorded, or by the model inside the page. */
function measured(trace: Trace, way: "occlusion" | "gradient", side: Side): Values | null {
  if (trace.attribution) {
    const found = values(trace.attribution[way][side]);
    if (!found.data.every(Number.isFinite)) throw new Error(`${way} of the ${side}: not all of its numbers are finite`);
    return found;
  }
  return way === "occlusion" ? (hidden.of(trace)?.[side] ?? null) : null;
}

/** Of each piece of a side for the label at a position: of target pieces those that it could see. Null: not in this trace. */
export function numbers(trace: Trace, way: Way, side: Side, position: number, layer: number, head: number | null): number[] | null {
  const pieces = side === "source" ? trace.source.tokens.length : trace.target.input.length;
  const seen = side === "source" ? pieces : position + 1;
  if (way === "attention") {
    const block = blockOf(side, layer);
    return has(trace, block) ? rowOf(attentionMap(trace, block, head), position).slice(0, seen) : null;
  }
  const found = measured(trace, way, side);
  if (!found) return null;
  if (found.shape[0] !== trace.target.labels.length || found.shape[1] !== pieces)
    throw new Error(`${way} of the ${side}: [${found.shape}] for ${trace.target.labels.length} labels and ${pieces} pieces`);
  return [...row(found, position).slice(0, seen)];
}

/** Ranks from 1; equal numbers share the mean of theirs. */
function ranks(numbers: readonly number[]): number[] {
  const order = numbers.map((_, i) => i).sort((a, b) => numbers[a]! - numbers[b]!);
  const out = new Array<number>(numbers.length);
  for (let i = 0, end = 0; i < order.length; i = end) {
    while (end < order.length && numbers[order[end]!] === numbers[order[i]!]) end++;
    for (let k = i; k < end; k++) out[order[k]!] = (i + end + 1) / 2;
  }
  return out;
}

/** Spearman's rank correlation of sizes, whatever their sign. Null: fewer than three, or all alike. */
export function spearman(a: readonly number[], b: readonly number[]): number | null {
  if (a.length < 3) return null;
  const [x, y] = [a, b].map((side) => {
    const found = ranks(side.map(Math.abs));
    return found.map((r) => r - (found.length + 1) / 2);
  }) as [number[], number[]];
  const dot = (p: number[], q: number[]) => total(p.map((r, i) => r * q[i]!));
  const size = Math.sqrt(dot(x, x) * dot(y, y));
  return size ? dot(x, y) / size : null;
}

export interface Case {
  position: number;
  seen: number; // the source piece with the most weight
  matters: number; // the one whose hiding changes most
  weights: number[];
  losses: number[];
}

/** Where the piece with most weight and the one that matters most are furthest apart, in both; null: nowhere. */
export function disagreement(trace: Trace, layer: number, head: number | null): Case | null {
  let best: Case | null = null;
  let most = 0;
  trace.target.labels.forEach((_, position) => {
    const [weights, losses] = (["attention", "occlusion"] as const).map((way) => numbers(trace, way, "source", position, layer, head));
    if (!weights || !losses) return;
    const [seen, matters] = [largest(weights), largest(losses.map(Math.abs))];
    const gap = (weights[seen]! - weights[matters]!) * (Math.abs(losses[matters]!) - Math.abs(losses[seen]!));
    if (gap > most) [most, best] = [gap, { position, seen, matters, weights, losses }];
  });
  return best;
}
