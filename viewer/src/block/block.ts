// The rest of a block in plain arithmetic: mean and variance, layer norm, dropout, parameters.
import type { ModelInfo, Trace } from "../lib/document";
import type { Side } from "../lib/maps";
import { moments } from "../lib/maths";
import { rowSide } from "../river/stops";

/** Mean 0 and variance 1; `epsilon` keeps the root away from 0. */
export function standard(x: ArrayLike<number>, epsilon: number): number[] {
  const { mean, variance } = moments(x);
  return Array.from(x, (one) => (one - mean) / Math.sqrt(variance + epsilon));
}

/** Each number is 0 with probability p, else times 1 / (1 − p). */
export function dropped(x: ArrayLike<number>, p: number, draw: () => number): number[] {
  return Array.from(x, (one) => (draw() < p ? 0 : one / (1 - p)));
}

/** Steps that the stream of a side is after: its embedding, then each block's result. */
export function stream(trace: Trace, side: Side): string[] {
  const results = trace.steps.filter(({ name }, i) => {
    const next = trace.steps[i + 1]?.name ?? "";
    return /_residual\.(sum|norm)$/.test(name) && rowSide(name) === side && !(name.endsWith(".sum") && next === name.replace(/sum$/, "norm")) && !isEntry(trace, name);
  });
  return [`${side}_embedding`, ...results.map((step) => step.name)];
}

/** A norm before its sub-layer: what it makes is read by the sub-layer and does not flow on. */
const isEntry = (trace: Trace, name: string): boolean =>
  name.endsWith(".norm") && !trace.steps.find((step) => step.name === name)!.inputs[0]!.startsWith(name.slice(0, -5));

type Sizes = Pick<ModelInfo["config"], "d_model" | "heads" | "d_k" | "d_v" | "d_ff" | "encoder_layers" | "decoder_layers">;

/** The paper's base model: 6 layers, 512 wide, one table of about 37,000 pieces. */
export const BASE: Sizes = { d_model: 512, heads: 8, d_k: 64, d_v: 64, d_ff: 2048, encoder_layers: 6, decoder_layers: 6 };
export const BASE_TABLE = 37_000;

/** Parameters, biases included. */
export function parameters({ d_model: d, heads, d_k, d_v, d_ff, encoder_layers, decoder_layers }: Sizes) {
  const [k, v] = [heads * d_k, heads * d_v];
  const attention = 2 * (d * k + k) + (d * v + v) + (v * d + d);
  const feedForward = d * d_ff + d_ff + d_ff * d + d;
  const norm = 2 * d;
  const encoder = attention + feedForward + 2 * norm;
  const decoder = 2 * attention + feedForward + 3 * norm;
  return { attention, feedForward, norm, encoder, decoder, encoders: encoder_layers * encoder, decoders: decoder_layers * decoder };
}
