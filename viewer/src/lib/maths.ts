// The attention equation and its neighbours, in float64, on plain arrays.

export const dot = (a: ArrayLike<number>, b: ArrayLike<number>): number => {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i]! * b[i]!;
  return sum;
};

export const total = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0);

export const mean = (numbers: readonly number[]): number => total(numbers) / numbers.length;

/** Index of the largest number; of the first where none is. */
export const largest = (numbers: readonly number[]): number =>
  numbers.reduce((best, x, i) => (x > numbers[best]! ? i : best), 0);

/** Symmetric end of a scale for signed numbers. */
export const limitOf = (numbers: ArrayLike<number>): number =>
  Array.from(numbers, Math.abs).reduce((top, x) => (x > top ? x : top), 1e-12);

export const clamp = (x: number, low: number, high: number): number => Math.max(low, Math.min(high, x));

/** A copy with another item at one place. */
export const put = <T>(list: readonly T[], at: number, item: T): T[] => list.map((x, i) => (i === at ? item : x));

export const norm = (a: ArrayLike<number>): number => Math.sqrt(dot(a, a));

/** Exponentials over their sum; -Infinity has weight exactly 0. Null: no score is finite. */
export function softmax(scores: ArrayLike<number>): number[] | null {
  const all = Array.from(scores);
  const top = Math.max(...all);
  if (!Number.isFinite(top)) return null; // no distribution over nothing exists
  const powers = all.map((s) => Math.exp(s - top));
  const sum = total(powers);
  return powers.map((p) => p / sum);
}

/** The log of the sum of the exponentials. */
export function logSumExp(scores: ArrayLike<number>): number {
  let [top, sum] = [-Infinity, 0];
  for (let i = 0; i < scores.length; i++) top = Math.max(top, scores[i]!);
  for (let i = 0; i < scores.length; i++) sum += Math.exp(scores[i]! - top);
  return top + Math.log(sum);
}

/** The variance is divided by n, as LayerNorm does. */
export function moments(x: ArrayLike<number>): { mean: number; variance: number } {
  let [sum, squares] = [0, 0];
  for (let i = 0; i < x.length; i++) sum += x[i]!;
  const mean = sum / x.length;
  for (let i = 0; i < x.length; i++) squares += (x[i]! - mean) ** 2;
  return { mean, variance: squares / x.length };
}

/** Numbers in [0, 1) from a seed (mulberry32), the same everywhere. */
export function random(seed: number): () => number {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Sum of rows, each times its weight. */
export function mix(weights: ArrayLike<number>, rows: ArrayLike<number>[]): number[] {
  const out = new Array<number>(rows[0]?.length ?? 0).fill(0);
  rows.forEach((r, i) => {
    for (let j = 0; j < out.length; j++) out[j]! += weights[i]! * r[j]!;
  });
  return out;
}

/** lp(Y) = ((5 + |Y|) / 6)^alpha (Wu et al. 2016, equation 14). */
export const lengthPenalty = (length: number, alpha: number): number =>
  ((5 + length) / 6) ** alpha;

export const entropy = (p: ArrayLike<number>): number => {
  let sum = 0;
  for (let i = 0; i < p.length; i++) if (p[i]! > 0) sum -= p[i]! * Math.log(p[i]!);
  return sum;
};
