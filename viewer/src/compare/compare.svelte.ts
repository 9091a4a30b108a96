// What stands in the two columns: chosen from this file, or asked of the model.
import { canAsk, recorded, trace as ask, withTensors } from "../lib/backend";
import type { Payload } from "../lib/document";
import { messageOf } from "../lib/format";
import { view } from "../lib/view.svelte";
import { columnOf, type Column } from "./compare";

export type Side = "a" | "b";

class Compared {
  /** Answers, by key. */
  asked = $state.raw<Record<string, Column>>({});
  busy = $state<Side | null>(null);
  problem = $state<string | null>(null);
  /** What failed is not asked again by itself. */
  #failed = new Set<string>();

  /** What can be chosen from: this file; without one, what the river shows. */
  payload: Payload | null = $derived(recorded ?? view.payload);

  /** "0.1": a model and a sentence of this file; "=text": one that is asked. */
  key(side: Side): string {
    const given = view.own[side];
    if (given !== undefined && /^(=|\d+\.\d+$)/.test(given)) return given; // an address may say anything
    const { payload } = this;
    const asked = recorded && view.payload !== recorded;
    if (side === "a" && asked) return `=${view.trace?.source.text ?? ""}`;
    const at = asked ? 0 : view.sentence;
    if (side === "a") return `0.${at}`;
    if (payload?.others.length) return `1.${at}`;
    const next = payload?.traces.findIndex((trace, i) => i !== at && trace.target.labels.length) ?? -1;
    return next < 0 ? "" : `0.${next}`;
  }
  column(side: Side): Column | null {
    const key = this.key(side);
    const found = this.asked[key] ?? (this.payload && columnOf(this.payload, key));
    return found && key.startsWith("0.") ? { ...found, trace: withTensors(found.trace) } : found;
  }
  set(changes: Partial<Record<Side | "map", string>>): void {
    this.#failed.clear();
    view.own = { ...view.own, ...changes };
  }
  /** Has the model compute what an address or a person asks for; what is there stays. */
  async meet(side: Side): Promise<void> {
    const key = this.key(side);
    if (!key.startsWith("=") || !canAsk || this.busy || this.asked[key] || this.#failed.has(key)) return;
    this.busy = side;
    this.problem = null;
    try {
      const { model, traces } = await ask({ text: key.slice(1) });
      if (!traces[0]?.target.labels.length) throw new Error("That text is blank: there is nothing to compare.");
      this.asked = { ...this.asked, [key]: { model, trace: traces[0] } };
    } catch (error) {
      this.problem = messageOf(error);
      this.#failed.add(key);
      const { [side]: _, ...rest } = view.own;
      view.own = rest;
    } finally {
      this.busy = null;
    }
  }
}

export const compared = new Compared();
