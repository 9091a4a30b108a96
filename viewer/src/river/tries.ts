// What a reader can do at once, at the first stop of each kind.
import type { Stop } from "./stops";

export function tryThis(stop: Stop): string | null {
  if (!stop.first) return null;
  if (stop.kind === "pieces") return "choose another piece above, and see all that is below change.";
  if (stop.kind === "embedding") return "give a sentence in which one piece stands twice, and choose its two places: this row stays the same.";
  if (stop.kind === "position") return "go one piece to the right: the fast waves on the left change, the slow ones hardly.";
  if (stop.title === "Norm") return null;
  if (stop.kind === "residual") return "compare x with what comes out: how much of it was there before?";
  if (stop.kind === "feed_forward") return "look closer and go along the strip with ← and →: most units are silent.";
  if (stop.kind === "memory") return "choose another target piece, and see what it reads.";
  if (stop.kind === "next_word") return "open it, and make the model say its second choice.";
  if (stop.kind === "training") return "open it, and let a toy model learn with the causal mask and without it.";
  if (stop.title === "Cross-attention") return "choose the target piece before this one: where did it look?";
  if (stop.title === "Self-attention") return "open it and compare the heads: their mean hides how much they differ.";
  return "open it, and look at the blocked half of the map.";
}
