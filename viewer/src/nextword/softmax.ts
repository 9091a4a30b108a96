// From logits to a choice: the distribution over all pieces, and what is shown of it.
import type { Token, Trace } from "../lib/document";
import { entropy, total } from "../lib/maths";
import { get, row } from "../lib/tensor";

export interface Choice extends Token {
  rank: number; // 1 = likeliest
  logit: number;
  power: number; // exp((logit − the greatest) / T)
  p: number;
}

export interface Choices {
  shown: Choice[]; // the 10 likeliest, and the label where it is not among them
  pieces: number; // V
  greatest: number; // logit
  denominator: number; // of all V powers
  rest: number; // p of all that is not shown
  entropy: number; // nats
  whole: boolean; // computed from all V logits
}

/** softmax(logits / T). Without all logits only T = 1 can be shown: from p, as recorded. */
export function choices(trace: Trace, position: number, vocabulary: number, temperature = 1): Choices {
  const top = trace.output.top[position]!;
  const label = trace.target.labels[position]!;
  const all = get(trace, "output");
  const logits = all && row(all, position);
  const greatest = top[0]!.logit;
  const power = (logit: number) => Math.exp((logit - greatest) / temperature);
  const powers = logits ? Array.from(logits, power) : null;
  const denominator = powers ? total(powers) : 1 / top[0]!.p;
  const shown = top.map((one, i) => choice(one, i + 1, one.logit));
  if (!top.some((one) => one.id === label.id)) {
    const logit = logits?.[label.id] ?? trace.output.log_probs[position]! + greatest + Math.log(denominator);
    shown.push(choice(label, trace.output.rank[position]!, logit));
  }
  return {
    shown,
    pieces: logits?.length ?? vocabulary,
    greatest,
    denominator,
    rest: Math.max(0, 1 - total(shown.map((one) => one.p))),
    entropy: powers ? entropy(powers.map((x) => x / denominator)) : trace.output.entropy[position]!,
    whole: powers !== null,
  };

  function choice({ id, piece, special }: Token, rank: number, logit: number): Choice {
    return { id, piece, special, rank, logit, power: power(logit), p: power(logit) / denominator };
  }
}
