"""The pictures that only the guide has: the order of steps, the example, a block, a lesson."""

import math
from typing import Any

import numpy as np

from transduce.trace.figures.attention import pieces, read, values
from transduce.trace.figures.canvas import (
    BAD,
    DECODER,
    ENCODER,
    INK,
    KEY,
    LINE,
    MARGIN,
    QUERY,
    RAISED,
    SOFT,
    STREAM,
    SUNK,
    TOP,
    VALUE,
    WEIGHT,
    arrow,
    figure,
    group,
    line,
    rect,
    shade,
    signed,
    text,
    width,
)

Q = np.array([1.0, 0.0])
K = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
V = np.array([[2.0, 0.0], [0.0, 2.0], [2.0, 2.0]])
"""The guide's example."""

SHOWN = 12
"""Dimensions of a vector that are drawn."""


def box(x: float, y: float, w: float, words: list[str], fill: str, stroke: str = STREAM) -> str:
    """A box with a name, and below it what it does."""
    h = 14 + 15 * len(words)
    parts = [rect(x, y, w, h, fill, stroke=stroke, style='rx="4"')]
    for k, each in enumerate(words):
        family, ink = ("sans", INK) if k == 0 else ("mono", SOFT)
        at = (x + w / 2, y + 19 + 15 * k)
        parts.append(
            text(*at, each, anchor="middle", family=family, fill=ink, size=11 if k == 0 else 10)
        )
    return "".join(parts)


def river(document: dict[str, Any]) -> str:
    """The model's own steps in their order, with the shapes of one sentence."""
    config = document["model"]["config"]
    (one,) = document["traces"]
    s, t, d = len(one["source"]["tokens"]), len(one["target"]["input"]), config["d_model"]
    h, ff, pre = config["heads"], config["d_ff"], config["norm"] == "pre"
    added = "x + f(LayerNorm(x))" if pre else "LayerNorm(x + f(x))"
    norm = ["of LayerNorm(x)"] if pre else []
    rate = f"√{d} · row of the table + position"
    encoder = [
        (["source pieces", f"[{s}]"], RAISED),
        (["embedding", rate, f"[{s}, {d}]"], RAISED),
        (["self-attention", f"{h} heads, maps [{h}, {s}, {s}]", added], ENCODER),
        (["feed-forward", f"{d} → {ff} → {d}", added], ENCODER),
        (["memory", *norm, f"[{s}, {d}]"], RAISED),
    ]
    decoder = [
        (["target so far, BOS first", f"[{t}]"], RAISED),
        (["embedding", rate, f"[{t}, {d}]"], RAISED),
        (["masked self-attention", f"{h} heads, maps [{h}, {t}, {t}]", added], DECODER),
        (["cross-attention", f"{h} heads, maps [{h}, {t}, {s}]", added], DECODER),
        (["feed-forward", f"{d} → {ff} → {d}", added], DECODER),
        (["logits, then softmax", *norm, f"[{t}, {config['target_vocab_size']}]"], RAISED),
        (["the next piece", "of every position"], RAISED),
    ]
    x, x2, w, parts, places = 60.0, 400.0, 230.0, [], {}
    for side, left, rows in (("encoder", x, encoder), ("decoder", x2, decoder)):
        y = TOP + 30.0
        parts.append(
            text(left + w / 2, TOP + 14, side, anchor="middle", family="sans", style="bold")
        )
        for k, (words, fill) in enumerate(rows):
            if k:
                parts.append(arrow(left + w / 2, y - 18, left + w / 2, y - 2))
            parts.append(box(left, y, w, words, fill))
            places[side, words[0]] = y
            y += 14 + 15 * len(words) + 20
        places[side, "end"] = y
    for side, left, first, last in (
        ("encoder", x, "self-attention", "memory"),
        ("decoder", x2, "masked self-attention", "logits, then softmax"),
    ):
        top, bottom = places[side, first] - 6, places[side, last] - 14
        count = config[f"{side}_layers"]
        edge = left - 12 if side == "encoder" else left + w + 12
        turn = 6 if side == "encoder" else -6
        parts.append(
            line([(edge + turn, top), (edge, top), (edge, bottom), (edge + turn, bottom)], SOFT)
        )
        at = (edge - 6, "end") if side == "encoder" else (edge + 6, "start")
        parts.append(text(at[0], (top + bottom) / 2, f"x {count}", anchor=at[1], family="sans"))
    y1, y2 = places["encoder", "memory"] + 22, places["decoder", "cross-attention"] + 30
    middle = (x + w + x2) / 2
    parts.append(line([(x + w, y1), (middle, y1), (middle, y2)], VALUE, style='stroke-width="1.5"'))
    parts.append(arrow(middle, y2, x2 - 2, y2, VALUE))
    parts.append(text(middle + 4, y2 - 20, "keys,", fill=KEY, family="sans"))
    parts.append(text(middle + 4, y2 - 7, "values", fill=VALUE, family="sans"))
    y3 = places["decoder", "cross-attention"] - 7
    parts.append(text(x2 + w / 2 + 8, y3, "queries", fill=QUERY, family="sans"))
    told = (
        f"Encoder: {s} source pieces become {s} vectors of {d} numbers, pass "
        f"{config['encoder_layers']} layers of self-attention and feed-forward, and are the "
        f"memory. Decoder: {t} target pieces, BOS first, pass {config['decoder_layers']} layers "
        "of masked self-attention, cross-attention over the memory and feed-forward; logits over "
        "the vocabulary give the next piece."
    )
    return figure(730, places["decoder", "end"], "From a sentence to the next word", told, parts)


def equation() -> str:
    """softmax(q Kᵀ / √d_k) V with three keys, number by number."""
    raw = K @ Q
    scaled = raw / math.sqrt(2)
    grown = np.exp(scaled)
    weights = grown / grown.sum()
    output = weights @ V
    heads = ["key", "value", "q · k", "÷ √2", "exp", "weight", "weight x value"]
    inks = [KEY, VALUE, INK, INK, INK, WEIGHT, VALUE]
    at = [80.0, 160.0, 230.0, 310.0, 395.0, 500.0, 650.0]
    y = TOP + 50.0
    parts = [text(MARGIN, TOP + 12, f"query q = [{Q[0]:g}, {Q[1]:g}],  d_k = 2", fill=QUERY)]
    parts += [
        text(x, y, name, anchor="middle", fill=ink, family="sans", style="bold")
        for x, name, ink in zip(at, heads, inks, strict=True)
    ]
    for j in range(3):
        row = y + 30 + 34 * j
        shares = weights[j] * V[j]
        cells = [
            f"[{K[j, 0]:g}, {K[j, 1]:g}]",
            f"[{V[j, 0]:g}, {V[j, 1]:g}]",
            f"{raw[j]:g}",
            f"{scaled[j]:.6f}" if raw[j] else "0",
            f"{grown[j]:.6f}" if raw[j] else "1",
            f"{weights[j]:.6f}",
            f"[{shares[0]:.6f}, {shares[1]:.6f}]",
        ]
        parts.append(text(MARGIN, row, f"{j + 1}", fill=SOFT))
        parts += [
            text(x, row, cell, anchor="middle", fill=ink)
            for x, cell, ink in zip(at, cells, inks, strict=True)
        ]
        parts.append(rect(450, row + 6, 100, 6, SUNK))
        parts.append(rect(450, row + 6, 100 * weights[j], 6, WEIGHT))
    row = y + 30 + 34 * 3
    parts.append(line([(MARGIN, row - 14), (760, row - 14)], SOFT))
    sums = [f"sum {grown.sum():.6f}", f"sum {weights.sum():g}"]
    parts += [text(x, row + 6, s, anchor="middle") for x, s in zip(at[4:6], sums, strict=True)]
    parts.append(
        text(at[6], row + 6, f"[{output[0]:.6f}, {output[1]:.6f}]", anchor="middle", style="bold")
    )
    parts.append(
        text(at[6], row + 24, "output: their sum", anchor="middle", family="sans", fill=SOFT)
    )
    parts.append(
        text(
            MARGIN,
            row + 24,
            "÷ √d_k: √2 = 1.414214; exp ÷ its sum = weight",
            family="sans",
            fill=SOFT,
        )
    )
    told = (
        f"Scores {_list(raw, 'g')}, scaled {_list(scaled)}, exponentials {_list(grown)} with sum "
        f"{grown.sum():.6f}, weights {_list(weights)}, output {_list(output)}."
    )
    return figure(
        772, row + 40, "Attention by hand: softmax(q · keys / √d_k) · values", told, parts
    )


def tokens(one: dict[str, Any]) -> str:
    """Pieces, ids, and the three vectors of each: of the word, of the place, their sum."""
    shown = one["source"]["tokens"]
    place = values(one["tensors"]["source_embedding.positions"])
    whole = values(one["tensors"]["source_embedding"])
    d = whole.shape[1]
    rows = values(one["tensors"]["source_embedding.table"]) * math.sqrt(d)
    assert np.allclose(rows + place, whole, atol=1e-4)
    limit = max(np.abs(x[:, :SHOWN]).max() for x in (rows, place, whole))
    left, cell, y = 170.0, 15.0, TOP + 40.0
    parts = [
        text(70, y - 12, "piece", anchor="end", family="sans", fill=SOFT),
        text(120, y - 12, "id", anchor="end", family="sans", fill=SOFT),
    ]
    names = [(f"√{d} · row of the table", rows), ("+ position", place), ("= what enters", whole)]
    for k, (name, table) in enumerate(names):
        x = left + k * (cell * SHOWN + 60)
        parts.append(text(x, y - 12, name, family="sans", style="bold"))
        cells = [
            rect(x + cell * j, y + 26 * i, cell - 1, 17, signed(value, limit))
            for i, row in enumerate(table)
            for j, value in enumerate(row[:SHOWN])
        ]
        parts.append(group(cells, f'stroke="{LINE}" stroke-width="0.5"'))
        parts += [
            text(x + cell * SHOWN + 4, y + 26 * i + 13, f"{np.linalg.norm(row):.2f}", fill=SOFT)
            for i, row in enumerate(table)
        ]
    for i, token in enumerate(shown):
        parts.append(text(70, y + 26 * i + 13, token["piece"], anchor="end"))
        parts.append(text(120, y + 26 * i + 13, str(token["id"]), anchor="end"))
        parts.append(text(150, y + 26 * i + 13, str(i), anchor="end", fill=SOFT))
    parts.append(text(150, y - 12, "place", anchor="end", family="sans", fill=SOFT))
    bottom = y + 26 * len(shown) + 16
    words = (
        f"The first {SHOWN} of {d} dimensions, blue below 0, brown above, full at {limit:.2f}; "
        "beside each its length."
    )
    parts.append(text(MARGIN, bottom, words, family="sans", fill=SOFT))
    told = "; ".join(
        f"{token['piece']}, id {token['id']}: lengths {np.linalg.norm(rows[i]):.2f}, "
        f"{np.linalg.norm(place[i]):.2f}, {np.linalg.norm(whole[i]):.2f}"
        for i, token in enumerate(shown)
    )
    return figure(
        left + 3 * (cell * SHOWN + 60) - 10, bottom + 14, "From pieces to vectors", told, parts
    )


def heads(document: dict[str, Any], block: str) -> str:
    """How a vector is cut into heads, each attends, and they are joined again."""
    config, (one,) = document["model"]["config"], document["traces"]
    count, d_k, d_v, d = (config[name] for name in ("heads", "d_k", "d_v", "d_model"))
    maps = [read(one, block, head) for head in range(count)]
    t, s = maps[0].weights.shape
    cell = 12
    step = max(cell * s + 34, 110)
    left, y = 150.0, TOP + 20.0
    parts = []
    rows = [
        (f"queries [{t}, {d}]", y, QUERY),
        (f"cut: {count} x [{t}, {d_k}]", y + 52, QUERY),
        (f"a map each [{t}, {s}]", y + 104, WEIGHT),
        (f"mixed values [{t}, {d_v}]", y + 122 + cell * t, VALUE),
        (f"joined [{t}, {count * d_v}]", y + 176 + cell * t, VALUE),
        (f"· W_O → [{t}, {d}]", y + 222 + cell * t, STREAM),
    ]
    parts += [text(MARGIN, at + 14, name, family="sans", fill=ink) for name, at, ink in rows]
    for at, ink in ((y, QUERY), (y + 176 + cell * t, VALUE), (y + 222 + cell * t, STREAM)):
        parts.append(rect(left, at, step * count - 14, 20, shade(0.18, ink), stroke=ink))
    for k, one_map in enumerate(maps):
        x = left + step * k
        w = step - 14
        parts.append(rect(x, y + 52, w, 20, shade(0.18, QUERY), stroke=QUERY))
        first = f"{k * d_k} to {(k + 1) * d_k - 1}"
        parts.append(text(x + w / 2, y + 66, first, anchor="middle", size=9))
        parts.append(arrow(x + w / 2, y + 22, x + w / 2, y + 50, QUERY))
        inner = x + (w - cell * s) / 2
        cells = [
            rect(inner + cell * j, y + 104 + cell * i, cell - 1, cell - 1, shade(weight))
            for i, row in enumerate(one_map.weights)
            for j, weight in enumerate(row)
        ]
        parts.append(group(cells, f'stroke="{LINE}" stroke-width="0.5"'))
        parts.append(text(x, y + 96, f"head {k}", size=10, fill=SOFT))
        low = y + 122 + cell * t
        parts.append(rect(x, low, w, 20, shade(0.18, VALUE), stroke=VALUE))
        parts.append(arrow(x + w / 2, low + 22, x + w / 2, low + 52, VALUE))
        if k:
            parts.append(
                line([(x - 7, low + 54), (x - 7, low + 74)], VALUE, style='stroke-dasharray="2 2"')
            )
    bottom = y + 222 + cell * t
    parts.append(arrow(left + step * count / 2, bottom - 24, left + step * count / 2, bottom - 2))
    told = (
        f"{block}: {count} heads. Queries of {d} numbers are cut into {count} parts of {d_k}, keys "
        f"and values alike; each head attends by itself, one map of {t} queries and {s} keys; the "
        "mixed values are joined and multiplied by W_O."
    )
    title = f"{count} heads of {d_k} in {d} dimensions"
    return figure(left + step * count, bottom + 34, title, told, parts)


def block(model: dict[str, Any]) -> str:
    """A residual block, post-norm and pre-norm, and the feed-forward network."""
    config = model["config"]
    d, ff = config["d_model"], config["d_ff"]
    parts, y, w = [], TOP + 30.0, 170.0
    for k, (name, formula, order) in enumerate(
        (
            ("post-norm (the paper)", "LayerNorm(x + f(x))", ["f", "+", "LayerNorm"]),
            ("pre-norm", "x + f(LayerNorm(x))", ["LayerNorm", "f", "+"]),
        )
    ):
        x = 60.0 + 300 * k
        mine = config["norm"] == name[: name.index("-")]
        told = f"{name}{', this model' if mine else ''}"
        parts.append(text(x, TOP + 12, told, family="sans", style="bold"))
        parts.append(text(x + w / 2, y + 8, "x", anchor="middle", fill=STREAM, style="bold"))
        at, middle = y + 14, x + w / 2
        for part in order:
            parts.append(arrow(middle, at, middle, at + 28))
            at += 30
            if part == "+":
                parts.append(
                    f'<circle cx="{middle:g}" cy="{at + 11:g}" r="11" '
                    f'fill="{RAISED}" stroke="{STREAM}"/>'
                )
                parts.append(text(middle, at + 15, "+", anchor="middle"))
                bend = [
                    (middle, y + 20),
                    (x - 24, y + 20),
                    (x - 24, at + 11),
                    (middle - 11, at + 11),
                ]
                parts.append(line(bend, STREAM, style='stroke-width="3"'))
                at += 22
            else:
                words = ["f: attention or feed-forward"] if part == "f" else ["LayerNorm"]
                parts.append(box(x - 6, at, w + 12, words, ENCODER if part == "f" else DECODER))
                at += 29
        parts.append(arrow(middle, at, middle, at + 24))
        parts.append(text(middle, at + 42, formula, anchor="middle"))
    bottom = y + 268
    size = 2 * d * ff + ff + d
    parts.append(
        text(
            MARGIN,
            bottom,
            "f, the feed-forward network: for every position by itself",
            family="sans",
            style="bold",
        )
    )
    at = bottom + 18
    across = [d / ff * 220 + 20, 240.0, d / ff * 220 + 20]
    x, names = 60.0, [f"{d}", f"{ff}", f"{d}"]
    for k, (each, name) in enumerate(zip(across, names, strict=True)):
        parts.append(rect(x, at, each, 22, shade(0.16, STREAM), stroke=STREAM))
        parts.append(text(x + each / 2, at + 15, name, anchor="middle"))
        if k < 2:
            parts.append(arrow(x + each + 4, at + 11, x + each + 44, at + 11))
            label = f"W₁, {config['activation']}" if k == 0 else "W₂"
            parts.append(text(x + each + 24, at - 4, label, anchor="middle", size=9, fill=SOFT))
        x += each + 48
    words = f"{d} x {ff} + {ff} + {ff} x {d} + {d} = {size:,} parameters"
    parts.append(text(60, at + 42, words, fill=SOFT))
    told = (
        "Post-norm: LayerNorm(x + f(x)). Pre-norm: x + f(LayerNorm(x)). This model: "
        f"{config['norm']}-norm. Feed-forward: {d} to {ff} to {d}, {size:,} parameters."
    )
    return figure(640, at + 58, "A block: what it adds, and where the norm is", told, parts)


def training(one: dict[str, Any]) -> str:
    """Teacher forcing: the shifted rows, and the loss of each position."""
    given, labels = pieces(one["target"]["input"]), pieces(one["target"]["labels"])
    log_probs = one["output"]["log_probs"]
    mean = -math.fsum(log_probs) / len(log_probs)
    left, y = 150.0, TOP + 24.0
    step = max(64.0, *(width(piece) + 16 for piece in given + labels))
    rows = ["decoder input", "has to say", "p(label)", "loss = -log p"]
    parts = [
        text(MARGIN, y + 22 + 46 * k, name, family="sans", fill=SOFT) for k, name in enumerate(rows)
    ]
    highest = max(-value for value in log_probs)
    base = y + 46 * 3 + 90
    for k, (piece, label, value) in enumerate(zip(given, labels, log_probs, strict=True)):
        x = left + step * k
        parts.append(rect(x, y, step - 8, 30, DECODER, stroke=STREAM, style='rx="4"'))
        parts.append(text(x + step / 2 - 4, y + 19, piece, anchor="middle"))
        parts.append(arrow(x + step / 2 - 4, y + 31, x + step / 2 - 4, y + 45))
        parts.append(rect(x, y + 46, step - 8, 30, RAISED, stroke=WEIGHT, style='rx="4"'))
        parts.append(text(x + step / 2 - 4, y + 65, label, anchor="middle"))
        parts.append(text(x + step / 2 - 4, y + 114, f"{math.exp(value):.4f}", anchor="middle"))
        height = 70 * -value / highest
        told = f"{label}: loss {-value:.4f}"
        parts.append(rect(x + 8, base - height, step - 24, height, BAD, title=told))
        parts.append(text(x + step / 2 - 4, base + 14, f"{-value:.4f}", anchor="middle"))
    right = left + step * len(given)
    at = base - 70 * mean / highest
    parts.append(line([(left, at), (right, at)], INK, style='stroke-dasharray="4 3"'))
    parts.append(text(right + 4, at + 4, f"mean {mean:.4f}"))
    words = "The input is the target moved by one: a position sees its own piece and those before."
    parts.append(text(MARGIN, base + 40, words, family="sans", fill=SOFT))
    told = f"Decoder input {' '.join(given)}; labels {' '.join(labels)}. " + "; ".join(
        f"{label} p {math.exp(value):.4f}, loss {-value:.4f}"
        for label, value in zip(labels, log_probs, strict=True)
    )
    title = "A training step: what goes in, what has to come out"
    return figure(right + 100, base + 52, title, f"{told}; mean {mean:.4f} nats.", parts)


def _list(numbers: np.ndarray, form: str = ".6f") -> str:
    return "[" + ", ".join(f"{number:{form}}" for number in numbers) + "]"
