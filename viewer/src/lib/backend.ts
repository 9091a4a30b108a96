// Where traces come from: recorded in this file, computed by the model in it, or by a server on this machine.
import { completed, engineOf, traceHere, type Engine } from "../engine/engine";
import type { Changes, Payload, Run, Trace, Weights } from "./document";
import { messageOf } from "./format";

export interface Request {
  text: string;
  target?: string;
  labels?: number[]; // the same as ids, EOS last, where its pieces have to stay as they are; a server does not take them
  prefix?: number[]; // target ids that are forced first
  beam?: number;
  alpha?: number;
  off?: [string, number][]; // heads that are switched off
  changes?: Partial<Changes>; // only the model inside the page does this
}

const embedded = document.getElementById("payload")?.textContent ?? "null";

/** What this file brings along; null on the page that a server gave. */
export const recorded: Payload | null = JSON.parse(embedded);

/** A server answers, on this machine. */
export const live = recorded === null;

/** The model itself is in this file: it computes all answers here. */
export const inside = !!recorded?.weights;

/** Other text, other words, heads off: somebody can answer. */
export const canAsk = live || inside;

/** Masks, positions and scale can be changed, and a training step made: by the model inside, or by the
 * weights of the server's, which are fetched when first needed (of a small model). */
export const canChange = canAsk;

export const NEEDS_MODEL =
  "This file holds recorded answers and no model. Run “transduce view MODEL” to ask for others.";

async function answer<T>(path: string, init?: RequestInit): Promise<T> {
  let response: Response;
  try {
    response = await fetch(path, init);
  } catch {
    throw new Error("The server does not answer. Is “transduce view” still running?");
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Error(body?.error?.message ?? `The server says ${response.status}.`);
  return body as T;
}

/** What the model of the server is. */
export const model = (): Promise<Payload["model"]> => answer("api/model");

let fetched: Promise<Engine> | null = null;

/** The model, to compute with in this page. Rejects with a message for people. */
export function engine(): Promise<Engine> {
  if (recorded) return recorded.weights ? Promise.resolve(engineOf(recorded.weights, recorded.model)) : Promise.reject(new Error(NEEDS_MODEL));
  fetched ??= Promise.all([answer<Weights>("api/weights"), model()]).then(([weights, info]) => engineOf(weights, info));
  fetched.catch(() => (fetched = null)); // the next one asks again
  return fetched;
}

/** Traces one text: by the model in this file, or by that of the server. Rejects with a message for people. */
export async function trace(request: Request): Promise<Payload> {
  if (inside || (live && request.changes)) {
    const [here, info] = await Promise.all([engine(), recorded?.model ?? model()]);
    await new Promise((soon) => setTimeout(soon)); // what says that it is busy comes first
    return { model: info, traces: [traceHere(here, request)], others: [], weights: recorded?.weights ?? null, run: recorded?.run ?? null };
  }
  if (!live) throw new Error(NEEDS_MODEL);
  return answer("api/trace", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...request, labels: undefined }),
  });
}

/** The run that the server's MODEL is, with this sentence at each of its checkpoints. */
export const watch = (request: Request): Promise<Run> =>
  answer("api/run", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request) });

/** What was recorded, of traces whose tensors are computed here. */
export const recordedOf = new WeakMap<Trace, Trace>();
const whole = new WeakMap<Trace, Trace>();

/** A trace with its tensors: where it came without them, the model inside computes them. */
export function withTensors(trace: Trace): Trace {
  if (!recorded?.weights || !trace.source.tokens.length || Object.keys(trace.tensors).length) return trace;
  let found = whole.get(trace);
  if (!found) {
    try {
      found = completed(engineOf(recorded.weights, recorded.model), trace);
    } catch (error) {
      found = { ...trace, left_out: `all tensors: ${messageOf(error)}` };
    }
    recordedOf.set(found, trace);
    whole.set(trace, found);
  }
  return found;
}
