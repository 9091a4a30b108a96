// Training by hand, from the browser's console: `transduce.gradients`, `transduce.teach`, `transduce.toy`.
import { Student } from "../engine/adam";
import { STEPS, Toy } from "../engine/leak";
import { UNCHANGED, type Edits } from "../engine/model";
import { engine } from "../lib/backend";
import { mean } from "../lib/maths";

/** A pair of ids, each side ending with EOS (2), and what is changed in the pass. */
interface Pair {
  source: number[];
  labels: number[];
  edits?: Partial<Edits>;
}

/** −log p of each label, and the gradient of their mean by each parameter, row by row. */
export async function gradients({ source, labels, edits }: Pair): Promise<{ costs: number[]; gradients: Record<string, number[]> }> {
  const student = new Student((await engine()).model, source, labels, { ...UNCHANGED, ...edits });
  const found = Array.from(student.gradients(), ([name, { data }]) => [name, Array.from(data)]);
  return { costs: student.costs(), gradients: Object.fromEntries(found) };
}

/** Teaches a copy of the model the pair, from rest: the loss before each step, and after the last. */
export async function teach({ source, labels, edits, rate = 1e-3, steps = 1 }: Pair & { rate?: number; steps?: number }): Promise<number[]> {
  const student = new Student((await engine()).model, source, labels, { ...UNCHANGED, ...edits });
  const losses = [mean(student.costs())];
  for (let i = 0; i < steps; i++) {
    student.step(rate);
    losses.push(mean(student.costs()));
  }
  return losses;
}

/** The toy of random targets, from its first weights to its last step. */
export function toy({ causal = true, seed = 0, steps = STEPS }): { losses: number[]; taught: number[]; writing: number[] } {
  const one = new Toy(causal, seed);
  const losses = Array.from({ length: steps }, () => one.step());
  return { losses, taught: one.taught(400, 9), writing: one.writing(100, 9) };
}
