// A run as the page draws it: its curves, and one sentence at each of its checkpoints.
import { causalZero, rowsSumTo1 } from "../lib/checks";
import type { Run, Trace } from "../lib/document";

/** Numbers at steps. */
export interface Curve {
  name: string;
  dashed: boolean;
  x: number[];
  y: number[];
}

const curve = <Of extends { step: number }>(name: string, all: readonly Of[], of: (each: Of) => number, dashed = false): Curve =>
  ({ name, dashed, x: all.map(({ step }) => step), y: all.map(of) });

/** Cross-entropies and BLEU by step; a perfect model of smoothed labels still has some loss. */
export const curves = ({ training, validations }: Run): Record<"loss" | "bleu" | "rate", Curve[]> => ({
  loss: [curve("training", training, ({ loss }) => loss), curve("validation", validations, ({ loss }) => loss, true)],
  bleu: [curve("BLEU", validations, ({ bleu }) => bleu)],
  rate: [curve("learning rate", training, (each) => each.learning_rate)],
});

/** The last step of all that a run tells. */
export const lastStep = (run: Run): number =>
  Math.max(1, ...[...run.training, ...run.validations, ...run.snapshots].map((each) => each.step));

/** A snapshot in the form that maps are made of: same pieces, its own weights. Throws where they do not fit each other. */
export function asTrace(run: Run, at: number): Trace {
  const { step, weights, log_probs } = run.snapshots[at]!;
  const trace = {
    source: { text: "", tokens: run.source, cut: false },
    target: { text: "", input: run.target, labels: run.labels, given: true, prefix: 0 },
    masks: { source: run.source.map(() => true), target: run.target.map((_, i) => run.target.map((_, j) => j <= i)) },
    tensors: Object.fromEntries(Object.entries(weights).map(([block, tensor]) => [`${block}.weights`, tensor])),
    steps: Object.keys(weights).map((block) => ({ name: `${block}.weights` })),
  } as unknown as Trace;
  const said = run.labels.length === run.target.length && run.labels.length === log_probs.length;
  if (!said || !log_probs.every((p) => Number.isFinite(p) && p < 1e-6)) throw new Error(`step ${step}: log-probabilities that are none of these labels`);
  const heads = (of: Run["snapshots"][0]) => Object.entries(of.weights).map(([block, { shape }]) => `${block} ${shape[0]}`).join();
  if (heads(run.snapshots[0]!) !== heads(run.snapshots[at]!)) throw new Error(`step ${step}: other maps than at the first step`);
  for (const { ok, label, worst } of [rowsSumTo1(trace), causalZero(trace)]) if (!ok) throw new Error(`step ${step}: ${label} (${worst})`);
  return trace;
}
