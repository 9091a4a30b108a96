// The contract between Python (trace/document.py) and the page: what a payload holds.

/** Numbers of any shape: base64 of little-endian float32, row-major. */
export interface Tensor {
  shape: number[];
  f32: string;
}

/** `piece` is what a person is shown: "▁chat", "<0xE4>", or BOS / EOS / PAD / UNK (then special). */
export interface Token {
  id: number;
  piece: string;
  special: boolean;
}

/** One named intermediate, in the order of computation. */
export interface Step {
  name: string; // "decoder.1.cross_attention.weights"
  formula: string; // "softmax(scores, where allowed)"
  inputs: string[]; // names of other steps, or source, decoder_input, source_mask, target_mask
  shape: number[]; // without the batch dimension
  code: string; // "transformer.py:123"
}

export interface Invariant {
  id: string;
  label: string; // one sentence
  ok: boolean;
  worst: number | null; // largest deviation; null: nothing was checked, or not finite
  tolerance: number;
  checked: number;
}

export interface ModelInfo {
  name: string; // folder name
  version: string; // of transduce
  source_language: string | null;
  target_language: string | null;
  note: string | null; // e.g. "learnt a generated grammar"
  config: {
    encoder_layers: number;
    decoder_layers: number;
    d_model: number;
    heads: number;
    d_k: number;
    d_v: number;
    d_ff: number;
    norm: "post" | "pre";
    activation: string;
    positions: string;
    tie: string;
    source_vocab_size: number;
    target_vocab_size: number;
    max_length: number;
    [other: string]: unknown;
  };
  parameters: { total: number; by_module: Record<string, number> }; // "encoder.0.self_attention": 37248
}

export interface TopToken extends Token {
  logit: number;
  p: number;
}

/** A beam of 1 is greedy search. */
export interface Search {
  beam: number;
  alpha: number;
  nodes: SearchNode[]; // by step, then by rank: the best 2 x beam extensions of each step
  hypotheses: Hypothesis[]; // all that finished, best score first
}
export interface SearchNode {
  id: number;
  parent: number | null; // null: extends BOS
  step: number; // 1 = the first generated token
  token: Token;
  log_prob: number; // nats, of this token
  sum: number; // nats, of the path
  state: "kept" | "pruned" | "finished";
}
export interface Hypothesis {
  node: number; // its EOS
  text: string;
  tokens: Token[]; // with EOS
  sum: number;
  length: number; // |Y|, EOS included
  penalty: number; // lp(length)
  score: number; // sum / penalty
  cut: boolean;
}

/** What the model says when one of the top alternatives is forced at `position`, then greedily on. */
export interface Continuation {
  position: number; // index into target.labels
  token: Token; // the forced one
  text: string;
  tokens: Token[];
  log_prob: number;
}

/** What changes when heads are switched off: their mixed values are set to zero. */
export interface Answer {
  off: [string, number][]; // [attention block, head]
  text: string; // greedy translation with them off
  tokens: Token[];
  log_probs: number[]; // of the traced target's labels, forced, with them off
}

export interface Trace {
  source: { text: string; tokens: Token[]; cut: boolean }; // EOS last
  target: {
    text: string;
    input: Token[]; // BOS first
    labels: Token[]; // EOS last; input[i] has seen labels[0..i-1]
    given: boolean; // the person gave it; else the model's own best
    prefix: number; // how many first labels were forced
  };
  masks: { source: boolean[]; target: boolean[][] }; // true = may attend; [s], [t][t]
  tensors: Record<string, Tensor>; // by step name, without the batch dimension
  left_out: string | null; // why tensors of some steps are missing
  steps: Step[];
  output: {
    log_probs: number[]; // nats, of each label
    entropy: number[]; // nats, of each distribution
    top: TopToken[][]; // the 10 likeliest at each position
    rank: number[]; // of the label, 1 = likeliest
    log_prob: number; // their sum
  };
  searches: { greedy: Search; beam: Search };
  continuations: Continuation[] | null; // null: not recorded (a server answers)
  answers: Answer[] | null;
  /** The same sentence beside a longer one: maps with `columns` PAD keys more; weights there are exactly 0. */
  padded: { columns: number; weights: Record<string, Tensor> };
  /** The decoder's maps again, from decoding token by token with the cache. */
  cached: { weights: Record<string, Tensor> };
  off: [string, number][]; // heads that were off in this trace
  /** What else was changed; only the model inside the page does this (engine/). */
  changes: Changes | null;
  training: Training | null; // null: not recorded
  attribution: Attribution | null; // null: not recorded
  invariants: Invariant[];
  seconds: number; // what this trace took
}

/** A pair that is kept from attending: in one block, in one head or in all (null). */
export interface Cell {
  block: string;
  head: number | null;
  query: number;
  key: number;
}
/** What can be done to a pass, besides switching heads off. */
export interface Changes {
  blocked: Cell[];
  causal: boolean; // false: the decoder sees what comes later
  positions: boolean; // false: nothing is added for the place
  scale: boolean; // false: embeddings are not multiplied by √d_model
}

/** One training step on this pair alone: plain cross-entropy, mean over the labels; Adam from rest. */
export interface Training {
  learning_rate: number;
  before: number[]; // nats: -log p of each label
  after: number[]; // the same after the step
  /** By module, as in ModelInfo.parameters.by_module: lengths (L2 norms) of vectors. */
  modules: Record<string, { weights: number; gradient: number; moved: number }>;
}

/** How much each piece matters to each label, by two ways that do not look at attention. */
export interface Attribution {
  /** Fall of the label's log-probability (nats) when the piece is hidden from all attention. */
  occlusion: { source: Tensor; target: Tensor }; // [t, s], [t, t]: target piece j of decoder_input
  /** Gradient of the label's log-probability by the piece's embedding, times the embedding. */
  gradient: { source: Tensor; target: Tensor };
}

/** A parameter as it is kept here: base64 of little-endian numbers, row-major. */
export type Stored = { shape: number[]; f16: string } | { shape: number[]; f32: string };

/** A SentencePiece model, by id. */
export interface Vocabulary {
  kind: "bpe" | "unigram";
  pieces: string[];
  scores: number[];
}

/** A whole model, for the page to compute with. */
export interface Weights {
  precision: "float16" | "float32";
  parameters: Record<string, Stored>; // by the names of model.safetensors
  tokenizers: { source: Vocabulary; target: Vocabulary | null }; // null: the same
  steps: Omit<Step, "shape">[]; // what a forced pass computes, in order
}

/** A training run over its checkpoints. */
export interface Run {
  name: string;
  finished: boolean;
  /** From metrics.jsonl, by step. */
  training: { step: number; loss: number; learning_rate: number }[];
  validations: { step: number; loss: number; bleu: number }[];
  /** The same sentence at each checkpoint that is there: its translation then, and its maps over one target. */
  source: Token[];
  target: Token[]; // decoder input of all snapshots
  labels: Token[];
  snapshots: { step: number; text: string; log_probs: number[]; weights: Record<string, Tensor> }[];
}

export interface Payload {
  model: ModelInfo;
  traces: Trace[];
  others: { model: ModelInfo; traces: Trace[] }[]; // to compare with: the same sentences, other models
  weights: Weights | null; // null: the page cannot compute
  run: Run | null;
}
