// The gradient of a forced pass by every parameter: its steps in reverse, each by the chain rule.
// What a step passes back follows from the end of its name, as in forward.ts. Letters of the
// shapes: n positions, i features that come in, o that go out, q queries, k keys, h heads.
import { logSumExp, moments } from "../lib/maths";
import { row, type Values } from "../lib/tensor";
import { ACTIVATIONS, erf, join, tensor } from "./forward";
import { PAD, UNCHANGED, type Edits, type Model, type Pass } from "./model";
import { kept, parameter } from "./weights";

/** By the names of model.safetensors; what several names share is summed under the one that is kept. */
export type Gradients = Map<string, Values>;

/** −log p of each label in nats, and the gradient of their mean by the logits [t, V]; PAD is not counted. */
export function crossEntropy(logits: Values, labels: readonly number[]): { costs: number[]; gradient: Values } {
  const gradient = tensor(...logits.shape);
  const counted = labels.filter((id) => id !== PAD).length;
  const costs = labels.map((label, t) => {
    if (label === PAD) return 0;
    const [z, out] = [row(logits, t), row(gradient, t)];
    const all = logSumExp(z);
    for (let j = 0; j < z.length; j++) out[j] = (Math.exp(z[j]! - all) - (j === label ? 1 : 0)) / counted;
    return all - z[label]!;
  });
  return { costs, gradient };
}

const SLOPES: Record<string, (x: number) => number> = {
  relu: (x) => (x > 0 ? 1 : 0),
  gelu: (x) => (1 + erf(x / Math.SQRT2)) / 2 + (x * Math.exp((-x * x) / 2)) / Math.sqrt(2 * Math.PI),
  silu: (x) => {
    const s = 1 / (1 + Math.exp(-x));
    return s * (1 + x * (1 - s));
  },
};

/** Where gradients gather: of tensors by the name of their step, of parameters by theirs. */
class Sums {
  readonly tensors = new Map<string, Values>();
  constructor(readonly model: Model, readonly parameters: Gradients) {}
  tensor(name: string, like: Values): Values {
    return found(this.tensors, name, like);
  }
  parameter(name: string): Float32Array {
    return found(this.parameters, kept(this.model, name), parameter(this.model, name)).data;
  }
}

function found(map: Map<string, Values>, name: string, like: Values): Values {
  let sum = map.get(name);
  if (!sum) map.set(name, (sum = tensor(...like.shape)));
  return sum;
}

function add(to: Float32Array, from: Float32Array, times = 1): void {
  for (let i = 0; i < to.length; i++) to[i]! += times * from[i]!;
}

/** y = x Wᵀ + b: dx = dy W, dW = dyᵀ x, db = Σ dy. */
function linear(sums: Sums, name: string, x: Values, dx: Values, dy: Values): void {
  const weight = parameter(sums.model, `${name}.weight`).data;
  const dWeight = sums.parameter(`${name}.weight`);
  const dBias = name === "output" ? null : sums.parameter(`${name}.bias`);
  const inputs = x.shape.at(-1)!;
  const outputs = dy.shape.at(-1)!;
  for (let n = 0; n < dy.shape[0]!; n++)
    for (let o = 0; o < outputs; o++) {
      const slope = dy.data[n * outputs + o]!;
      if (slope === 0) continue;
      if (dBias) dBias[o]! += slope;
      const [from, to] = [n * inputs, o * inputs];
      for (let i = 0; i < inputs; i++) {
        dWeight[to + i]! += slope * x.data[from + i]!;
        dx.data[from + i]! += slope * weight[to + i]!;
      }
    }
}

/** A projection of heads, which lie beside each other only inside it: x is [h, q, d_v]. */
function joined(sums: Sums, name: string, x: Values, dx: Values, dy: Values): void {
  const beside = join(x);
  const slopes = tensor(...beside.shape);
  linear(sums, name, beside, slopes, dy);
  const [count, queries, each] = x.shape as [number, number, number];
  for (let h = 0; h < count; h++)
    for (let q = 0; q < queries; q++) {
      const from = (q * count + h) * each;
      add(row(dx, h, q), slopes.data.subarray(from, from + each));
    }
}

/** y = g u + b with u = (x − mean) / σ: dx = (du − mean(du) − u · mean(du · u)) / σ, du = g dy. */
function layerNorm(sums: Sums, name: string, x: Values, dx: Values, dy: Values): void {
  const scale = parameter(sums.model, `${name}.weight`).data;
  const [dScale, dShift] = [sums.parameter(`${name}.weight`), sums.parameter(`${name}.bias`)];
  const epsilon = Number(sums.model.config.layer_norm_epsilon ?? 1e-6);
  const d = scale.length;
  const unit = new Float64Array(d);
  for (let at = 0; at < x.data.length; at += d) {
    let [ofU, along] = [0, 0];
    const { mean, variance } = moments(x.data.subarray(at, at + d));
    const deviation = Math.sqrt(variance + epsilon);
    for (let f = 0; f < d; f++) {
      unit[f] = (x.data[at + f]! - mean) / deviation;
      const slope = dy.data[at + f]!;
      dScale[f]! += slope * unit[f]!;
      dShift[f]! += slope;
      ofU += (slope * scale[f]!) / d;
      along += (slope * scale[f]! * unit[f]!) / d;
    }
    for (let f = 0; f < d; f++) dx.data[at + f]! += (dy.data[at + f]! * scale[f]! - ofU - unit[f]! * along) / deviation;
  }
}

/** s = q kᵀ / √d_k of each head: dq = ds k / √d_k, dk = dsᵀ q / √d_k. */
function scores(q: Values, k: Values, dq: Values, dk: Values, ds: Values): void {
  const [count, queries, keys] = ds.shape as [number, number, number];
  const width = q.shape[1]!;
  const each = width / count;
  const root = Math.sqrt(each);
  let at = 0;
  for (let h = 0; h < count; h++)
    for (let i = 0; i < queries; i++)
      for (let j = 0; j < keys; j++) {
        const slope = ds.data[at++]! / root;
        if (slope === 0) continue;
        const [a, b] = [i * width + h * each, j * width + h * each];
        for (let f = 0; f < each; f++) {
          dq.data[a + f]! += slope * k.data[b + f]!;
          dk.data[b + f]! += slope * q.data[a + f]!;
        }
      }
}

/** w = softmax(s): ds = w (dw − Σ w dw); what is blocked has w = 0, and no slope. */
function softmax(w: Values, ds: Values, dw: Values): void {
  const keys = w.shape.at(-1)!;
  for (let at = 0; at < w.data.length; at += keys) {
    let mean = 0;
    for (let j = 0; j < keys; j++) mean += w.data[at + j]! * dw.data[at + j]!;
    for (let j = 0; j < keys; j++) ds.data[at + j]! += w.data[at + j]! * (dw.data[at + j]! - mean);
  }
}

/** o = w v of each head that is on: dw = do vᵀ, dv = wᵀ do. */
function heads(w: Values, v: Values, dw: Values, dv: Values, dOut: Values, off: number[]): void {
  const [count, queries, keys] = w.shape as [number, number, number];
  const width = v.shape[1]!;
  const each = width / count;
  for (let h = 0; h < count; h++)
    for (let i = 0; i < queries && !off.includes(h); i++) {
      const slopes = row(dOut, h, i);
      for (let j = 0; j < keys; j++) {
        const [at, from] = [(h * queries + i) * keys + j, j * width + h * each];
        let sum = 0;
        for (let f = 0; f < each; f++) {
          sum += slopes[f]! * v.data[from + f]!;
          dv.data[from + f]! += w.data[at]! * slopes[f]!;
        }
        dw.data[at]! += sum;
      }
    }
}

/** One step in reverse: what its result's gradient `dy` says of its inputs and parameters. */
function undo(sums: Sums, name: string, x: Values[], dx: Values[], y: Values, dy: Values, pass: Pass, edits: Edits): void {
  const { config } = sums.model;
  const cut = name.lastIndexOf(".");
  const [block, leaf] = [name.slice(0, cut), name.slice(cut + 1)];
  const d = config.d_model;
  if (leaf === "table") {
    const [to, ids] = [sums.parameter(`${block}.table.weight`), block.startsWith("source") ? pass.source : pass.decoderInput];
    ids.forEach((id, n) => add(to.subarray(id * d, (id + 1) * d), row(dy, n)));
  } else if (leaf === "positions") {
    if (config.positions === "learned" && edits.positions) add(sums.parameter(name).subarray(0, dy.data.length), dy.data);
  } else if (leaf === "sum" || leaf.endsWith("_embedding")) {
    add(dx[0]!.data, dy.data, leaf === "sum" || !edits.scale ? 1 : Math.sqrt(d));
    add(dx[1]!.data, dy.data);
  } else if (leaf === "activation") {
    const slope = SLOPES[config.activation]!;
    for (let i = 0; i < dy.data.length; i++) dx[0]!.data[i]! += dy.data[i]! * slope(x[0]!.data[i]!);
  } else if (leaf.endsWith("norm")) {
    if (leaf !== "norm" && config.norm === "post") add(dx[0]!.data, dy.data);
    else layerNorm(sums, name, x[0]!, dx[0]!, dy);
  } else if (leaf === "scores") scores(x[0]!, x[1]!, dx[0]!, dx[1]!, dy);
  else if (leaf === "weights") softmax(y, dx[0]!, dy);
  else if (leaf === "heads") heads(x[0]!, x[1]!, dx[0]!, dx[1]!, dy, edits.off.filter(([b]) => b === block).map(([, h]) => h));
  else (x[0]!.shape.length === 3 ? joined : linear)(sums, name, x[0]!, dx[0]!, dy);
}

/**
 * Gradients by all parameters, from those by the logits [t, V] and the tensors of the pass that made them.
 * Those of several passes gather in one map, where it is handed on.
 */
export function backward(
  model: Model, pass: Pass, dLogits: Values, edits: Edits = UNCHANGED, into: Gradients = new Map(),
): Gradients {
  if (!(model.config.activation in ACTIVATIONS)) throw new Error(`no slope of ${model.config.activation} is known here`);
  const sums = new Sums(model, into);
  add(sums.tensor("output", dLogits).data, dLogits.data);
  for (const { name, inputs } of [...model.steps].reverse()) {
    const given = inputs.filter((each) => pass.tensors.has(each)); // ids and masks are not tensors
    const x = given.map((each) => pass.tensors.get(each)!);
    const y = pass.tensors.get(name)!;
    undo(sums, name, x, given.map((each, i) => sums.tensor(each, x[i]!)), y, sums.tensor(name, y), pass, edits);
    sums.tensors.delete(name);
  }
  return into;
}
