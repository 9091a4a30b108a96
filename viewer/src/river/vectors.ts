// Rows of the chosen token, and what is said of them.
import type { Step, Trace } from "../lib/document";
import { dot, norm } from "../lib/maths";
import { row, values } from "../lib/tensor";
import { view } from "../lib/view.svelte";
import { rowSide } from "./stops";

/** The row of a [n, d] step that belongs to the chosen token; null where numbers were left out. */
export function vector(trace: Trace, name: string, shift = 0): Float32Array | null {
  const tensor = trace.tensors[name];
  const position = place(name) + shift;
  return tensor?.shape.length === 2 && position >= 0 && position < tensor.shape[0]! ? row(values(tensor), position) : null;
}

/** The rows of a [heads, n, d] step, one a head. */
export function vectors(trace: Trace, name: string): Float32Array[] {
  const tensor = trace.tensors[name];
  if (tensor?.shape.length !== 3) return [];
  return Array.from({ length: tensor.shape[0]! }, (_, head) => row(values(tensor), head, place(name)));
}

export const place = (name: string): number => view[rowSide(name)];

/** Degrees between two vectors. */
export function angle(a: ArrayLike<number>, b: ArrayLike<number>): number {
  const cosine = dot(a, b) / (norm(a) * norm(b));
  return (Math.acos(Math.max(-1, Math.min(1, cosine))) * 180) / Math.PI;
}

/** What a step reads besides other steps. */
export function shapeOf(trace: Trace, name: string): number[] {
  const [s, t] = [trace.source.tokens.length, trace.target.input.length];
  const given: Record<string, number[]> = { source: [s], decoder_input: [t], source_mask: [s], target_mask: [t, t] };
  return given[name] ?? trace.steps.find((each: Step) => each.name === name)?.shape ?? [];
}
