// The stops of the river: runs of steps that belong together, in the order of computation.
import type { Step, Trace } from "../lib/document";
import { layerOf, type Side } from "../lib/maps";

export type Kind =
  | "pieces" | "embedding" | "position" | "attention" | "residual" | "feed_forward" | "memory" | "next_word" | "training";

export interface Stop {
  id: string; // "decoder.1.cross_attention"; its element is "stop-" + id
  kind: Kind;
  side: Side; // the band that it is in
  layer: number | null;
  title: string;
  steps: Step[];
  /** Name of the step whose row flows on. */
  result: string | null;
  /** The station that opens here. */
  station: string | null;
  /** The first of its kind: says what there is to try. */
  first: boolean;
  /** The first of its layer. */
  begins: boolean;
  /** Row of the grid on wide screens: equal steps of encoder and decoder side by side. */
  line: number;
}

const TITLES: [RegExp, Kind, string][] = [
  [/cross_attention$/, "attention", "Cross-attention"],
  [/^decoder.*self_attention$/, "attention", "Masked self-attention"],
  [/self_attention$/, "attention", "Self-attention"],
  [/_residual$/, "residual", "Add & norm"],
  [/feed_forward$/, "feed_forward", "Feed-forward"],
];

const stopIdOf = (name: string): string => {
  if (name.endsWith("_embedding.table")) return name;
  if (/^(source|target)_embedding/.test(name)) return name.split(".")[0]!;
  if (name === "encoder_norm") return "memory";
  if (name === "decoder_norm" || name === "output") return "next_word";
  return name.slice(0, name.lastIndexOf("."));
};

const sideOf = (id: string): Side => (/^(source|encoder|memory)/.test(id) ? "source" : "target");

function stop(id: string, steps: Step[]): Stop {
  const layer = /^(en|de)coder\.\d/.test(id) ? layerOf(id) : null;
  const common = { id, side: sideOf(id), layer, steps, result: steps.at(-1)!.name, station: null, first: false, begins: false, line: 0 };
  if (id.endsWith(".table")) return { ...common, kind: "embedding", title: "Embedding" };
  if (id.endsWith("_embedding")) return { ...common, kind: "position", title: "Position", station: id };
  if (id === "memory") return { ...common, kind: "memory", title: "The memory" };
  if (id === "next_word") return { ...common, kind: "next_word", title: "The next word", result: "decoder_norm", station: "next_word" };
  const [, kind, title] = TITLES.find(([ends]) => ends.test(id))!;
  if (kind === "residual" && steps.length === 1) {
    // Pre-norm: the norm comes before the sub-layer, the sum after it.
    const { name } = steps[0]!;
    return { ...common, id: name, station: name, kind, title: name.endsWith(".norm") ? "Norm" : "Add" };
  }
  return { ...common, kind, title, station: id };
}

/** All stops, the encoder's first; `hidden` layers are left out. */
export function stopsOf(trace: Trace, hidden: (layer: number, side: Side) => boolean): Stop[] {
  const stops: Stop[] = [];
  for (const side of ["source", "target"] as const) {
    const id = `${side}.pieces`;
    stops.push({
      id, kind: "pieces", side, layer: null, title: "Pieces", steps: [], result: null, station: null,
      first: false, begins: false, line: 0,
    });
    let run: Step[] = [];
    const end = () => {
      if (run.length) stops.push(stop(stopIdOf(run[0]!.name), run));
      run = [];
    };
    for (const step of trace.steps) {
      const id = stopIdOf(step.name);
      if (sideOf(id) !== side) continue;
      if (run.length && stopIdOf(run[0]!.name) !== id) end();
      run.push(step);
    }
    end();
  }
  stops.push({
    id: "training", kind: "training", side: "target", layer: null, title: "How it learnt this", steps: [], result: null,
    station: "training", first: true, begins: false, line: 0,
  });
  return placed(stops.filter((each) => each.layer === null || !hidden(each.layer, each.side)));
}

/** The decoder keeps step with the encoder until it has to wait for the memory. */
function placed(stops: Stop[]): Stop[] {
  const seen = new Set<string>();
  const memory = stops.filter((each) => each.side === "source").length;
  const line = { source: 0, target: 0 };
  return stops.map((each, i) => {
    const kind = ["attention", "residual"].includes(each.kind) ? each.title : each.kind;
    const first = !seen.has(kind);
    seen.add(kind);
    line[each.side]++;
    if (each.title === "Cross-attention") line.target = Math.max(line.target, memory);
    const begins = each.layer !== null && each.layer !== stops[i - 1]?.layer;
    return { ...each, first, begins, line: line[each.side] };
  });
}

/** Which row of a step's tensor belongs to the chosen token: keys and values of the memory are source rows. */
export function rowSide(name: string): Side {
  return /cross_attention\.(key|value)$/.test(name) || /^(source|encoder)/.test(name) ? "source" : "target";
}
