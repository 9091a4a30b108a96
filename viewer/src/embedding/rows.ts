// What a sentence's pieces look up, and where the same piece stands twice.
import type { Token, Trace } from "../lib/document";
import type { Side } from "../lib/maps";
import { get, row } from "../lib/tensor";

export const tokensOf = (trace: Trace, side: Side): Token[] =>
  side === "source" ? trace.source.tokens : trace.target.input;

/** Rows of a [n, d] step; null: left out. */
export function rowsOf(trace: Trace, name: string): Float32Array[] | null {
  const found = get(trace, name);
  return found && Array.from({ length: found.shape[0]! }, (_, i) => row(found, i));
}

export function difference(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let worst = 0;
  for (let i = 0; i < a.length; i++) worst = Math.max(worst, Math.abs(a[i]! - b[i]!));
  return worst;
}

/** The first piece that stands at two places, and the two. */
export function twice(tokens: readonly Token[]): [number, number] | null {
  for (const [j, token] of tokens.entries()) {
    const i = tokens.findIndex((other) => other.id === token.id);
    if (i < j) return [i, j];
  }
  return null;
}
