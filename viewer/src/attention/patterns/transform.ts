// Other views of one attention map: pieces merged into words, sinks taken out. Axes keep their role.
import type { Token } from "../../lib/document";
import { rowOf, type AttentionMap } from "../../lib/maps";
import { total } from "../../lib/maths";

const PUNCTUATION = /^[\p{P}\p{S}]+$/u;
/** Within a word, as in “l'animal”. */
const INNER = /^['’‐-]$/;

/** BOS, EOS and punctuation: where heads put weight that they have no better use for. */
export const isSink = (token: Token): boolean =>
  token.special
    ? token.piece !== "UNK"
    : PUNCTUATION.test(token.piece.replaceAll("▁", "")) && !INNER.test(token.piece) && !token.piece.startsWith("<0x");

/** Weight on sinks, by query. */
export const sinkMass = (map: AttentionMap): number[] =>
  map.queries.tokens.map((_, i) => total(rowOf(map, i).filter((_, j) => isSink(map.keys.tokens[j]!))));

/** The map without its sink columns. The weights that stay are as they were, not scaled up. */
export function withoutSinks(map: AttentionMap): AttentionMap {
  const kept = map.keys.tokens.flatMap((token, j) => (isSink(token) ? [] : [j]));
  return {
    ...map,
    keys: { ...map.keys, tokens: kept.map((j) => map.keys.tokens[j]!) },
    at: (i, j) => map.at(i, kept[j]!),
    allowed: (i, j) => map.allowed(i, kept[j]!),
  };
}

/** Indices of the pieces of each word: ▁ begins one; specials and punctuation stand alone. */
function words(tokens: readonly Token[]): number[][] {
  const groups: number[][] = [];
  tokens.forEach((token, i) => {
    const before = tokens[i - 1];
    const joins = before && !token.special && !before.special && !token.piece.startsWith("▁") && !isSink(token) && !isSink(before);
    if (joins) groups.at(-1)!.push(i);
    else groups.push([i]);
  });
  return groups;
}

const joined = (tokens: readonly Token[], group: number[]): Token => ({
  ...tokens[group[0]!]!,
  piece: group.map((i) => tokens[i]!.piece).join("").replaceAll("▁", "") || tokens[group[0]!]!.piece,
});

/** Words for pieces: weights are summed over the pieces of a key and averaged over those of a query. */
export function byWords(map: AttentionMap): AttentionMap & { queryGroups: number[][] } {
  const [queryGroups, keyGroups] = [words(map.queries.tokens), words(map.keys.tokens)];
  return {
    ...map,
    queryGroups,
    queries: { ...map.queries, tokens: queryGroups.map((g) => joined(map.queries.tokens, g)) },
    keys: { ...map.keys, tokens: keyGroups.map((g) => joined(map.keys.tokens, g)) },
    at: (i, j) => total(queryGroups[i]!.flatMap((a) => keyGroups[j]!.map((b) => map.at(a, b)))) / queryGroups[i]!.length,
    allowed: (i, j) => queryGroups[i]!.some((a) => keyGroups[j]!.some((b) => map.allowed(a, b))),
  };
}
