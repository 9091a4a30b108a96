// The figures of the guide: which station, and where in the model it stands.
import type { Trace } from "../lib/document";
import { blockName, layerOf, patternOf, PATTERNS } from "../lib/maps";
import { stopsOf, type Kind, type Stop } from "../river/stops";
import type { Tab } from "../lib/view.svelte";

export interface Place {
  /** The station to open in the river; null: the river itself. */
  open: string | null;
  tab?: Tab;
  /** The stop of a station that is no attention block. */
  stop?: Stop;
  /** "decoder layer 1, cross-attention" */
  where: string;
}

const TABS: Record<string, Tab> = { equation: "equation", heads: "heads", patterns: "patterns", masks: "masks" };
const KINDS: Record<string, [Kind, string]> = {
  tokens: ["position", "the source pieces, before the first layer"],
  block: ["residual", "the first layer of the encoder"],
  training: ["training", "the whole model, one step of training"],
  nextword: ["next_word", "the end of the decoder"],
};

export const TITLES: Record<string, string> = {
  river: "The whole model", tokens: "Tokens and positions", equation: "The attention equation", heads: "Heads", patterns: "Three patterns",
  masks: "Masks", block: "The rest of the block", training: "One training step", nextword: "The next word",
};

/** Where the live figure shows other things than the drawing. */
export const CAPTIONS: Record<string, string> = {
  river: "The source through the encoder's layers to the memory; the target through the decoder's layers, which read the memory, to the next word",
  block: "Addition and normalisation after an attention, with the vector after each. After the feed-forward network, which has a place of its own in the translation, they are the same",
};

/** Null: this trace has no such place. */
export function placeOf(name: string, trace: Trace, layers: number): Place | null {
  const tab = TABS[name];
  if (tab) {
    // Masks and patterns begin where a triangle is to be seen; the equation where the target asks the source.
    const open = tab === "equation" || tab === "heads" ? blockName("cross", layers - 1) : blockName("decoder_self", 0);
    return { open, tab, where: `decoder layer ${layerOf(open)}, ${PATTERNS[patternOf(open)].title.toLowerCase()}` };
  }
  if (name === "river") return { open: null, where: "the whole model" };
  const [kind, where] = KINDS[name]!;
  const stop = stopsOf(trace, () => false).find((each) => each.kind === kind && each.station);
  return stop ? { open: stop.station, stop, where } : null;
}
