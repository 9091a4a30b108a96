// Which finished hypothesis wins: scores at any alpha, and the sums behind them.
import type { Hypothesis, Search, SearchNode, Trace } from "../lib/document";
import { lengthPenalty, total } from "../lib/maths";

export interface Ranked {
  hypothesis: Hypothesis;
  was: number; // rank at the alpha of the search, 1 = best
  penalty: number; // at this alpha
  score: number;
}

/** Ranks what finished again; of equal scores the one that was better stays so. */
export const rank = (search: Search, alpha: number): Ranked[] =>
  search.hypotheses
    .map((hypothesis, i) => {
      const penalty = lengthPenalty(hypothesis.length, alpha);
      return { hypothesis, was: i + 1, penalty, score: hypothesis.sum / penalty };
    })
    .sort((a, b) => b.score - a.score);

/** From the first token to this node. */
export function pathTo(search: Search, node: number | null | undefined): SearchNode[] {
  const last = search.nodes.find((n) => n.id === node);
  return last ? [...pathTo(search, last.parent), last] : [];
}

export interface Sums {
  edges: number; // Σ of the log-probabilities on the winner's path
  hypothesis: number; // what the search says
  forced: number | null; // Σ log p of the labels, in one forced pass; null: other labels
  ok: boolean; // all within 1e-4
}

/** Claim 80: what step-by-step search added up is what one forced pass gives. */
export function sums(trace: Trace): Sums | null {
  const { beam } = trace.searches;
  const winner = beam.hypotheses[0];
  if (!winner) return null;
  const edges = total(pathTo(beam, winner.node).map((n) => n.log_prob));
  const forced = trace.target.given ? null : total(trace.output.log_probs);
  const near = (x: number) => Math.abs(x - winner.sum) <= 1e-4; // false for NaN
  return { edges, hypothesis: winner.sum, forced, ok: near(edges) && (forced === null || near(forced)) };
}

export interface Parting {
  step: number; // 1 = the first token
  greedy: SearchNode;
  winner: SearchNode;
}

/** Where greedy search leaves the winner's path; null: it never does. */
export function parting(trace: Trace): Parting | null {
  const [one, other] = [trace.searches.greedy, trace.searches.beam].map((search) => pathTo(search, search.hypotheses[0]?.node));
  const at = one!.findIndex((node, i) => node.token.id !== other![i]?.token.id);
  if (at < 0 || !other![at]) return null;
  return { step: at + 1, greedy: one![at]!, winner: other![at]! };
}
