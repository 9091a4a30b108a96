// Attention maps with their axes: made here and nowhere else, so that no map is drawn transposed
// or under the words of the other side.
import type { Token, Trace } from "./document";
import { values, type Values } from "./tensor";

export type Pattern = "encoder_self" | "decoder_self" | "cross";
export type Side = "source" | "target";

/** Who asks: a row of the map. A key axis does not pass for one, by type. */
export interface QueryAxis {
  readonly role: "query";
  readonly side: Side;
  readonly tokens: readonly Token[];
}
/** Who is asked: a column of the map. */
export interface KeyAxis {
  readonly role: "key";
  readonly side: Side;
  readonly tokens: readonly Token[];
}
export interface AttentionMap {
  readonly block: string; // "decoder.1.cross_attention"
  readonly pattern: Pattern;
  readonly layer: number;
  readonly head: number | null; // null: the mean of the heads
  readonly queries: QueryAxis;
  readonly keys: KeyAxis;
  /** Weight of a key for a query. */
  at(query: number, key: number): number;
  allowed(query: number, key: number): boolean;
}

export const PATTERNS: Record<Pattern, { title: string; queries: Side; keys: Side }> = {
  encoder_self: { title: "Encoder self-attention", queries: "source", keys: "source" },
  decoder_self: { title: "Masked decoder self-attention", queries: "target", keys: "target" },
  cross: { title: "Cross-attention", queries: "target", keys: "source" },
};

export function patternOf(block: string): Pattern {
  if (block.endsWith("cross_attention")) return "cross";
  return block.startsWith("encoder") ? "encoder_self" : "decoder_self";
}
export const layerOf = (block: string): number => Number(block.split(".")[1]);

/** All attention blocks, in the order of computation. */
export const blocksOf = (trace: Trace): string[] =>
  trace.steps.filter((s) => s.name.endsWith(".weights")).map((s) => s.name.slice(0, -8));

export const has = (trace: Trace, block: string): boolean => `${block}.weights` in trace.tensors;

/** Number of heads, from the numbers themselves. */
export const headsOf = (trace: Trace, block: string): number => trace.tensors[`${block}.weights`]?.shape[0] ?? 0;

/** Whose pieces ask in a block. */
export const askingSide = (block: string): Side => PATTERNS[patternOf(block)].queries;

/** Weights of all keys for one query. */
export const rowOf = (map: AttentionMap, query: number): number[] =>
  map.keys.tokens.map((_, key) => map.at(query, key));

/** One row of a map, as a map. */
export const oneRow = (map: AttentionMap, query: number): AttentionMap => ({
  ...map,
  queries: { ...map.queries, tokens: [map.queries.tokens[query]!] },
  at: (_, key) => map.at(query, key),
  allowed: (_, key) => map.allowed(query, key),
});

export const ORDER = Object.keys(PATTERNS) as Pattern[];

export const headName = (head: number | null): string => (head === null ? "mean of the heads" : `head ${head}`);

export const blockName = (pattern: Pattern, layer: number): string =>
  pattern === "cross"
    ? `decoder.${layer}.cross_attention`
    : `${pattern === "encoder_self" ? "encoder" : "decoder"}.${layer}.self_attention`;

/** The decoder's queries and keys are its input: BOS and the words before, not the labels. */
const tokensOf = (trace: Trace, side: Side): Token[] =>
  side === "source" ? trace.source.tokens : trace.target.input;

export function axes(trace: Trace, pattern: Pattern): { queries: QueryAxis; keys: KeyAxis } {
  const { queries, keys } = PATTERNS[pattern];
  return {
    queries: { role: "query", side: queries, tokens: tokensOf(trace, queries) },
    keys: { role: "key", side: keys, tokens: tokensOf(trace, keys) },
  };
}

/** Which key a query of a head may look at: the mask, less the pairs that were blocked; for null: of any head. */
export function mayAttend(trace: Trace, block: string): (head: number | null, query: number, key: number) => boolean {
  const { masks, changes } = trace;
  const causal = patternOf(block) === "decoder_self";
  const cells = changes?.blocked.filter((cell) => cell.block === block) ?? [];
  const open = (i: number, j: number) => !!(causal ? masks.target[i]?.[j] : masks.source[j]);
  if (!cells.length) return (_, i, j) => open(i, j);
  const blocked = new Set(cells.map(({ head, query, key }) => `${head},${query},${key}`));
  return (head, i, j) => open(i, j) && !blocked.has(`null,${i},${j}`) && !blocked.has(`${head},${i},${j}`);
}

/** Throws where the numbers do not fit the words: such a map cannot be drawn. */
export function attentionMap(trace: Trace, block: string, head: number | null): AttentionMap {
  const pattern = patternOf(block);
  const { queries, keys } = axes(trace, pattern);
  const weights: Values = values(trace.tensors[`${block}.weights`]!);
  const [heads, q, k] = weights.shape as [number, number, number];
  if (q !== queries.tokens.length || k !== keys.tokens.length)
    throw new Error(
      `${block}: a map of ${q} queries x ${k} keys for ${queries.tokens.length} query and ` +
        `${keys.tokens.length} key pieces`,
    );
  const one = (h: number, i: number, j: number) => weights.data[(h * q + i) * k + j]!;
  const mean = (i: number, j: number) => {
    let sum = 0;
    for (let h = 0; h < heads; h++) sum += one(h, i, j);
    return sum / heads;
  };
  const may = mayAttend(trace, block);
  return {
    block,
    pattern,
    layer: layerOf(block),
    head,
    queries,
    keys,
    at: head === null ? mean : (i, j) => one(head, i, j),
    allowed: (i, j) => may(head, i, j),
  };
}

/** "key (source pieces)": what a figure writes on an axis. */
export const axisTitle = (axis: QueryAxis | KeyAxis): string =>
  `${axis.role} (${axis.side === "source" ? "source pieces" : "target pieces so far"})`;
