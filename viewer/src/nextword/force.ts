// Another word at one position: what was recorded of it.
import type { Continuation, Token, Trace } from "../lib/document";

export const recordedFor = (trace: Trace, position: number, token: Token): Continuation | null =>
  trace.continuations?.find((c) => c.position === position && c.token.id === token.id) ?? null;

/** Ids that are forced first: the labels before, and the other word. */
export const prefixWith = (trace: Trace, position: number, token: Token): number[] => [
  ...trace.target.labels.slice(0, position).map((label) => label.id),
  token.id,
];
