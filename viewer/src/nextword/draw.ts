// Where the tree's nodes and edges lie, in pixels of a 16-pixel rem: a step a column, from left to right.
import type { Place } from "./tree";

export interface Drawn extends Place {
  x: number; // of the middle
  y: number;
  width: number;
}

export const HEIGHT = 26; // of a node
const GAP = 58; // between steps, for the edge and its number
const LANE = 38;

export function draw(places: Place[], widthOf: (place: Place) => number) {
  const widest: number[] = [];
  for (const place of places) widest[place.depth] = Math.max(widest[place.depth] ?? 0, widthOf(place));
  let end = 12 - GAP;
  const along = widest.map((width) => (end += width + GAP) - width); // where each column begins
  const nodes = places.map((place): Drawn => {
    const width = widthOf(place);
    return { ...place, width, x: along[place.depth]! + width / 2, y: 46 + place.lane * LANE };
  });
  const byKey = new Map(nodes.map((n) => [n.key, n]));
  const edges = nodes.flatMap((to) => {
    const from = byKey.get(to.parent ?? "");
    if (!from) return [];
    // It bends between the columns, where no node is.
    const [a, b] = [from.x + from.width / 2, to.x - to.width / 2];
    const [c, d] = [b - GAP + 4, b - GAP + 24];
    const path = `M${a},${from.y}H${c}C${(c + d) / 2},${from.y} ${(c + d) / 2},${to.y} ${d},${to.y}H${b}`;
    return [{ to, path, width: 1 + 4 * Math.exp(to.node!.log_prob) }];
  });
  return { nodes, edges, along, width: end + 12, height: Math.max(...nodes.map((n) => n.y)) + 28 };
}
