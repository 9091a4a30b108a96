"""The tree of a beam search as it ran: what was kept, pruned and finished, and why one won."""

from collections import defaultdict
from typing import Any, NamedTuple

from transduce.trace.figures.canvas import (
    LINE,
    MARGIN,
    RAISED,
    SOFT,
    STREAM,
    SUNK,
    TOP,
    WEIGHT,
    Number,
    figure,
    line,
    rect,
    text,
    width,
)

_ROW, _BOX, _GAP = 42, 34, 52  # pixels: a lane, a node's height, what an edge has

_LEGEND = (
    "Solid: kept. Thick: the path that won. Dashed and grey: pruned, not among the best of a step.",
    "Dark: finished. On an edge log p of its piece, in nats; below a piece the sum of its path.",
)


class _Place(NamedTuple):
    """Where a node stands."""

    node: dict[str, Any] | None
    """None: BOS."""
    depth: int
    lane: int


def beam(trace: dict[str, Any]) -> str:
    """Draw the tree of beam search, each node with its sum, each edge with its log-probability.

    Args:
        trace: of a document, `Trace.to_json()["traces"][0]`.
    """
    search = trace["searches"]["beam"]
    places = _places(search)
    best = {node["id"] for node in _path(search, search["hypotheses"][0]["node"])}
    scores = {each["node"]: each["score"] for each in search["hypotheses"]}
    widths: dict[int, float] = defaultdict(float)
    for place in places.values():
        widths[place.depth] = max(widths[place.depth], width(_name(place.node)) + 12, 62)
    left, x = {}, float(MARGIN)
    for depth in sorted(widths):
        left[depth], x = x, x + widths[depth] + _GAP
    bends, edges, nodes = _bends(places), [], []
    for place in places.values():
        at, box = (left[place.depth], TOP + 8 + _ROW * place.lane), widths[place.depth]
        if place.node is not None:
            parent = places[place.node["parent"]]
            edge = left[parent.depth] + widths[parent.depth]
            start = (edge, TOP + 8 + _ROW * parent.lane)
            above = (place.node["id"] in best, place.node["state"] != "pruned")
            bend = edge + bends[place.node["parent"]]
            edges.append((above, _edge(start, bend, at, place.node, best)))
        nodes += _node(place.node, *at, box, best, scores)
    edges.sort(key=lambda edge: edge[0])  # what has won is not hidden
    parts = [part for _, drawn in edges for part in drawn] + nodes
    y = TOP + 8 + _ROW * (1 + max(place.lane for place in places.values()))
    legend = [
        text(MARGIN, y + 8 + 15 * row, words, fill=SOFT, family="sans")
        for row, words in enumerate(_LEGEND)
    ]
    table, told = _table(search, y + 50)
    title = f"Beam search, beam {search['beam']}, alpha {search['alpha']:g}"
    w = (
        max(x - _GAP, *(width(row) for row in told), *(width(row, 11, "sans") for row in _LEGEND))
        + MARGIN
    )
    down = y + 56 + 16 * len(table)
    words = f"{title}. {len(search['nodes'])} nodes. " + " ".join(told)
    return figure(w, down, title, words, [*parts, *legend, *table])


def _name(node: dict[str, Any] | None) -> str:
    return "BOS" if node is None else node["token"]["piece"]


def _path(search: dict[str, Any], end: int) -> list[dict[str, Any]]:
    """The nodes from the first piece to `end`."""
    nodes = {node["id"]: node for node in search["nodes"]}
    path = [nodes[end]]
    while (parent := path[-1]["parent"]) is not None:
        path.append(nodes[parent])
    return path[::-1]


def _places(search: dict[str, Any]) -> dict[int | None, _Place]:
    """Lanes: the winner runs straight, a branch hangs below what it left; no edges cross."""
    below: dict[int | None, list[dict[str, Any]]] = defaultdict(list)
    for node in search["nodes"]:
        below[node["parent"]].append(node)
    order: dict[int, int] = {}  # of the outputs, the best first; a subtree is as good as its best
    for rank, each in reversed(list(enumerate(search["hypotheses"]))):
        order |= {node["id"]: rank for node in _path(search, each["node"])}
    last = len(search["hypotheses"])
    free: dict[int, int] = defaultdict(int)
    places: dict[int | None, _Place] = {}
    queue: list[tuple[dict[str, Any] | None, int, int]] = [(None, 0, 0)]
    for node, depth, wanted in queue:
        lane = max(free[depth], wanted)
        free[depth] = lane + 1
        key = None if node is None else node["id"]
        places[key] = _Place(node, depth, lane)
        children = sorted(
            below[key], key=lambda n: (order.get(n["id"], last), n["state"] == "pruned", -n["sum"])
        )
        queue += [(child, depth + 1, lane + (k > 0)) for k, child in enumerate(children)]
    return places


def _bends(places: dict[int | None, _Place]) -> dict[int | None, Number]:
    """Where the edges of each parent turn, right of it: of a lower one earlier, or they cross."""
    parents = {place.node["parent"] for place in places.values() if place.node is not None}
    rows: dict[int, list[int | None]] = defaultdict(list)
    for key in sorted(parents, key=lambda key: -places[key].lane):
        rows[places[key].depth].append(key)
    return {
        key: 4 + k * min(5.0, 16 / len(row)) for row in rows.values() for k, key in enumerate(row)
    }


def _edge(
    start: tuple[Number, Number],
    bend: Number,
    end: tuple[Number, Number],
    node: dict[str, Any],
    best: set[int],
) -> list[str]:
    won, pruned = node["id"] in best, node["state"] == "pruned"
    stroke = WEIGHT if won else LINE if pruned else STREAM
    style = f'stroke-width="{2.5 if won else 1.2}"' + (' stroke-dasharray="3 3"' if pruned else "")
    (x, y), (x2, y2) = ((x, y + _BOX / 2) for x, y in (start, end))
    turn = [(bend, y), (bend, y2)] if y != y2 else []
    return [
        line([(x, y), *turn, (x2, y2)], stroke, style=style),
        text(x2 - 3, y2 - 4, f"{node['log_prob']:.2f}", size=9, anchor="end", fill=SOFT),
    ]


def _node(
    node: dict[str, Any] | None,
    x: Number,
    y: Number,
    w: Number,
    best: set[int],
    scores: dict[int, Number],
) -> list[str]:
    if node is None:
        return [
            rect(x, y, w, _BOX, RAISED, stroke=WEIGHT, style='rx="4" stroke-width="2.5"'),
            text(x + w / 2, y + _BOX / 2 + 4, "BOS", anchor="middle"),
        ]
    state, won = node["state"], node["id"] in best
    told = f"{_name(node)}: log p {node['log_prob']:.4f}, sum {node['sum']:.4f}, {state}"
    if state == "finished":
        told += f", score {scores[node['id']]:.4f}"
    fill = {"kept": RAISED, "pruned": SUNK, "finished": WEIGHT}[state]
    ink = {"kept": "#1d2026", "pruned": SOFT, "finished": RAISED}[state]
    stroke = WEIGHT if won or state == "finished" else LINE if state == "pruned" else STREAM
    style = f'rx="4" stroke-width="{2.5 if won else 1}"'
    shown = f"{node['sum']:.2f}" if state != "finished" else f"score {scores[node['id']]:.2f}"
    return [
        rect(x, y, w, _BOX, fill, stroke=stroke, title=told, style=style),
        text(x + w / 2, y + 14, _name(node), anchor="middle", fill=ink),
        text(x + w / 2, y + 27, shown, size=9, anchor="middle", fill=ink),
    ]


def _table(search: dict[str, Any], y: Number) -> tuple[list[str], list[str]]:
    """The outputs, the best score first, and why the first has won."""
    found = search["hypotheses"]
    rows = [
        f"{rank}. {each['score']:.4f} = {each['sum']:.4f} / lp({each['length']}) "
        f"{each['penalty']:.4f}  {each['text']}"
        for rank, each in enumerate(found, start=1)
    ]
    if len(found) == 1:
        why = "It is the only output that ended."
    elif found[0]["sum"] == max(each["sum"] for each in found):
        ahead = found[0]["score"] - found[1]["score"]
        why = f"The first won: its score is the greatest, by {ahead:.4f}, and so is its sum."
    else:
        why = "The first won by its score: another has a greater sum, but is shorter."
    lines = ["score = sum / lp(length)", *rows, why]
    return [text(MARGIN, y + 16 * k, row) for k, row in enumerate(lines)], lines
