// Which heads are off, and the answer to it: recorded, or asked of the model.
import { canAsk, trace as ask } from "../../lib/backend";
import type { Answer, Trace } from "../../lib/document";
import { again, edits } from "../../lib/edits.svelte";
import { messageOf } from "../../lib/format";
import { view } from "../../lib/view.svelte";
import { find, keyOf, type Head } from "./ablation";

class Ablation {
  off = $state.raw<Head[]>([]);
  /** Asked: single heads that were tried. */
  tried = $state.raw<Answer[]>([]);
  trying = $state<string | null>(null);
  #sentence: Trace | null = null;

  /** Forgets what belongs to another sentence, and takes what the page shows. */
  meet(base: Trace, trace: Trace): void {
    if (canAsk) this.off = trace.off as Head[];
    if (this.#sentence === base) return;
    this.#sentence = base;
    this.off = trace.off as Head[];
    this.tried = [];
  }
  answer(trace: Trace): Answer | null {
    const base = edits.base(trace);
    if (base !== trace && keyOf(trace.off) === keyOf(this.off)) return asAnswer(trace);
    return find(canAsk ? this.tried : base.answers, this.off);
  }
  /** Asks with these heads off; the page shows that pass. In a file without a model: looks it up. */
  async set(off: Head[]): Promise<void> {
    this.off = off;
    if (!canAsk) return;
    await edits.set({ off });
    if (view.problem) this.off = (view.trace?.off ?? []) as Head[];
  }
  /** Asks for each single head in turn, for the heat map; what the page shows stays. */
  async tryAll(base: Trace, all: Head[]): Promise<void> {
    for (const [i, head] of all.entries()) {
      if (this.#sentence !== base) break;
      this.trying = `${i + 1} of ${all.length}`;
      try {
        const found = (await ask({ ...again(base), off: [head] })).traces[0];
        if (found) this.tried = [...this.tried, asAnswer(found)];
      } catch (error) {
        view.problem = messageOf(error);
        break;
      }
    }
    this.trying = null;
  }
}

/** The model's own greedy translation, and the forced log-probabilities of the target that was traced. */
export const asAnswer = (trace: Trace): Answer => ({
  off: trace.off,
  text: trace.searches.greedy.hypotheses[0]?.text ?? "",
  tokens: trace.target.labels,
  log_probs: trace.output.log_probs,
});

export const ablation = new Ablation();
