// What an attention map shows, computed from the map itself: its checks, its sentences, its sizes.
import { number, quoted } from "../lib/format";
import { axisTitle, headName, PATTERNS, rowOf, type AttentionMap } from "../lib/maps";
import { clamp, total } from "../lib/maths";

export type Blocked = "causal" | "padding" | null;

/** Why a query may not see a key: it comes later, or it is padding. */
export function blocked(map: AttentionMap, query: number, key: number): Blocked {
  if (map.allowed(query, key)) return null;
  return map.pattern === "decoder_self" && map.keys.tokens[key]!.piece !== "PAD" ? "causal" : "padding";
}

const TOLERANCE = 1e-5;

/** From the cells that are drawn; `hidden` is the mass of keys that are not, by query. NaN is never ok. */
export function checks(map: AttentionMap, hidden: readonly number[] | null = null) {
  const check = () => ({ ok: true, worst: 0, checked: 0 });
  const found = { sum: check(), causal: check(), padding: check() };
  const see = (what: keyof typeof found, off: number, tolerance: number) => {
    const it = found[what];
    it.checked++;
    it.worst = Math.max(it.worst, off);
    if (!(off <= tolerance)) it.ok = false;
  };
  map.queries.tokens.forEach((_, i) => {
    const row = rowOf(map, i);
    see("sum", Math.abs(total(row) + (hidden?.[i] ?? 0) - 1), TOLERANCE);
    row.forEach((weight, j) => {
      const why = blocked(map, i, j);
      if (why) see(why, Math.abs(weight), 0);
    });
  });
  return found;
}

export const mapName = (map: AttentionMap): string =>
  `${PATTERNS[map.pattern].title}, layer ${map.layer}, ${headName(map.head)}`;

/** What the crosshair says. */
export function sentence(map: AttentionMap, query: number, key: number, hidden: readonly number[] | null): string {
  const sum = total(rowOf(map, query));
  const why = blocked(map, query, key);
  const cause = { causal: "blocked: it comes later; ", padding: "blocked: padding; " };
  const rest = hidden ? `row shows ${number(sum, 3)}, ${number(hidden[query]!, 3)} is hidden` : `row sums to ${number(sum, 3).replace(/\.?0+$/, "")}`;
  return (
    `query ${quoted(map.queries.tokens[query]!)} gives key ${quoted(map.keys.tokens[key]!)} ` +
    `${number(map.at(query, key))} (${why ? cause[why] : ""}${rest})`
  );
}

/** One sentence for the whole picture. */
export function summary(map: AttentionMap): string {
  const [q, k] = [map.queries.tokens.length, map.keys.tokens.length];
  let [best, at] = [-1, [0, 0]];
  for (let i = 0; i < q; i++)
    for (let j = 0; j < k; j++) if (map.at(i, j) > best) [best, at] = [map.at(i, j), [i, j]];
  return (
    `${mapName(map)}: rows are ${q} times ${axisTitle(map.queries)}, columns ${k} times ${axisTitle(map.keys)}. ` +
    `Largest weight ${number(best, 3)}: query ${quoted(map.queries.tokens[at[0]!]!)}, key ${quoted(map.keys.tokens[at[1]!]!)}.`
  );
}

/** How dark a weight is drawn, 0 to 1: small weights are lifted, so that 0.02 is seen at all. */
export const ink = (weight: number): number =>
  weight > 0 ? Math.min(1, weight) ** 0.6 : 0;

/** Ink and number of one cell as a style, where a cell is a box of its own. */
export const inkStyle = (weight: number): string =>
  `background: color-mix(in srgb, var(--weight) ${(100 * ink(weight)).toFixed(1)}%, var(--raised)); ` +
  `color: light-dark(${ink(weight) > 0.66 ? "#fff" : "#000"}, ${ink(weight) > 0.48 ? "#000" : "#fff"})`;

/** A weight as it is written in a cell: two decimals, a dot for next to nothing. */
export function written(weight: number, why: Blocked): string {
  if (why && weight === 0) return "−∞";
  if (!(weight >= 0 && weight < 0.995)) return weight.toFixed(1);
  return weight < 0.005 ? "·" : weight.toFixed(2).slice(1);
}

/** Side of a cell in pixels, for the room there is. */
export const cellSize = (keys: number, room: number): number =>
  clamp(Math.floor(room / keys), keys <= 20 ? 24 : keys <= 40 ? 18 : 14, 38);

/** A column of numbers beside a map, one a query; `limit` fills its bar. */
export interface RowNote {
  id: string;
  title: string;
  values: readonly number[];
  limit: number;
}
