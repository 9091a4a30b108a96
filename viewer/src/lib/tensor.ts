// Numbers out of a payload: decoding, and rows of them.
import { base64, bytes } from "./bytes";
import type { Tensor, Trace } from "./document";

export interface Values {
  shape: number[];
  data: Float32Array;
}

const decoded = new WeakMap<Tensor, Values>();

/** Decodes once. */
export function values(tensor: Tensor): Values {
  let found = decoded.get(tensor);
  if (!found) {
    const data = new Float32Array(bytes(tensor.f32).buffer);
    const count = tensor.shape.reduce((a, b) => a * b, 1);
    if (data.length !== count)
      throw new Error(`a tensor of shape [${tensor.shape}] has ${data.length} numbers`);
    found = { shape: tensor.shape, data };
    decoded.set(tensor, found);
  }
  return found;
}

/** Numbers that were computed here, as a payload has them; they are written out only when asked for. */
export function tensorOf(numbers: Values): Tensor {
  const tensor = {
    shape: numbers.shape,
    get f32() {
      return base64(numbers.data);
    },
  };
  decoded.set(tensor, numbers);
  return tensor;
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
