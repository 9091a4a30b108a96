// What heads that are switched off change: sets of heads, differences of words and of log-probabilities.
import { common } from "../../lib/diff";
import type { Answer, Trace } from "../../lib/document";
import { blocksOf, layerOf, ORDER, PATTERNS, patternOf, type Pattern } from "../../lib/maps";

export type Head = [string, number];

export const keyOf = (off: readonly Head[]): string => off.map(([block, head]) => `${block}#${head}`).sort().join(" ");

/** All heads of the model: rows of a table, one a block. */
export function headTable(trace: Trace, heads: number): { block: string; heads: Head[] }[] {
  return blocksOf(trace).map((block) => ({ block, heads: Array.from({ length: heads }, (_, h): Head => [block, h]) }));
}

export const allOf = (trace: Trace, heads: number, pattern: Pattern): Head[] =>
  headTable(trace, heads).filter((r) => patternOf(r.block) === pattern).flatMap((r) => r.heads);

export const find = (answers: readonly Answer[] | null, off: readonly Head[]): Answer | null =>
  answers?.find((answer) => keyOf(answer.off) === keyOf(off)) ?? null;

/** Change of the log-probability of each label, in nats: what switching off cost (negative) or gave; null: other labels. */
export const deltas = ({ output: { log_probs } }: Trace, answer: Answer): number[] | null =>
  answer.log_probs.length === log_probs.length ? log_probs.map((x, i) => answer.log_probs[i]! - x) : null;

export interface Word {
  text: string;
  /** White space before it in its own text. */
  space: string;
  state: "same" | "gone" | "new";
}

const wordsOf = (text: string) =>
  [...text.matchAll(/(\s*)([\p{L}\p{M}\p{N}]+['’]?|[^\s\p{L}\p{M}\p{N}])/gu)].map((m) => ({ space: m[1]!, text: m[2]! }));

/** Words of two texts, those of the first that are gone before those that are new. */
export function compare(before: string, after: string): Word[] {
  const [a, b] = [wordsOf(before), wordsOf(after)];
  const out: Word[] = [];
  let [i, j] = [0, 0];
  for (const [x, y] of [...common(a, b, (p, q) => p.text === q.text), [a.length, b.length]] as const) {
    out.push(...a.slice(i, x).map((w): Word => ({ ...w, state: "gone" })), ...b.slice(j, y).map((w): Word => ({ ...w, state: "new" })));
    if (b[y]) out.push({ ...b[y], state: "same" });
    [i, j] = [x + 1, y + 1];
  }
  return out;
}

/** "il → elle, fatigué → fatiguée": what was replaced, place by place. */
export function swap(words: readonly Word[]): string {
  const places: Word[][] = [];
  words.forEach((w, i) => {
    if (w.state === "same") return;
    if (i && words[i - 1]!.state !== "same") places.at(-1)!.push(w);
    else places.push([w]);
  });
  const side = (place: Word[], state: Word["state"]) =>
    place.filter((w) => w.state === state).map((w) => w.space + w.text).join("").trim() || "∅";
  return places.map((place) => `${side(place, "gone")} → ${side(place, "new")}`).join(", ");
}

/** Single heads that change the words, together where they change them alike; small changes first. */
export function telling(answers: readonly Answer[], before: string): { says: string; heads: Head[] }[] {
  const groups = new Map<string, { says: string; size: number; heads: Head[] }>();
  for (const answer of answers) {
    if (answer.off.length !== 1 || answer.text === before) continue;
    const words = compare(before, answer.text);
    const group = groups.get(answer.text) ?? { says: swap(words), size: words.filter((w) => w.state !== "same").length, heads: [] };
    group.heads.push(answer.off[0]!);
    groups.set(answer.text, group);
  }
  return [...groups.values()].sort((a, b) => a.size - b.size);
}

export function describe(off: readonly Head[], trace: Trace, heads: number): string {
  if (off.length === 1) return `${off[0]![0]}, head ${off[0]![1]}`;
  const pattern = ORDER.find((p) => keyOf(allOf(trace, heads, p)) === keyOf(off));
  if (pattern) return `all heads of ${PATTERNS[pattern].title.toLowerCase()}`;
  const row = headTable(trace, heads).find((r) => keyOf(r.heads) === keyOf(off));
  return row ? `all heads of ${row.block}` : `${off.length} heads`;
}

export const rowName = (block: string): string =>
  `${{ encoder_self: "Encoder self", decoder_self: "Decoder self", cross: "Cross" }[patternOf(block)]}, layer ${layerOf(block)}`;
