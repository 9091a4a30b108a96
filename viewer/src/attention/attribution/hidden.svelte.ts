// Occlusion by the model inside the page: each piece hidden in turn, as trace/attribution.py does it.
import { engine } from "../../lib/backend";
import { editsOf, idsOf } from "../../engine/model";
import { predictions, type Engine } from "../../engine/engine";
import { forward, tensor } from "../../engine/forward";
import type { Cell, Trace } from "../../lib/document";
import { messageOf } from "../../lib/format";
import { blocksOf, PATTERNS, patternOf, type Side } from "../../lib/maps";
import type { Values } from "../../lib/tensor";

type Sides = Record<Side, Values>;

class Hidden {
  #found = $state.raw<Sides | null>(null);
  #trace: Trace | null = null;
  /** How far it is. */
  busy = $state<string | null>(null);
  problem = $state<string | null>(null);

  /** What was measured of a trace. */
  of(trace: Trace): Sides | null {
    const found = this.#found;
    return this.#trace === trace ? found : null;
  }
  async measure(trace: Trace): Promise<void> {
    this.problem = null;
    this.busy = "…";
    try {
      const here = await engine();
      const found = await this.#each(here, trace);
      this.#trace = trace;
      this.#found = found;
    } catch (error) {
      this.problem = messageOf(error);
    } finally {
      this.busy = null;
    }
  }
  async #each(here: Engine, trace: Trace): Promise<Sides> {
    const labels = trace.target.labels.length;
    const lengths = { source: trace.source.tokens.length, target: labels };
    if (lengths.source < 2) throw new Error("With its only piece hidden, nothing is left to read.");
    const sides = { source: tensor(labels, lengths.source), target: tensor(labels, labels) };
    const intact = logProbs(here, trace, []);
    for (const side of ["source", "target"] as const)
      for (let place = 0; place < lengths[side]; place++) {
        this.busy = `${(side === "source" ? 0 : lengths.source) + place + 1} of ${lengths.source + labels}`;
        await new Promise((soon) => setTimeout(soon));
        const without = logProbs(here, trace, cells(trace, side, place));
        without.forEach((x, t) => (sides[side].data[t * lengths[side] + place] = intact[t]! - x));
      }
    sides.target.data[0] = NaN; // without BOS the first position has no key: the engine computes no such thing
    return sides;
  }
}

/** All that could attend to a piece; but BOS is left to its own position, which sees nothing else and is then read by none. */
const cells = (trace: Trace, side: Side, place: number): Cell[] =>
  blocksOf(trace).filter((block) => PATTERNS[patternOf(block)].keys === side).flatMap((block) => {
    const queries = PATTERNS[patternOf(block)].queries === "source" ? trace.source.tokens.length : trace.target.input.length;
    const first = side === "target" && place === 0 ? 1 : 0;
    return Array.from({ length: queries - first }, (_, i): Cell => ({ block, head: null, query: i + first, key: place }));
  });

function logProbs({ model, target }: Engine, trace: Trace, blocked: Cell[]): number[] {
  const own = editsOf(trace);
  const pass = forward(model, idsOf(trace.source.tokens), idsOf(trace.target.input), { ...own, blocked: [...own.blocked, ...blocked] });
  return predictions(pass.tensors.get("output")!, idsOf(trace.target.labels), target).log_probs;
}

export const hidden = new Hidden();
