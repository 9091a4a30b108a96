// A search as a tree to draw: greedy's path laid into the beam's, what to fold, and places.
import type { Search, SearchNode } from "../lib/document";
import { pathTo } from "./rank";

/** A node of the beam search; of greedy search alone where the beam never had it; or BOS. */
export interface Item {
  key: string;
  parent: string | null;
  node: SearchNode | null; // null: BOS
  winner: boolean;
  greedy: boolean;
  alone: boolean; // only greedy search went here
}

export type Detail = "finished" | "open" | "all";

export const ROOT = "bos";

export function merge(beam: Search, greedy: Search, winner: number): Item[] {
  const best = new Set(pathTo(beam, winner).map((n) => n.id));
  const items = new Map<string, Item>();
  const children = new Map<string, string>(); // parent and token -> key
  const add = (key: string, parent: string, node: SearchNode, alone: boolean) => {
    items.set(key, { key, parent, node, winner: !alone && best.has(node.id), greedy: alone, alone });
    children.set(`${parent} ${node.token.id}`, key);
  };
  items.set(ROOT, { key: ROOT, parent: null, node: null, winner: true, greedy: true, alone: false });
  for (const node of beam.nodes) add(String(node.id), String(node.parent ?? ROOT), node, false);
  let at = ROOT;
  for (const node of pathTo(greedy, greedy.hypotheses[0]?.node)) {
    const found = children.get(`${at} ${node.token.id}`);
    if (found) items.get(found)!.greedy = true;
    else add(`g${node.id}`, at, node, true);
    at = found ?? `g${node.id}`;
  }
  return [...items.values()];
}

/** What stays when the rest is folded: always a tree, with the winner's and greedy's paths. */
export function fold(items: Item[], detail: Detail): Item[] {
  if (detail === "all") return items;
  const parents = new Map(items.map((item) => [item.key, item.parent]));
  const states: (string | undefined)[] = detail === "open" ? ["finished", "kept"] : ["finished"];
  const kept = new Set<string | null>([ROOT]);
  for (const item of items)
    if (item.greedy || item.winner || states.includes(item.node?.state))
      for (let key: string | null = item.key; key && !kept.has(key); key = parents.get(key) ?? null)
        kept.add(key);
  return items.filter((item) => kept.has(item.key));
}

export interface Place extends Item {
  depth: number;
  lane: number;
  children: string[];
}

/**
 * Lanes: the winner runs straight in lane 0, a branch hangs below what it left, a path goes on in
 * its lane unless those above need room; so no edges cross.
 */
export function place(items: Item[]): Place[] {
  const below = new Map<string | null, Item[]>();
  for (const item of items) below.set(item.parent, [...(below.get(item.parent) ?? []), item]);
  const worth = new Map<Item, number>();
  weigh(below.get(null)![0]!);

  const free: number[] = []; // the first free lane of each depth
  const places: Place[] = [];
  const queue = [{ item: below.get(null)![0]!, depth: 0, wanted: 0 }];
  for (const { item, depth, wanted } of queue) {
    const lane = Math.max(free[depth] ?? 0, wanted);
    free[depth] = lane + 1;
    const children = (below.get(item.key) ?? []).sort((a, b) => worth.get(b)! - worth.get(a)!);
    queue.push(...children.map((child, k) => ({ item: child, depth: depth + 1, wanted: lane + Number(k > 0) })));
    places.push({ ...item, depth, lane, children: children.map((child) => child.key) });
  }
  return places;

  /** The winner first, then what finished, what went furthest, what was likelier. */
  function weigh(item: Item): number {
    const own = item.node?.state === "finished" ? 1e6 : item.alone || item.node?.state === "kept" ? 1e3 : 0;
    const most = Math.max(own - (item.node?.id ?? 0) / 1e6, ...(below.get(item.key) ?? []).map((child) => weigh(child) + 1));
    worth.set(item, item.winner ? Infinity : most);
    return worth.get(item)!;
  }
}
