// What tells the three patterns apart, said of this very trace.
import type { Trace } from "../../lib/document";
import { quoted } from "../../lib/format";
import { attentionMap, blocksOf, has, headsOf, ORDER, patternOf, type AttentionMap, type Pattern } from "../../lib/maps";
import { checks } from "../../ui/matrix";

export const FACTS: Record<Pattern, { letter: string; lengths: string; says: string; mask: string }> = {
  encoder_self: {
    letter: "e", lengths: "[h, S, S]",
    says: "Source pieces ask source pieces: q, k and v all start in the encoder.",
    mask: "No causal mask: the source is all there. Only padding is blocked.",
  },
  decoder_self: {
    letter: "d", lengths: "[h, T, T]",
    says: "Target pieces ask target pieces: q, k and v all start in the decoder.",
    mask: "Causal mask: a piece sees itself and what came before. The upper right is exactly 0.",
  },
  cross: {
    letter: "c", lengths: "[h, T, S]",
    says: "Target pieces ask source pieces: q starts in the decoder, k and v in the encoder’s memory.",
    mask: "No causal mask: the whole source may be read. T and S may differ.",
  },
};

/** Maps to guess from, in an order that is the same for each reader and shows no pattern. */
export function puzzle(trace: Trace, turn: number): AttentionMap {
  const all = blocksOf(trace).filter((block) => has(trace, block));
  const mixed = (n: number) => (Math.imul(n + 1, 2654435761) >>> 0) % 65521;
  const pattern = ORDER[mixed(turn * 7 + 3) % 3]!;
  const blocks = all.filter((block) => patternOf(block) === pattern);
  const block = (blocks.length ? blocks : all)[mixed(turn + 11) % Math.max(1, blocks.length)]!;
  return attentionMap(trace, block, mixed(turn + 5) % headsOf(trace, block));
}

/** Why a map is of its pattern, as one can see in the picture. */
export function reason(trace: Trace, map: AttentionMap): string {
  const [q, k] = [map.queries.tokens.length, map.keys.tokens.length];
  const later = checks(map).causal;
  if (map.pattern === "decoder_self")
    return `the upper right is blocked (${later.checked} cells, ${later.ok ? "all exactly 0" : "NOT all 0"}): a target piece must not see what comes later.`;
  const ends = `its first row is ${quoted(map.queries.tokens[0]!)}, its first column ${quoted(map.keys.tokens[0]!)}`;
  if (map.pattern === "cross")
    return `no triangle is blocked, and ${q} rows by ${k} columns are the T target and S source pieces; ${ends}.`;
  const alike = trace.source.tokens.length === trace.target.input.length;
  return (
    `no triangle is blocked, and rows and columns are the same ${q} source pieces; ${ends}.` +
    (alike ? " Here T = S, so the shape alone does not tell: the pieces on the axes do." : "")
  );
}
