// Where to begin: the position that there is most to see at.
import type { Trace } from "../lib/document";
import { word } from "../lib/format";
import { largest } from "../lib/maths";

/** A pronoun that the source has to decide, else where the model was least sure. */
export function interesting(trace: Trace): number {
  const pronoun = trace.target.labels.findIndex((token) => ["il", "elle"].includes(word(token).toLowerCase()));
  const { entropy } = trace.output;
  return pronoun >= 0 ? pronoun : largest(entropy);
}
