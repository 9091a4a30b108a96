// Splitting into heads and joining them again, on real numbers.
import { row, type Values } from "../../lib/tensor";

/** [n, h·d] to [h, n, d]: head i is columns i·d to i·d + d - 1. */
export function split(x: Values, heads: number): Values {
  const [n, width] = x.shape as [number, number];
  const d = width / heads;
  const data = new Float32Array(x.data.length);
  for (let h = 0; h < heads; h++)
    for (let i = 0; i < n; i++) data.set(row(x, i).subarray(h * d, (h + 1) * d), (h * n + i) * d);
  return { shape: [heads, n, d], data };
}

/** [h, n, d] to [n, h·d]: transpose back, then lay the heads side by side. */
export function join(x: Values): Values {
  const [heads, n, d] = x.shape as [number, number, number];
  const data = new Float32Array(x.data.length);
  for (let i = 0; i < n; i++) for (let h = 0; h < heads; h++) data.set(row(x, h, i), (i * heads + h) * d);
  return { shape: [n, heads * d], data };
}

/** The same numbers in the order in which they lie, given the shape that join would give: wrong. */
export function reshape(x: Values): Values {
  const [heads, n, d] = x.shape as [number, number, number];
  return { shape: [n, heads * d], data: x.data };
}

/** How many numbers of two equally large tensors differ, bit by bit but for the sign of zero. */
export function unequal(a: Values, b: Values): number {
  let count = 0;
  a.data.forEach((x, i) => (count += Number(x !== b.data[i])));
  return count;
}

/** Which head and which position fill chunk `chunk` of row `position` of the joined tensor. */
export function origin(heads: number, n: number, position: number, chunk: number, wrong: boolean): { head: number; position: number } {
  if (!wrong) return { head: chunk, position };
  const at = position * heads + chunk;
  return { head: Math.floor(at / n), position: at % n };
}

export const NEEDED = ["query", "key", "value", "scores", "weights", "heads", "output"];
