// Masks: which query may attend to which key, why not, and the same mask as four APIs want it.
import type { Cell, Trace } from "../../lib/document";
import { patternOf } from "../../lib/maps";
import { softmax } from "../../lib/maths";

export type Reason = "causal" | "padding" | "hand";

export interface Layers {
  causal: boolean;
  padding: boolean;
  /** Cells painted by hand: "query,key". */
  hand: readonly string[];
}

/** Why query i may not attend to key j; nothing: it may. `real` tells pieces from PAD. */
export function reasons(i: number, j: number, layers: Layers, real: readonly boolean[]): Reason[] {
  const found: Reason[] = [];
  if (layers.hand.includes(`${i},${j}`)) found.push("hand");
  if (layers.causal && j > i) found.push("causal");
  if (layers.padding && !real[j]) found.push("padding");
  return found;
}

/** One row of weights; null: no key is allowed, and no distribution exists. */
export const weightsOf = (allowed: readonly boolean[], scores: ArrayLike<number>): number[] | null =>
  softmax(allowed.map((may, j) => (may ? scores[j]! : -Infinity)));

/** In all heads of a block, or in the one that is looked at. */
export type Where = "all" | "one";

/** The pairs that a painted mask keeps apart beyond the model's own; `later`: its causal mask is off. */
export function cellsOf(mask: readonly boolean[][], own: Trace["masks"], block: string, later: boolean): Cell[] {
  const causal = patternOf(block) === "decoder_self" && !later;
  return mask.flatMap((line, query) =>
    line.flatMap((may, key) => (may || (causal && !own.target[query]?.[key]) ? [] : [{ block, head: null, query, key }])),
  );
}

export const inHeads = (cells: readonly Cell[], head: number | null): Cell[] => cells.map((cell) => ({ ...cell, head }));

export const countAllowed = (mask: readonly boolean[][]): number =>
  mask.flat().filter(Boolean).length;

/** [B,1,1,S]: one row for each sentence of a batch, true where there is a piece. */
export const paddingRow = (length: number, width: number): boolean[] =>
  Array.from({ length: width }, (_, j) => j < length);

export const causalMatrix = (size: number): boolean[][] =>
  Array.from({ length: size }, (_, i) => paddingRow(i + 1, size));

/** [1,1,T,T] ∧ [B,1,1,T] of one sentence: both must allow it. */
export const both = (matrix: readonly boolean[][], row: readonly boolean[]): boolean[][] =>
  matrix.map((line) => line.map((may, j) => may && row[j]!));

export type Convention = "ours" | "sdpa" | "mha" | "additive";

export const CONVENTIONS: [Convention, string, string][] = [
  ["ours", "transduce", "bool, True = may attend"],
  ["sdpa", "F.scaled_dot_product_attention", "bool, True = may attend"],
  ["mha", "nn.MultiheadAttention", "bool, True = blocked"],
  ["additive", "by hand, additive", "float, 0 or −∞ is added"],
];

const literal = (mask: readonly boolean[][], open: string, shut: string): string =>
  mask.map((row) => `    [${row.map((may) => (may ? open : shut)).join(", ")}],`).join("\n");

/** Python that needs `scores` [queries, keys] (q·k/√d_k, a float tensor) and `v` [keys, d_v], and
 * binds `mask`, `weights` [queries, keys] and `output` [queries, d_v]. */
export function code(mask: readonly boolean[][], convention: Convention): string {
  const bool = (open: string, shut: string) =>
    `T, F = True, False\nmask = torch.tensor([\n${literal(mask, open, shut)}\n])
# Of a model, q and k come instead; with these keys, q·k is the score.
n = scores.shape[-1]
identity = torch.eye(n, dtype=scores.dtype)
`;
  switch (convention) {
    case "ours":
      return `# transduce: True = may attend
import torch
from transduce import attention

${bool("T", "F")}output, weights = attention(scores * n**0.5, identity, v, mask)
`;
    case "sdpa":
      return `# F.scaled_dot_product_attention, boolean mask: True = may attend
import torch
from torch.nn import functional

${bool("T", "F")}attend = functional.scaled_dot_product_attention
output = attend(scores, identity, v, attn_mask=mask, scale=1.0)
weights = attend(scores, identity, identity, attn_mask=mask, scale=1.0)
`;
    case "mha":
      return `# nn.MultiheadAttention, boolean mask: True = blocked (the opposite)
import torch
from torch import nn

${bool("F", "T")}block = nn.MultiheadAttention(n, 1, bias=False, dtype=scores.dtype)
with torch.no_grad():  # projections that change nothing
    block.in_proj_weight.copy_(identity.repeat(3, 1))
    block.out_proj.weight.copy_(identity)
    q = scores * n**0.5
    _, weights = block(q, identity, identity, attn_mask=mask)
output = weights @ v
`;
    case "additive":
      return `# additive, float mask: 0 = may attend, -inf = blocked
import torch

x = float("-inf")
mask = torch.tensor([
${literal(mask, "0", "x")}
], dtype=scores.dtype)
weights = (scores + mask).softmax(-1)
output = weights @ v
`;
  }
}

/** What becomes of a query without any key. */
export const WITHOUT_KEY: [string, string][] = [
  ["transduce", "raises AttentionError and names the batch and the query"],
  ["F.scaled_dot_product_attention", "gives zeros, silently"],
  ["nn.MultiheadAttention", "gives NaN, which spreads through the model"],
  ["−1e9 instead of −∞", "gives every key the same weight, 1 / n, as if nothing were blocked"],
];
