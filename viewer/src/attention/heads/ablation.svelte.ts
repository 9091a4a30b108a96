// Which heads are off, and the answer to it: recorded, or asked of the server with the first trace kept.
import { live, trace as ask } from "../../lib/backend";
import type { Answer, Payload, Trace } from "../../lib/document";
import { messageOf } from "../../lib/format";
import { view } from "../../lib/view.svelte";
import { find, keyOf, type Head } from "./ablation";

class Ablation {
  off = $state.raw<Head[]>([]);
  /** Live: the payload with all heads on, to compare with and to return to. */
  kept = $state.raw<Payload | null>(null);
  /** Live: single heads that were tried. */
  tried = $state.raw<Answer[]>([]);
  trying = $state<string | null>(null);
  #sentence: Trace | null = null;

  /** The trace with all heads on. */
  base(trace: Trace): Trace {
    const kept = this.kept?.traces[0];
    return trace.off.length && kept && kept.source.text === trace.source.text ? kept : trace;
  }
  /** Forgets what belongs to another sentence. */
  meet(base: Trace): void {
    if (this.#sentence === base) return;
    this.#sentence = base;
    this.off = base.off as Head[];
    this.tried = [];
  }
  answer(trace: Trace): Answer | null {
    const base = this.base(trace);
    if (!live) return find(base.answers, this.off);
    return trace !== base && keyOf(trace.off) === keyOf(this.off) ? asAnswer(trace) : find(this.tried, this.off);
  }
  /** Live: asks with these heads off; the page shows that pass. Frozen: looks it up. */
  async set(off: Head[], trace: Trace): Promise<void> {
    const base = this.base(trace);
    this.off = off;
    if (!live) return;
    if (!off.length && this.kept && base !== trace) {
      view.payload = this.kept;
      view.clamp();
      return;
    }
    if (base === trace) this.kept = view.payload;
    await view.ask(request(base, off));
    if (view.problem) this.off = (view.trace?.off ?? []) as Head[];
  }
  /** Live: each single head in turn, for the heat map; what the page shows stays. */
  async tryAll(base: Trace, all: Head[]): Promise<void> {
    for (const [i, head] of all.entries()) {
      if (this.#sentence !== base) break;
      this.trying = `${i + 1} of ${all.length}`;
      try {
        const found = (await ask(request(base, [head]))).traces[0];
        if (found) this.tried = [...this.tried, asAnswer(found)];
      } catch (error) {
        view.problem = messageOf(error);
        break;
      }
    }
    this.trying = null;
  }
}

const request = (base: Trace, off: Head[]) => ({
  text: base.source.text, target: base.target.text, beam: base.searches.beam.beam, alpha: base.searches.beam.alpha, off,
});

/** The model's own greedy translation, and the forced log-probabilities of the target that was traced. */
const asAnswer = (trace: Trace): Answer => ({
  off: trace.off,
  text: trace.searches.greedy.hypotheses[0]?.text ?? "",
  tokens: trace.target.labels,
  log_probs: trace.output.log_probs,
});

export const ablation = new Ablation();
