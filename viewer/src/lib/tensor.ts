// Numbers out of a payload: decoding, and rows of them.
import type { Tensor, Trace } from "./document";

export interface Values {
  shape: number[];
  data: Float32Array;
}

const decoded = new WeakMap<Tensor, Values>();

/** Decodes once; the numbers are little-endian, as all machines that run a browser are. */
export function values(tensor: Tensor): Values {
  let found = decoded.get(tensor);
  if (!found) {
    const text = atob(tensor.f32);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const data = new Float32Array(bytes.buffer);
    const count = tensor.shape.reduce((a, b) => a * b, 1);
    if (data.length !== count)
      throw new Error(`a tensor of shape [${tensor.shape}] has ${data.length} numbers`);
    found = { shape: tensor.shape, data };
    decoded.set(tensor, found);
  }
  return found;
}

/** Row of the last dimension: row(x, i) of [n, d], row(x, h, i) of [h, n, d]; a view, no copy. */
export function row(x: Values, ...index: number[]): Float32Array {
  const width = x.shape[x.shape.length - 1]!;
  let at = 0;
  index.forEach((i, dimension) => (at = at * x.shape[dimension]! + i));
  return x.data.subarray(at * width, (at + 1) * width);
}

/** A step's numbers; null: left out of this trace. */
export const get = (trace: Trace, name: string): Values | null =>
  trace.tensors[name] ? values(trace.tensors[name]) : null;
