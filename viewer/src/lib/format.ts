// How numbers and pieces are written for people.
import type { Token } from "./document";

const minus = (text: string): string => text.replaceAll("-", "−");

/** Fixed decimals with a true minus sign; what is not zero is never written as -0. */
export function number(x: number, digits = 4): string {
  const text = x.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : minus(text);
}

/** Whole numbers as they are, so that 0 means exactly 0; very small and large ones as a power of ten. */
export function exact(x: number, digits = 6): string {
  if (x === -Infinity) return "−∞";
  if (Number.isInteger(x) && Math.abs(x) < 1e9) return minus(String(x || 0));
  if (Math.abs(x) < 0.5 * 10 ** -digits || Math.abs(x) >= 1e9) return minus(x.toExponential(2));
  return minus(x.toFixed(digits));
}

export const list = (x: readonly number[], digits = 6): string => `[${x.map((n) => exact(n, digits)).join(", ")}]`;

/** How many times, roughly: "1.52", "15,200", "1.5e+9". */
export const factor = (x: number): string =>
  x < 100 ? number(x, 2) : x < 1e9 ? count(Math.round(x)) : x.toExponential(1);

export function percent(p: number): string {
  const x = 100 * p;
  return x > 0 && x < 0.1 ? "< 0.1 %" : `${x.toFixed(x < 10 ? 1 : 0)} %`;
}

export const count = (n: number): string => n.toLocaleString("en");

export const times = (n: number, one: string): string => `${n} ${one}${n === 1 ? "" : "s"}`;

export const shape = (dimensions: readonly number[]): string => `[${dimensions.join(", ")}]`;

/** The piece as a word for sentences: "▁chat" is “chat”. */
export const word = (token: Token): string =>
  token.special ? token.piece : token.piece.replaceAll("▁", "") || "␣";

export const quoted = (token: Token): string => (token.special ? token.piece : `“${word(token)}”`);

export const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));
