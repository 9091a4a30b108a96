// A toy that learns from nothing, with the causal mask or without: targets are drawn at random, so
// nothing can be known of the next token but by looking at it.
import type { ModelInfo } from "../lib/document";
import { random as randomFrom } from "../lib/maths";
import type { Values } from "../lib/tensor";
import { Adam } from "./adam";
import { backward, crossEntropy, type Gradients } from "./backward";
import { forward, tensor } from "./forward";
import { BOS, EOS, UNCHANGED, UNK, type Edits, type Model } from "./model";

export const [TOKENS, LENGTH] = [12, 7] as const; // of the targets
/** What knowing nothing costs: every token has probability 1/12. */
export const GUESS = Math.log(TOKENS);
export const [STEPS, BATCH] = [400, 16] as const;
const FIRST = UNK + 1;
const SOURCE = [UNK, EOS]; // the same for every target: it tells nothing
const [RATE, DECAY] = [5e-3, 0.6]; // the rate falls to 0 in a straight line over the last steps

const size = 32;
const CONFIG: ModelInfo["config"] = {
  encoder_layers: 1, decoder_layers: 1, d_model: size, heads: 4, d_k: size / 4, d_v: size / 4, d_ff: 2 * size, norm: "post",
  activation: "relu", positions: "sinusoidal", tie: "none", source_vocab_size: FIRST, target_vocab_size: FIRST + TOKENS,
  max_length: LENGTH,
};

type Random = ReturnType<typeof randomFrom>;

type Steps = Model["steps"][number][];
const step = (name: string, ...inputs: string[]) => ({ name, inputs, formula: "", code: "" });

function attention(name: string, x: string, memory: string, mask: string): Steps {
  const of = (leaf: string) => `${name}.${leaf}`;
  return [
    step(of("query"), x), step(of("key"), memory), step(of("value"), memory), step(of("scores"), of("query"), of("key")),
    step(of("weights"), of("scores"), mask), step(of("heads"), of("weights"), of("value")), step(of("output"), of("heads")),
    ...residual(name, x, of("output")),
  ];
}
const residual = (name: string, x: string, y: string): Steps => [
  step(`${name}_residual.sum`, x, y), step(`${name}_residual.norm`, `${name}_residual.sum`),
];
function feedForward(name: string, x: string): Steps {
  const [inner, active, outer] = ["inner", "activation", "outer"].map((leaf) => `${name}.${leaf}`) as [string, string, string];
  return [step(inner, x), step(active, inner), step(outer, active), ...residual(name, x, outer)];
}
const embedding = (name: string, ids: string): Steps => [
  step(`${name}.table`, ids), step(`${name}.positions`, ids), step(name, `${name}.table`, `${name}.positions`),
];

const [E, D] = ["encoder.0", "decoder.0"];
/** The paper's layers, one on each side; as trace/steps.py lists them. */
const ALL: Steps = [
  ...embedding("source_embedding", "source"),
  ...attention(`${E}.self_attention`, "source_embedding", "source_embedding", "source_mask"),
  ...feedForward(`${E}.feed_forward`, `${E}.self_attention_residual.norm`),
  step("encoder_norm", `${E}.feed_forward_residual.norm`),
  ...embedding("target_embedding", "decoder_input"),
  ...attention(`${D}.self_attention`, "target_embedding", "target_embedding", "target_mask"),
  ...attention(`${D}.cross_attention`, `${D}.self_attention_residual.norm`, "encoder_norm", "source_mask"),
  ...feedForward(`${D}.feed_forward`, `${D}.cross_attention_residual.norm`),
  step("decoder_norm", `${D}.feed_forward_residual.norm`),
  step("output", "decoder_norm"),
];

/** The first weights, drawn as transduce/model/initialise.py says. */
function fresh(random: Random): Model {
  const parameters = new Map<string, Values>();
  const put = (name: string, shape: number[], draw: () => number) => {
    const values = tensor(...shape);
    parameters.set(name, { shape, data: values.data.map(draw) });
  };
  const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  const linear = (name: string, inputs: number, outputs: number, together = outputs) => {
    const bound = Math.sqrt(6 / (inputs + together)); // Glorot's, of matrices drawn as one
    put(`${name}.weight`, [outputs, inputs], () => bound * (2 * random() - 1));
    if (name !== "output") put(`${name}.bias`, [outputs], () => 0);
  };
  for (const { name } of ALL) {
    const cross = name.includes("cross_");
    if (name.endsWith(".table"))
      put(`${name}.weight`, [name.startsWith("source") ? FIRST : FIRST + TOKENS, size], () => normal() / Math.sqrt(size));
    else if (name.endsWith(".query")) linear(name, size, size, cross ? size : 3 * size);
    else if (/\.(key|value)$/.test(name)) linear(name, size, size, cross ? 2 * size : 3 * size);
    else if (name.endsWith(".inner")) linear(name, size, CONFIG.d_ff);
    else if (name.endsWith(".outer")) linear(name, CONFIG.d_ff, size);
    else if (name.endsWith(".output")) linear(name, size, size);
    else if (name === "output") linear(name, size, FIRST + TOKENS);
    else if (name.endsWith("_residual.norm")) {
      put(`${name}.weight`, [size], () => 1);
      put(`${name}.bias`, [size], () => 0);
    }
  }
  return { config: CONFIG, parameters, steps: ALL };
}

/** A target of random tokens, and its decoder input. */
function draw(random: Random): { labels: number[]; input: number[] } {
  const labels = Array.from({ length: LENGTH }, () => FIRST + Math.floor(random() * TOKENS));
  return { labels, input: [BOS, ...labels.slice(0, -1)] };
}

const mean = (rows: number[][]): number[] => rows[0]!.map((_, i) => rows.reduce((sum, each) => sum + each[i]!, 0) / rows.length);

/** One model that learns, with or without the mask; two of one seed see the same targets. */
export class Toy {
  steps = 0;
  private readonly model: Model;
  private readonly adam = new Adam();
  private readonly random: Random;
  private readonly edits: Edits;

  constructor(readonly causal: boolean, seed: number) {
    this.model = fresh(randomFrom(seed));
    this.random = randomFrom(seed + 1);
    this.edits = { ...UNCHANGED, causal };
  }

  /** One step of Adam on a minibatch; returns its loss. */
  step(): number {
    const gradients: Gradients = new Map();
    let loss = 0;
    for (let i = 0; i < BATCH; i++) {
      const { labels, input } = draw(this.random);
      const pass = forward(this.model, SOURCE, input, this.edits);
      const { costs, gradient } = crossEntropy(pass.tensors.get("output")!, labels);
      for (const cost of costs) loss += cost / LENGTH / BATCH;
      gradient.data.forEach((each, j) => (gradient.data[j] = each / BATCH));
      backward(this.model, pass, gradient, this.edits, gradients);
    }
    const left = 1 - this.steps++ / STEPS;
    this.adam.step(this.model, gradients, RATE * Math.max(0.01, Math.min(1, left / DECAY)));
    return loss;
  }

  /** −log p at each position, on `count` new targets: with the whole target in sight of the mask, as in training. */
  taught(count: number, seed: number): number[] {
    const random = randomFrom(seed);
    return mean(Array.from({ length: count }, () => this.costs(draw(random))));
  }

  /** The same where each token has to be written with only those before it there. */
  writing(count: number, seed: number): number[] {
    const random = randomFrom(seed);
    const one = ({ labels, input }: ReturnType<typeof draw>) =>
      labels.map((_, i) => this.costs({ labels: labels.slice(0, i + 1), input: input.slice(0, i + 1) })[i]!);
    return mean(Array.from({ length: count }, () => one(draw(random))));
  }

  private costs({ labels, input }: { labels: number[]; input: number[] }): number[] {
    return crossEntropy(forward(this.model, SOURCE, input, this.edits).tensors.get("output")!, labels).costs;
  }
}
