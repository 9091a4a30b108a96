// What is looked at: the only state that figures share, and its address in the URL.
import { recorded, trace as ask, type Request } from "./backend";
import type { Payload, Trace } from "./document";
import { messageOf } from "./format";
import { attentionMap, blocksOf, has, rowOf } from "./maps";
import { largest } from "./maths";

export type Tab = "equation" | "heads" | "patterns" | "masks";

class View {
  payload = $state.raw<Payload | null>(recorded);
  sentence = $state(0);
  /** Index into target.input: the position whose next word is followed. */
  target = $state(0);
  /** Index into source.tokens. */
  source = $state(0);
  /** The station that is open in the river: an attention block, "next_word", or none. */
  open = $state<string | null>(null);
  tab = $state<Tab>("equation");
  /** null: the mean of the heads, where a figure can show it. */
  head = $state<number | null>(0);
  busy = $state(false);
  problem = $state<string | null>(null);

  trace: Trace | null = $derived(this.payload?.traces[this.sentence] ?? null);

  /** Asks the server, and shows what comes; a failure leaves what is there, with a message. */
  async ask(request: Request): Promise<void> {
    this.busy = true;
    this.problem = null;
    try {
      this.payload = await ask(request);
      this.sentence = 0;
      this.clamp();
    } catch (error) {
      this.problem = messageOf(error);
    } finally {
      this.busy = false;
    }
  }

  /** Follows another target position, and the source piece that it attends to most. */
  follow(position: number): void {
    this.target = position;
    const trace = this.trace;
    if (!trace) return;
    const block = blocksOf(trace).at(-1);
    if (!block || !has(trace, block)) return;
    try {
      this.source = largest(rowOf(attentionMap(trace, block, null), position));
    } catch {
      return; // such a map says why where it would be drawn
    }
  }

  clamp(): void {
    const trace = this.trace;
    if (!trace) return;
    this.target = Math.min(this.target, Math.max(0, trace.target.input.length - 1));
    this.source = Math.min(this.source, Math.max(0, trace.source.tokens.length - 1));
  }

  /** The address of this view, for the fragment of the URL. */
  get address(): string {
    const parts = new URLSearchParams();
    if (this.sentence) parts.set("sentence", String(this.sentence));
    parts.set("target", String(this.target));
    parts.set("source", String(this.source));
    if (this.open) {
      parts.set("open", this.open);
      if (this.open !== "next_word") {
        parts.set("tab", this.tab);
        parts.set("head", this.head === null ? "mean" : String(this.head));
      }
    }
    return `#${parts}`;
  }

  go(address: string): void {
    const parts = new URLSearchParams(address.replace(/^#/, ""));
    const at = (name: string) => Math.max(0, Number.parseInt(parts.get(name) ?? "0", 10) || 0);
    this.sentence = Math.min(at("sentence"), (this.payload?.traces.length ?? 1) - 1);
    this.target = at("target");
    this.source = at("source");
    this.open = parts.get("open");
    this.tab = (parts.get("tab") as Tab | null) ?? "equation";
    this.head = parts.get("head") === "mean" ? null : at("head");
    this.clamp();
  }
}

export const view = new View();
