// A whole trace made in the page, as trace/trace.py makes it: searches, the forced pass, the same
// beside padding and token by token.
import type { Changes, Payload, Step, Trace, Vocabulary, Weights } from "../lib/document";
import type { Request } from "../lib/backend";
import { patternOf } from "../lib/maps";
import { entropy, logSumExp, softmax, total } from "../lib/maths";
import { row, tensorOf, type Values } from "../lib/tensor";
import { Decoding, forward, tensor } from "./forward";
import { BOS, editsOf, EOS, idsOf, PAD, UNCHANGED, UNK, type Edits, type Model, type Pass } from "./model";
import { described, limitFor, search } from "./search";
import { decode, encode, normalize, tokens } from "./tokenizer";
import { modelOf } from "./weights";

/** A model with the two sides' vocabularies. */
export interface Engine {
  model: Model;
  source: Vocabulary;
  target: Vocabulary;
}

const engines = new WeakMap<Weights, Engine>();

/** Decodes the weights, once. */
export function engineOf(weights: Weights, info: Payload["model"]): Engine {
  let engine = engines.get(weights);
  if (!engine) {
    const { source, target } = weights.tokenizers;
    engine = { model: modelOf(weights, info.config), source, target: target ?? source };
    engines.set(weights, engine);
  }
  return engine;
}

const TOP = 10;
const PADDING = 3;
const BEAMS = 16;

/** Every id of the model has its piece, or a word that it says could not be shown. */
function checkVocabularies(engine: Engine): void {
  for (const side of ["source", "target"] as const) {
    const [found, size] = [engine[side].pieces.length, engine.model.config[`${side}_vocab_size`]];
    if (found !== size) throw new Error(`This file is damaged: its ${side} vocabulary has ${found} pieces, and its model knows ${size}.`);
  }
}

/** Traces one text. Throws with a message for people. */
export function traceHere(engine: Engine, request: Request): Trace {
  const began = performance.now();
  const { beam = 4, alpha = 0.6, prefix = [], off = [] } = request;
  if (!(Number.isInteger(beam) && beam >= 1 && beam <= BEAMS)) throw new Error(`beam must be 1 to ${BEAMS}.`);
  if (!(alpha >= 0 && alpha <= 10)) throw new Error("alpha must be 0 to 10.");
  const text = normalize(request.text);
  const given = request.target === undefined ? null : normalize(request.target);
  checkVocabularies(engine);
  const changes = changesOf(request.changes);
  const edits: Edits = { ...(changes ?? UNCHANGED), off };
  if (!(text + (given ?? "")).trim()) return blank(text, beam, alpha, off, changes);
  const { source, cut } = sourceOf(engine, text);
  check(engine, prefix, given, edits);
  const limit = limitFor(source.length - 1, prefix, engine.model.config.max_length);
  const searched = (width: number) =>
    described(search(new Decoding(engine.model, source, edits), { beam: width, alpha, limit, prefix }), engine.target);
  const greedy = searched(1);
  const wide = beam === 1 ? greedy : searched(beam);
  const labels = request.labels ? request.labels : given === null ? idsOf(wide.hypotheses[0]!.tokens) : targetOf(engine, given);
  const decoderInput = [BOS, ...labels.slice(0, -1)];
  const pass = forward(engine.model, source, decoderInput, edits);
  return {
    ...blank(text, beam, alpha, off, changes),
    ...seen(engine.model, pass, edits),
    source: { text, tokens: tokens(engine.source, source), cut },
    target: {
      text: given ?? decode(engine.target, labels),
      input: tokens(engine.target, decoderInput),
      labels: tokens(engine.target, labels),
      given: given !== null,
      prefix: Math.min(prefix.length, labels.length),
    },
    output: predictions(pass.tensors.get("output")!, labels, engine.target),
    searches: { greedy, beam: wide },
    seconds: (performance.now() - began) / 1000,
  };
}

/** The tensors of a trace that was recorded without them, from the ids that it has. */
export function completed(engine: Engine, trace: Trace): Trace {
  const edits = editsOf(trace);
  const pass = forward(engine.model, idsOf(trace.source.tokens), idsOf(trace.target.input), edits);
  const output = predictions(pass.tensors.get("output")!, idsOf(trace.target.labels), engine.target);
  return { ...trace, ...seen(engine.model, pass, edits), output };
}

/** All changes, where there is at least one. */
function changesOf(some: Partial<Changes> | undefined): Changes | null {
  const { off: _, ...none } = UNCHANGED;
  const all = { ...none, ...some };
  return all.blocked.length || !all.causal || !all.positions || !all.scale ? all : null;
}

/** A trace of nothing, in the shape of one. */
function blank(text: string, beam: number, alpha: number, off: [string, number][], changes: Changes | null): Trace {
  const nothing = (width: number) => ({ beam: width, alpha, nodes: [], hypotheses: [] });
  return {
    source: { text, tokens: [], cut: false },
    target: { text: "", input: [], labels: [], given: false, prefix: 0 },
    masks: { source: [], target: [] },
    tensors: {},
    left_out: null,
    steps: [],
    output: { log_probs: [], entropy: [], top: [], rank: [], log_prob: 0 },
    searches: { greedy: nothing(1), beam: nothing(beam) },
    continuations: null,
    answers: null,
    padded: { columns: 0, weights: {} },
    cached: { weights: {} },
    off,
    changes,
    training: null,
    attribution: null,
    invariants: [],
    seconds: 0,
  };
}

function sourceOf({ model, source }: Engine, text: string): { source: number[]; cut: boolean } {
  const ids = encode(source, text);
  const longest = model.config.max_length - 1;
  return { source: [...ids.slice(0, longest), EOS], cut: ids.length > longest };
}

function targetOf({ model, target }: Engine, text: string): number[] {
  const ids = encode(target, text);
  const longest = model.config.max_length - 1;
  if (ids.length > longest)
    throw new Error(`The target’s ${ids.length} pieces are more than the ${longest} that the model can write. Shorten it.`);
  return [...ids, EOS];
}

function check({ model }: Engine, prefix: number[], given: string | null, edits: Edits): void {
  if (prefix.length && given !== null) throw new Error("A prefix is for searches, and the target is given: leave one of them out.");
  const size = model.config.target_vocab_size;
  const ends = prefix.at(-1) === EOS ? 1 : 0;
  if (prefix.length - ends > model.config.max_length - 1)
    throw new Error(`A prefix of ${prefix.length} pieces is more than the ${model.config.max_length - 1} that the model can write.`);
  for (const id of ends ? prefix.slice(0, -1) : prefix)
    if (!(Number.isInteger(id) && id > UNK && id < size)) throw new Error(`prefix: ${id} cannot be forced; ids are ${UNK + 1} to ${size - 1}.`);
  const blocks = model.steps.filter(({ name }) => name.endsWith(".weights")).map(({ name }) => name.slice(0, -8));
  const named = [...edits.off, ...edits.blocked.map(({ block, head }) => [block, head ?? 0] as [string, number])];
  for (const [block, head] of named) {
    if (!blocks.includes(block)) throw new Error(`This model has no attention ${block}.`);
    if (!(head in Array(model.config.heads).fill(0))) throw new Error(`${block} has no head ${head}; its heads are 0 to ${model.config.heads - 1}.`);
  }
}

/** What a pass has computed, as a trace holds it, and the two passes that are compared with it. */
function seen(model: Model, pass: Pass, edits: Edits): Pick<Trace, "masks" | "tensors" | "steps" | "padded" | "cached"> {
  const tensors = Object.fromEntries(Array.from(pass.tensors, ([name, found]) => [name, tensorOf(found)]));
  const steps = model.steps.map((step): Step => ({
    ...step,
    formula: formula(step, edits),
    shape: pass.tensors.get(step.name)!.shape,
  }));
  const masks = { source: pass.sourceMask, target: pass.targetMask };
  return { masks, tensors, steps, padded: padded(model, pass, edits), cached: { weights: cached(model, pass, edits) } };
}

/** A step's formula, with what was done to it. */
function formula({ name, formula }: Omit<Step, "shape">, { off, positions, scale }: Edits): string {
  const silent = off.filter(([block]) => name === `${block}.heads`).map(([, head]) => head);
  if (silent.length) return `${formula}, head ${silent.toSorted((a, b) => a - b).join(", ")} set to 0`;
  if (name.endsWith(".positions") && !positions) return "0";
  return name.endsWith("_embedding") && !scale ? formula.replace("√d ", "") : formula;
}

/** The maps once more, with PAD after both sentences. */
function padded(model: Model, pass: Pass, edits: Edits): Trace["padded"] {
  const { source, decoderInput } = pass;
  const columns = Math.min(PADDING, model.config.max_length - Math.max(source.length, decoderInput.length));
  const more = new Array<number>(columns).fill(PAD);
  const again = forward(model, [...source, ...more], [...decoderInput, ...more], edits);
  const weights: Trace["padded"]["weights"] = {};
  for (const [name, { shape, data }] of again.tensors) {
    if (!name.endsWith(".weights")) continue;
    const [count, queries, keys] = shape as [number, number, number];
    const kept = tensor(count, queries - columns, keys); // the rows of padding mean nothing
    for (let h = 0; h < count; h++)
      kept.data.set(data.subarray(h * queries * keys, (h * queries + queries - columns) * keys), h * (queries - columns) * keys);
    weights[name] = tensorOf(kept);
  }
  return { columns, weights };
}

/** The decoder's maps once more, token by token; none where a token could see what comes later. */
function cached(model: Model, pass: Pass, edits: Edits): Trace["cached"]["weights"] {
  if (!edits.causal) return {};
  const decoding = new Decoding(model, pass.source, edits);
  const found = new Map<string, Values>();
  for (const [name, { shape }] of pass.tensors)
    if (name.endsWith(".weights") && patternOf(name.slice(0, -8)) !== "encoder_self") found.set(name, tensor(...shape));
  pass.decoderInput.forEach((token, place) => {
    decoding.step([token]);
    for (const [name, { shape, data }] of found) {
      const [count, queries, keys] = shape as [number, number, number];
      const map = decoding.maps.get(name.slice(0, -8))!;
      for (let h = 0; h < count; h++) data.set(row(map, h, 0), (h * queries + place) * keys);
    }
  });
  return Object.fromEntries(Array.from(found, ([name, weights]) => [name, tensorOf(weights)]));
}

/** Distributions off their logits, one for each label; of equal logits the lowest id comes first. */
export function predictions(logits: Values, labels: number[], vocabulary: Vocabulary): Trace["output"] {
  const rows = labels.map((label, place) => {
    const each = row(logits, place);
    const p = softmax(each);
    if (!p) throw new Error("The model’s logits are no numbers.");
    const order = Array.from(each.keys()).sort((a, b) => each[b]! - each[a]! || a - b);
    const shown = order.slice(0, TOP);
    const top = tokens(vocabulary, shown).map((token, i) => ({ ...token, logit: each[shown[i]!]!, p: p[shown[i]!]! }));
    return { log_prob: each[label]! - logSumExp(each), entropy: entropy(p), top, rank: order.indexOf(label) + 1 };
  });
  const log_probs = rows.map(({ log_prob }) => log_prob);
  return {
    log_probs,
    entropy: rows.map((each) => each.entropy),
    top: rows.map(({ top }) => top),
    rank: rows.map(({ rank }) => rank),
    log_prob: total(log_probs),
  };
}
