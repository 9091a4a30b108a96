// What two traces have in common, and where they part.
import { common } from "../lib/diff";
import type { ModelInfo, Payload, Token, Trace } from "../lib/document";
import { quoted } from "../lib/format";
import { type AttentionMap, type KeyAxis, type QueryAxis } from "../lib/maps";

/** One column: a sentence as one model reads it. */
export interface Column {
  model: ModelInfo;
  trace: Trace;
}

export const modelsOf = (payload: Payload) => [{ model: payload.model, traces: payload.traces }, ...payload.others];

/** What a model is called here; runs may have checkpoints of one name. */
export function titleOf(payload: Payload, m: number): string {
  const names = modelsOf(payload).map(({ model }) => model.name);
  return names[m]! + (names.indexOf(names[m]!) === names.lastIndexOf(names[m]!) ? "" : ` (${m})`);
}

/** "0.1": the second sentence, by the first model. Null: no such one, or a blank one. */
export function columnOf(payload: Payload, key: string): Column | null {
  const found = /^(\d+)\.(\d+)$/.exec(key);
  const { model, traces } = (found && modelsOf(payload)[Number(found[1])]) ?? {};
  const trace = traces?.[Number(found![2])];
  return model && trace?.target.labels.length ? { model, trace } : null;
}

/** Models may cut by vocabularies of their own: pieces are compared as they are written. */
export const samePiece = (a: Token, b: Token): boolean => a.piece === b.piece && a.special === b.special;

export interface Row {
  a: number | null; // places in the labels
  b: number | null;
  same: boolean;
}

/** Labels beside each other: the same piece in one row, and between those what either has in its place. */
export function rows(a: readonly Token[], b: readonly Token[]): Row[] {
  const out: Row[] = [];
  let [i, j] = [0, 0];
  for (const [x, y] of [...common(a, b, samePiece), [a.length, b.length]] as const) {
    while (i < x || j < y) out.push({ a: i < x ? i++ : null, b: j < y ? j++ : null, same: false });
    if (x < a.length) out.push({ a: i++, b: j++, same: true });
  }
  return out;
}

/** Places of pieces that the other lacks. */
export function lacking(a: readonly Token[], b: readonly Token[]): [Set<number>, Set<number>] {
  const [x, y] = [new Set(a.keys()), new Set(b.keys())];
  for (const [i, j] of common(a, b, samePiece)) {
    x.delete(i);
    y.delete(j);
  }
  return [x, y];
}

/** The first place where labels are not the same; null: nowhere. */
export function parting(a: readonly Token[], b: readonly Token[]): number | null {
  for (let i = 0; i < Math.max(a.length, b.length); i++) if (!a[i] || !b[i] || !samePiece(a[i]!, b[i]!)) return i;
  return null;
}

/** Why two maps cannot be subtracted: pieces of an axis differ. Null: they can. */
export function unlike(a: AttentionMap, b: AttentionMap): string | null {
  const axis = (x: QueryAxis | KeyAxis, y: QueryAxis | KeyAxis): string | null => {
    const name = x.role === "query" ? "queries" : "keys";
    if (x.tokens.length !== y.tokens.length) return `A has ${x.tokens.length} ${name}, B has ${y.tokens.length}`;
    const at = parting(x.tokens, y.tokens);
    return at === null ? null : `${x.role} ${at} is ${quoted(x.tokens[at]!)} in A and ${quoted(y.tokens[at]!)} in B`;
  };
  return axis(a.queries, b.queries) ?? axis(a.keys, b.keys);
}

/** The two readings of *it* that textbooks show: places among sentences. Null: not both are there. */
export function readings(traces: readonly Trace[]): [number, number] | null {
  const find = (end: RegExp) => traces.findIndex((trace) => end.test(trace.source.text) && trace.target.labels.length > 0);
  const [tired, wide] = [find(/\bit was (too )?tired\b/), find(/\bit was (too )?wide\b/)];
  return tired >= 0 && wide >= 0 ? [tired, wide] : null;
}
