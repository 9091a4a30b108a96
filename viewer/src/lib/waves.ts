// The paper's positions (section 3.5) and its cousins, from the formula, in float64.
import type { ModelInfo } from "./document";
import { dot, mean } from "./maths";

export interface Waves {
  d: number;
  /** All sines before all cosines; else sine and cosine of a pair stand side by side. */
  halves: boolean;
  /** What i is divided by in the exponent: d/2 in the paper. */
  steps: number;
  offset: number; // of the first position
}

export const paper = (d: number): Waves => ({ d, halves: false, steps: d / 2, offset: 0 });

export function wavesOf(config: ModelInfo["config"]): Waves {
  const pairs = config.d_model / 2;
  return {
    d: config.d_model,
    halves: config.position_layout === "halves",
    steps: config.position_frequency === "tensor2tensor" ? Math.max(pairs - 1, 1) : pairs,
    offset: Number(config.position_offset ?? 0),
  };
}

/** Dimensions of the sine and the cosine of pair i. */
export const columns = (waves: Waves, i: number): [number, number] =>
  waves.halves ? [i, waves.d / 2 + i] : [2 * i, 2 * i + 1];

/** Positions that pair i needs for one turn, over 2π. */
export const period = (waves: Waves, i: number): number => 10_000 ** (i / waves.steps);

export function wave(waves: Waves, position: number): Float64Array {
  const row = new Float64Array(waves.d);
  for (let i = 0; i < waves.d / 2; i++) {
    const [sine, cosine] = columns(waves, i);
    const turned = (position + waves.offset) / period(waves, i);
    row[sine] = Math.sin(turned);
    row[cosine] = Math.cos(turned);
  }
  return row;
}

export interface Offset {
  k: number;
  mean: number; // of row p times row p + k, over all p there are
  spread: number; // largest minus smallest
}

/** Dot products of rows that are k apart. */
export function offsets(rows: readonly ArrayLike<number>[]): Offset[] {
  return rows.map((_, k) => {
    const products = rows.slice(0, rows.length - k).map((row, p) => dot(row, rows[p + k]!));
    return { k, mean: mean(products), spread: Math.max(...products) - Math.min(...products) };
  });
}

/** `most` of n indices, first and last among them, evenly between. */
export function spread(n: number, most: number): number[] {
  const count = Math.min(n, most);
  return Array.from({ length: count }, (_, j) => (count === 1 ? 0 : Math.round((j * (n - 1)) / (count - 1))));
}
