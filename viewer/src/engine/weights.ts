// The model out of a payload: its parameters as numbers, and which of them a tied name means.
import { bytes, float16 } from "../lib/bytes";
import type { ModelInfo, Weights } from "../lib/document";
import type { Values } from "../lib/tensor";
import type { Model } from "./model";

/** Decodes all parameters; float16 is widened to float32, in which the page computes. */
export function modelOf(weights: Weights, config: ModelInfo["config"]): Model {
  const parameters = new Map<string, Values>();
  for (const [name, stored] of Object.entries(weights.parameters)) {
    const data = "f16" in stored ? float16(stored.f16) : new Float32Array(bytes(stored.f32).buffer);
    if (data.length !== stored.shape.reduce((a, b) => a * b, 1))
      throw new Error(`${name}: ${data.length} numbers for the shape [${stored.shape}]`);
    if (!data.every(Number.isFinite)) throw new Error(`${name}: not all of its numbers are finite`);
    parameters.set(name, { shape: stored.shape, data });
  }
  const known = new Set(["source", "decoder_input", "source_mask", "target_mask"]);
  for (const { name, inputs } of weights.steps) {
    const lacking = inputs.find((each) => !known.has(each));
    if (lacking) throw new Error(`the model’s steps are damaged: ${name} comes without ${lacking}`);
    known.add(name);
  }
  if (!known.has("output")) throw new Error("the model’s steps are damaged: they end without the output");
  return { config, parameters, steps: weights.steps };
}

/** The name under which a parameter is kept: one that is tied goes by the first of its names. */
export function kept(model: Model, name: string): string {
  const { tie } = model.config;
  if (name === "output.weight" && tie !== "none") return kept(model, "target_embedding.table.weight");
  if (name === "target_embedding.table.weight" && tie === "all") return "source_embedding.table.weight";
  return name;
}

export function parameter(model: Model, name: string): Values {
  const found = model.parameters.get(kept(model, name));
  if (!found) throw new Error(`the model has no parameter ${name}`);
  return found;
}
