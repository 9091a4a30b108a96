// The loss of a recorded pair, position by position, with label smoothing or without.
import type { Trace, Training } from "../lib/document";
import { logSumExp, mean } from "../lib/maths";
import { get, row } from "../lib/tensor";

/** −log p of each label, in nats. */
export const costsOf = (trace: Trace): number[] => trace.output.log_probs.map((each) => -each);

/** The recorded step. Throws where it is not one of this pair. */
export function recordedStep(trace: Trace): Training | null {
  const { training } = trace;
  if (!training) return null;
  const { before, after, modules } = training;
  const costs = costsOf(trace);
  const fits = [before, after].every((each) => each.length === costs.length && each.every((x) => Number.isFinite(x) && x >= 0));
  if (!fits) throw new Error("training: a loss before and after of each label is missing");
  const wrong = costs.findIndex((cost, i) => Math.abs(cost - before[i]!) > 1e-3 * (1 + cost));
  if (wrong >= 0) throw new Error(`training: label ${wrong} costs ${before[wrong]} before the step, but −log p = ${costs[wrong]}`);
  for (const [name, each] of Object.entries(modules))
    if (![each?.weights, each?.gradient, each?.moved].every(Number.isFinite)) throw new Error(`training: ${name} has no lengths`);
  return training;
}

/** Σ −q log p, with q = 1 − ε on the label and ε / V on every class; null: it needs all logits. */
export function smoothed(trace: Trace, epsilon: number): number[] | null {
  const logits = get(trace, "output");
  if (!logits) return null;
  return costsOf(trace).map((cost, t) => {
    const z = row(logits, t);
    return (1 - epsilon) * cost + epsilon * (logSumExp(z) - mean(Array.from(z))); // the mean of −log p over all classes
  });
}

/** The least that the smoothed loss can be: p = q, whose entropy it then is. */
export function least(epsilon: number, classes: number): number {
  const [label, other] = [1 - epsilon + epsilon / classes, epsilon / classes];
  return -label * Math.log(label) - (other > 0 ? (classes - 1) * other * Math.log(other) : 0);
}
