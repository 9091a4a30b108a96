// What is changed in the model for the pass that the page shows, the same pass without it, and the way back.
import { withTensors } from "./backend";
import type { Changes, Payload, Trace } from "./document";
import { times } from "./format";
import { view } from "./view.svelte";

type Off = Trace["off"];

export const NOTHING: Changes = { blocked: [], causal: true, positions: true, scale: true };

export const edited = (trace: Trace): boolean =>
  trace.off.length > 0 || JSON.stringify({ ...NOTHING, ...trace.changes }) !== JSON.stringify(NOTHING);

/** Each change in words, as parts of a list. */
export function described({ off, changes }: Trace): string[] {
  const said = off.map(([block, head]) => `${block} head ${head} is off`);
  if (!changes) return said;
  const blocks = new Map<string, number>();
  for (const { block, head } of changes.blocked) {
    const where = `${block}, ${head === null ? "all heads" : `head ${head}`}`;
    blocks.set(where, 1 + (blocks.get(where) ?? 0));
  }
  for (const [where, cells] of blocks) said.push(`${times(cells, "pair")} blocked in ${where}`);
  if (!changes.causal) said.push("the causal mask is off in every decoder layer");
  if (!changes.positions) said.push("no positions are added");
  if (!changes.scale) said.push("embeddings are not multiplied by √d_model");
  return said;
}

/** Asks for the same pass: this target, cut into these pieces. */
export const again = ({ source, target, searches: { beam: { beam, alpha } } }: Trace) =>
  ({ text: source.text, target: target.text, labels: target.labels.map(({ id }) => id), beam, alpha });

class Edits {
  /** What was shown before the first change. */
  #kept = $state.raw<{ payload: Payload; sentence: number } | null>(null);

  /** How often all was undone at once. */
  undone = $state(0);

  /** The trace without changes, where it is known; else the trace itself. */
  base(trace: Trace): Trace {
    const kept = this.#kept?.payload.traces[this.#kept.sentence];
    return edited(trace) && kept?.source.text === trace.source.text ? withTensors(kept) : trace;
  }

  /** Shows this sentence with these heads off and these changes made, on top of what else is changed. */
  async set(part: { off?: Off; changes?: Partial<Changes> }): Promise<void> {
    const trace = view.trace!;
    const base = this.base(trace);
    const off = part.off ?? trace.off;
    const changes = { ...NOTHING, ...trace.changes, ...part.changes };
    const next = { ...base, off, changes };
    if (!edited(next)) return this.#back();
    if (base === trace) this.#kept = { payload: view.payload!, sentence: view.sentence };
    const request = { ...again(base), off };
    await view.ask(edited({ ...next, off: [] }) ? { ...request, changes } : request);
  }

  /** Shows the sentence as the model is. */
  async undo(): Promise<void> {
    this.undone++;
    await this.#back();
  }
  async #back(): Promise<void> {
    const trace = view.trace!;
    const base = this.base(trace);
    if (base !== trace) {
      view.payload = this.#kept!.payload;
      view.sentence = this.#kept!.sentence;
      view.problem = null;
      view.clamp();
    } else if (edited(trace)) {
      await view.ask(trace.target.given ? { text: trace.source.text, target: trace.target.text } : { text: trace.source.text });
    }
  }
}

export const edits = new Edits();
