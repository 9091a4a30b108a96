// Training inside the page: Adam (Kingma and Ba 2015) with the paper's constants, on a copy of a model.
import type { Training } from "../lib/document";
import { norm } from "../lib/maths";
import type { Values } from "../lib/tensor";
import { backward, crossEntropy, type Gradients } from "./backward";
import { forward } from "./forward";
import { BOS, UNCHANGED, type Edits, type Model } from "./model";

const [BETA1, BETA2, EPSILON] = [0.9, 0.98, 1e-9]; // section 5.3

/** The same numbers in new arrays: to be changed. */
export const copyOf = (model: Model): Model => ({
  ...model,
  parameters: new Map([...model.parameters].map(([name, { shape, data }]) => [name, { shape, data: data.slice() }])),
});

/** Running means of each parameter's gradient and of its square, from 0. */
export class Adam {
  steps = 0;
  private readonly means = new Map<string, [Float32Array, Float32Array]>();

  /** Moves the parameters against their gradients: by about `rate` each, at first. */
  step(model: Model, gradients: Gradients, rate: number): void {
    this.steps++;
    const [c1, c2] = [1 - BETA1 ** this.steps, 1 - BETA2 ** this.steps]; // means that began at 0 are too small by these
    for (const [name, { data: slope }] of gradients) {
      const { data } = model.parameters.get(name)!;
      let means = this.means.get(name);
      if (!means) this.means.set(name, (means = [new Float32Array(data.length), new Float32Array(data.length)]));
      const [m, v] = means;
      for (let i = 0; i < data.length; i++) {
        m[i] = BETA1 * m[i]! + (1 - BETA1) * slope[i]!;
        v[i] = BETA2 * v[i]! + (1 - BETA2) * slope[i]! * slope[i]!;
        data[i]! -= (rate * (m[i]! / c1)) / (Math.sqrt(v[i]! / c2) + EPSILON);
      }
    }
  }
}

/** Module that a parameter is counted under, as in ModelInfo.parameters.by_module. */
const moduleOf = (parameter: string): string =>
  parameter.split(".").slice(0, /^(en|de)coder\./.test(parameter) ? 3 : 1).join(".");

/** Lengths by module, of any numbers that parameters have. */
function lengths(numbers: Iterable<[string, ArrayLike<number>]>): Map<string, number> {
  const found = new Map<string, number>();
  for (const [name, each] of numbers) {
    const module = moduleOf(name);
    found.set(module, Math.hypot(found.get(module) ?? 0, norm(each)));
  }
  return found;
}

/** −log p of each label of a pair of ids, each side ending with EOS. */
export function costs(model: Model, source: number[], labels: number[], edits: Edits = UNCHANGED): number[] {
  return crossEntropy(forward(model, source, [BOS, ...labels.slice(0, -1)], edits).tensors.get("output")!, labels).costs;
}

/** A copy of a model that is taught one pair, again and again. */
export class Student {
  readonly model: Model;
  private readonly adam = new Adam();
  constructor(
    readonly trained: Model, readonly source: number[], readonly labels: number[], readonly edits: Edits = UNCHANGED,
  ) {
    this.model = copyOf(trained);
  }
  get steps(): number {
    return this.adam.steps;
  }
  costs(): number[] {
    return costs(this.model, this.source, this.labels, this.edits);
  }
  /** Gradients of the mean of the costs. */
  gradients(): Gradients {
    const pass = forward(this.model, this.source, [BOS, ...this.labels.slice(0, -1)], this.edits);
    const { gradient } = crossEntropy(pass.tensors.get("output")!, this.labels);
    return backward(this.model, pass, gradient, this.edits);
  }
  step(rate: number): Gradients {
    const gradients = this.gradients();
    this.adam.step(this.model, gradients, rate);
    return gradients;
  }
  /** By parameter: how far it is from where it was trained to. */
  *moved(): Generator<[string, Float32Array]> {
    for (const [name, { data }] of this.model.parameters) {
      const from = this.trained.parameters.get(name)!.data;
      yield [name, data.map((each, i) => each - from[i]!)];
    }
  }
}

/** By module: lengths of the weights before, of a gradient, and of all change since, as Training has them. */
export function lengthsOf(student: Student, gradients: Gradients): Training["modules"] {
  const data = (of: Map<string, Values>): [string, Float32Array][] => [...of].map(([name, each]) => [name, each.data]);
  const weights = lengths(data(student.trained.parameters));
  const [gradient, moved] = [lengths(data(gradients)), lengths(student.moved())];
  const one = (module: string) => ({ weights: weights.get(module)!, gradient: gradient.get(module) ?? 0, moved: moved.get(module)! });
  return Object.fromEntries([...weights.keys()].map((module) => [module, one(module)]));
}
