// What the model inside the page is made of, for all of engine/.
import type { Changes, ModelInfo, Step, Trace } from "../lib/document";
import type { Values } from "../lib/tensor";

export const [PAD, BOS, EOS, UNK] = [0, 1, 2, 3] as const;

export interface Model {
  readonly config: ModelInfo["config"];
  /** By the names of model.safetensors; a training step changes the numbers of a copy. */
  readonly parameters: Map<string, Values>;
  /** What a forced pass computes, in order. */
  readonly steps: readonly Omit<Step, "shape">[];
}

/** What is done to a pass. */
export interface Edits extends Changes {
  off: [string, number][];
}

export const UNCHANGED: Edits = { off: [], blocked: [], causal: true, positions: true, scale: true };

/** What a trace's pass was made with. */
export const editsOf = ({ changes, off }: Trace): Edits => ({ ...(changes ?? UNCHANGED), off });

export const idsOf = (tokens: readonly { id: number }[]): number[] => tokens.map(({ id }) => id);

/** One forced pass: all that was computed, by the names of the steps, without a batch dimension. */
export interface Pass {
  source: number[]; // ids, EOS last, perhaps PAD after it
  decoderInput: number[]; // ids, BOS first
  sourceMask: boolean[]; // [s]
  targetMask: boolean[][]; // [t][t]
  tensors: Map<string, Values>;
}
