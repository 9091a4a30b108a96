// Greedy and beam search as transduce/trace/search.py keeps them: every token considered, and what became of it.
import type { Hypothesis, Search, SearchNode, Vocabulary } from "../lib/document";
import { lengthPenalty, logSumExp } from "../lib/maths";
import { BOS, EOS, PAD, UNK } from "./model";
import { decode, tokens } from "./tokenizer";

/** Reads tokens one at a time, several rows at once. One row at first, before which nothing was read. */
export interface Stepper {
  /** Gives each row a token; returns the logits [V] of what follows, one array a row. */
  step(tokens: readonly number[]): Float32Array[];
  /** Goes on with these rows, in this order; one may come several times, or not at all. */
  select(rows: readonly number[]): void;
}

export interface Options {
  beam: number; // 1: greedy search
  alpha: number; // exponent of the length penalty
  limit: number; // greatest |Y|, EOS included
  prefix: readonly number[]; // target ids that come first; the last may be EOS
}

/** A search without its words: nodes by step, then as it ranked them. */
export interface Tree {
  beam: number;
  alpha: number;
  limit: number;
  nodes: Node[];
}
type Node = Omit<SearchNode, "token"> & { token: number };

/** Extensions that a step of a greedy tree shows; beam search itself considers 2 x beam. */
const ALTERNATIVES = 4;
const EXTRA = 50; // section 6.1 of the paper

/** The greatest |Y| for a source of `pieces` pieces (EOS not counted); after a long prefix there is as much room again. */
export const limitFor = (pieces: number, prefix: readonly number[], maxLength: number): number =>
  Math.min(maxLength, Math.max(pieces + EXTRA, 2 * prefix.length));

/** log softmax, summed in float64 and kept in float32. */
function logSoftmax(logits: Float32Array): Float32Array {
  const all = logSumExp(logits);
  return logits.map((logit) => logit - all);
}

/** What may come at a step, 1 being the first: only EOS at the limit, only what is forced, else no mark but EOS. Nothing is renormalised. */
function allow(logProbs: Float32Array, step: number, { limit, prefix }: Options): Float32Array {
  const forced = step >= limit ? EOS : prefix[step - 1];
  if (forced !== undefined) return logProbs.map((value, id) => (id === forced ? value : -Infinity));
  for (const id of [PAD, BOS, UNK]) logProbs[id] = -Infinity;
  return logProbs;
}

interface Extension {
  parent: number;
  token: number;
  log_prob: number;
  sum: number;
}

/** The first `count` extensions by (-sum, parent, id); those that may not come are none. */
function bestExtensions(sums: readonly number[], rows: readonly Float32Array[], count: number): Extension[] {
  const found: Extension[] = [];
  rows.forEach((row, parent) =>
    row.forEach((log_prob, token) => {
      const sum = Math.fround(sums[parent]! + log_prob);
      if (sum === -Infinity || (found.length === count && sum <= found[count - 1]!.sum)) return;
      let place = found.length;
      while (place > 0 && found[place - 1]!.sum < sum) place--;
      found.splice(place, 0, { parent, token, log_prob, sum });
      if (found.length > count) found.pop();
    }),
  );
  return found;
}

/** Searches an output. Beam search goes on until no open path can beat any of its `beam` best outputs. */
export function search(stepper: Stepper, options: Options): Tree {
  const { beam, alpha, limit } = options;
  const nodes: Node[] = [];
  const greedy = beam === 1;
  let opened: (Node | null)[] = [null]; // null: nothing was generated
  let best = new Array<number>(beam).fill(-Infinity); // scores of finished outputs, falling
  for (let step = 1; ; step++) {
    const logits = stepper.step(opened.map((node) => node?.token ?? BOS));
    const rows = logits.map((row) => allow(logSoftmax(row), step, options));
    const sums = opened.map((node) => node?.sum ?? 0);
    const count = Math.min(greedy ? ALTERNATIVES : 2 * beam, beam * rows[0]!.length - 1);
    // Greedy search compares tokens and not sums, in which near ones may be equal.
    const found = bestExtensions(greedy ? [0] : sums, rows, count);
    if (!found.length) throw new Error("The model gave no finite log-probability to what may come.");
    const open: { node: Node; row: number }[] = [];
    found.forEach(({ parent, token, log_prob, sum }, rank) => {
      const ends = token === EOS && (!greedy || rank === 0);
      const kept = !ends && (greedy ? rank === 0 : open.length < beam);
      const node: Node = {
        id: nodes.length, parent: opened[parent]?.id ?? null, step, token, log_prob,
        sum: greedy ? Math.fround(sums[0]! + log_prob) : sum,
        state: ends ? "finished" : kept ? "kept" : "pruned",
      };
      nodes.push(node);
      if (kept) open.push({ node, row: parent });
      if (ends) best.push(node.sum / lengthPenalty(step, alpha));
    });
    best = best.sort((a, b) => b - a).slice(0, beam);
    // A sum only falls; the longest output divides it by the most.
    if (!open.length || best[beam - 1]! >= open[0]!.node.sum / lengthPenalty(limit, alpha)) break;
    stepper.select(open.map(({ row }) => row));
    opened = open.map(({ node }) => node);
  }
  return { beam, alpha, limit, nodes };
}

/** The tree with its words: the payload's Search, outputs by score, of equal ones the earlier first. */
export function described({ beam, alpha, limit, nodes }: Tree, vocabulary: Vocabulary): Search {
  const pieces = tokens(vocabulary, nodes.map(({ token }) => token));
  const shown = nodes.map((node, i): SearchNode => ({ ...node, token: pieces[i]! }));
  const hypotheses = nodes.filter(({ state }) => state === "finished").map((end): Hypothesis => {
    const ids: number[] = [];
    for (let node: Node | undefined = end; node; node = node.parent === null ? undefined : nodes[node.parent]) ids.unshift(node.token);
    const penalty = lengthPenalty(ids.length, alpha);
    return {
      node: end.id, text: decode(vocabulary, ids), tokens: tokens(vocabulary, ids), sum: end.sum, length: ids.length,
      penalty, score: end.sum / penalty, cut: ids.length >= limit,
    };
  });
  return { beam, alpha, nodes: shown, hypotheses: hypotheses.sort((a, b) => b.score - a.score) };
}
