// Why a node of a search is what it is, in a sentence with its numbers.
import type { Search, SearchNode } from "../lib/document";
import { number } from "../lib/format";
import type { Item } from "./tree";

export interface Why {
  state: "BOS" | SearchNode["state"] | "greedy only";
  because: string;
}

export function why(item: Item, search: Search): Why {
  const { node } = item;
  if (!node) return { state: "BOS", because: "Every path starts here, with the sum 0." };
  if (item.alone) return { state: "greedy only", because: "Only greedy search came here: the beam had let go of this path before." };
  return { state: node.state, because: { finished, kept, pruned }[node.state](node, search) };
}

const openAt = (step: number, search: Search): SearchNode[] =>
  search.nodes.filter((n) => n.step === step && n.state === "kept");

function pruned(node: SearchNode, search: Search): string {
  if (search.beam === 1) return `Greedy search takes one piece, the likeliest; log p ${number(node.log_prob)} was not.`;
  const open = openAt(node.step, search);
  if (!open.length) return `Nothing stayed open at position ${node.step - 1}.`;
  const least = Math.min(...open.map((n) => n.sum));
  const room = `the least of the ${open.length} that stayed open at position ${node.step - 1}`;
  return node.sum < least
    ? `Its sum ${number(node.sum)} is below ${number(least)}, ${room}.`
    : `Its sum equals ${number(least)}, ${room}; of equals the first is kept.`;
}

function finished(node: SearchNode, search: Search): string {
  const at = search.hypotheses.findIndex((h) => h.node === node.id);
  const found = search.hypotheses[at];
  if (!found) return "It ends.";
  return `It ends: score = sum / lp(${found.length}) = ${number(node.sum)} / ${number(found.penalty)} = ${number(found.score)}, number ${at + 1} of ${search.hypotheses.length}.`;
}

function kept(node: SearchNode, search: Search): string {
  const open = openAt(node.step, search);
  const stayed = `By its sum it is number ${open.filter((n) => n.sum > node.sum).length + 1} of the ${open.length} that stayed open at position ${node.step - 1}.`;
  if (search.nodes.at(-1)!.step === node.step) return `${stayed} Here the search stopped: no open path could still beat what had finished.`;
  const children = search.nodes.filter((n) => n.parent === node.id);
  if (!children.length) return `${stayed} It is a dead end: none of its extensions was among the ${2 * search.beam} best of the next step.`;
  return children.every((n) => n.state === "pruned") ? `${stayed} All its extensions were pruned.` : stayed;
}
