// What is looked at: the only state that figures share, and its address in the URL.
import { recorded, trace as ask, withTensors, type Request } from "./backend";
import type { Payload, Trace } from "./document";
import { messageOf } from "./format";
import { attentionMap, blocksOf, has, rowOf } from "./maps";
import { largest } from "./maths";

/** The pages of this file; the river is the one that opens. */
export const PAGES = { river: "A translation", guide: "The guide", questions: "Eight questions", compare: "Compare", run: "Watch it learn" };
export type Page = keyof typeof PAGES;
export type Tab = "equation" | "heads" | "patterns" | "masks" | "matters";

class View {
  payload = $state.raw<Payload | null>(recorded);
  page = $state<Page>("river");
  /** The section of the guide that was asked for. */
  at = $state<string | null>(null);
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
  /** What a page other than the river keeps in the address besides, by name. */
  own = $state.raw<Record<string, string>>({});
  busy = $state(false);
  problem = $state<string | null>(null);
  /** Questions so far: what the last one brings is shown. */
  #asked = 0;

  trace: Trace | null = $derived.by(() => {
    const found = this.payload?.traces[this.sentence];
    return found ? withTensors(found) : null;
  });

  /** Asks the model, and shows what comes; a failure leaves what is there, with a message. */
  async ask(request: Request): Promise<void> {
    const turn = ++this.#asked;
    this.busy = true;
    this.problem = null;
    try {
      const found = await ask(request);
      if (turn !== this.#asked) return;
      this.payload = found;
      this.sentence = 0;
      this.clamp();
    } catch (error) {
      if (turn === this.#asked) this.problem = messageOf(error);
    } finally {
      if (turn === this.#asked) this.busy = false;
    }
  }

  /** Shows a sentence of this file; what was asked since is gone. */
  choose(sentence: number): void {
    if (recorded) this.payload = recorded;
    this.sentence = sentence;
    this.clamp();
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
    if (this.page !== "river") {
      parts.set("page", this.page);
      if (this.page === "guide" && this.at) parts.set("at", this.at);
      for (const [name, value] of Object.entries(this.own)) parts.set(name, value);
    }
    if (this.sentence) parts.set("sentence", String(this.sentence));
    parts.set("target", String(this.target));
    parts.set("source", String(this.source));
    if (this.open) {
      parts.set("open", this.open);
      if (this.open.endsWith("attention")) {
        parts.set("tab", this.tab);
        parts.set("head", this.head === null ? "mean" : String(this.head));
      }
    }
    return `#${parts}`;
  }

  go(address: string): void {
    const parts = new URLSearchParams(address.replace(/^#/, ""));
    const page = parts.get("page") ?? "river";
    this.page = Object.hasOwn(PAGES, page) ? (page as Page) : "river";
    this.at = parts.get("at") ?? this.at;
    const shared = ["page", "at", "sentence", "target", "source", "open", "tab", "head"];
    const own = [...parts].filter(([name]) => !shared.includes(name));
    if (own.length || parts.has("target")) this.own = Object.fromEntries(own);
    if (parts.has("page") && !parts.has("target")) return; // a link from page to page keeps what is followed
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
