"""How the time and the memory of a training step grow: with length, vocabulary, positions.

    make bench-growth
    python benchmarks/growth.py [--size base] [--precision bf16] [--threads 2] [--out FOLDER]
        [--curve length] [--steps 5]
    python benchmarks/growth.py --draw [--out FOLDER]       (tables and plots again, from the JSON)

Each point is a process of its own, so that its peak memory (ru_maxrss) is its own; what the imports
alone take is subtracted. A step is that of `transduce train` on a batch of random ids without
padding; its time is the median of --steps steps after two of warm-up. Where not said otherwise
sentences have 16 positions with their mark, batches 4,096 positions a side, and the vocabulary has
8,000 subwords. A curve ends before a point that could take more memory than is free.

Operations are those of the step's matrix products, forward and backward, counted by PyTorch's
FlopCounterMode over the model's plain float32 step on the meta device, where nothing is computed:
attention written out, nothing computed twice. They say how time should grow: attention with the
square of the length, all else in proportion. The ceiling is the best rate of matrix products as
they occur in the model, by themselves, in the same precision and threads.

Of the peak a part is known: what is held for weights and logits at the end of the forward pass,
when a step holds most (`counts`). The rest should be in proportion to the positions. Exponents are
slopes of log-log regressions over the upper half of the points: that of time should not exceed that
of the operations, nor that of the rest that of the positions.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from math import exp, log
from pathlib import Path
from typing import NamedTuple

from train_speed import SHAPES, VOCABULARY, our_model, transduce

PLOTS = {  # what each curve of a plot goes along
    "length": "sentence length (positions)",
    "vocabulary": "vocabulary (subwords)",
    "positions": "positions a side of the batch",
}
POSITIONS, LENGTH = 4096, 16
WARM_UP = 2


class Point(NamedTuple):
    """A batch and a model; what is not said is as everywhere."""

    size: str
    sentences: int = POSITIONS // LENGTH
    length: int = LENGTH
    vocabulary: int = VOCABULARY


def main() -> None:
    """Run as the measurement, or as one of its points."""
    parser = argparse.ArgumentParser(description="How time and memory of a step grow.")
    parser.add_argument("--size", choices=SHAPES, default="base")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--curve", choices=PLOTS, action="append")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(""))
    parser.add_argument("--draw", action="store_true", help="from the JSON that is there")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(json.loads(given.one), given)))
        return
    file = given.out / "growth.json"
    if not given.draw:
        given.out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(measure(given), indent=1) + "\n", encoding="utf-8")
    found = json.loads(file.read_text(encoding="utf-8"))
    for point in (point for curve in found["curves"] for point in curve["points"]):
        point["time"] = statistics.median(point["seconds"])
        point["positions"] = point["sentences"] * point["length"]
        point["rest"] = max(1, point["peak"] - point["held"])  # has a logarithm
    report(found)
    draw(found, given.out)


def curves(size: str) -> list[tuple[str, str, list[tuple[int, Point]]]]:
    """The plot, label and points of each curve; sizes grow along it."""
    lengths, vocabularies = [2**i for i in range(3, 10)], [1000 * 2**i for i in range(7)]
    even = [(n, Point(size, POSITIONS // n, n)) for n in lengths]
    many = [(n, Point(size, n // LENGTH)) for n in (2**i for i in range(9, 15))]
    return [
        ("length", f"{POSITIONS:,} positions", even),
        ("length", "32 sentences", [(n, Point(size, 32, n)) for n in lengths]),
        *(
            ("vocabulary", each, [(v, Point(each, vocabulary=v)) for v in vocabularies])
            for each in dict.fromkeys(("small", size))
        ),
        ("positions", size, many),
    ]


def measure(given: argparse.Namespace) -> dict:
    """Measure all points, each once where curves meet, and the ceilings of each size."""
    began = time.perf_counter()
    found = process({"what": "machine"}, given) | {
        "date": date.today().isoformat(),
        "commit": commit(),
        "precision": given.precision,
        "threads": given.threads,
        "steps": given.steps,
    }
    ceilings, known, drawn = {}, {}, []
    for plot, label, points in curves(given.size):
        if given.curve and plot not in given.curve:
            continue
        curve, peak = [], 0
        for x, point in points:
            if point.size not in ceilings:
                ceilings[point.size] = process({"what": "ceiling", "size": point.size}, given)
            if 2.5 * peak > available():
                print(f"{plot}, {label}: no memory for {x:,} and more", file=sys.stderr)
                break
            if point not in known:
                known[point] = process({"what": "point", "point": point}, given)
                print(f"{plot}, {label}, {x:,}", file=sys.stderr, flush=True)
            peak = known[point]["peak"]
            curve.append({"x": x, **point._asdict(), **known[point]})
        drawn.append({"plot": plot, "label": label, "points": curve})
    minutes = round((time.perf_counter() - began) / 60, 1)
    return {**found, "minutes": minutes, "ceilings": ceilings, "curves": drawn}


def process(what: dict, given: argparse.Namespace) -> dict:
    """Measure one thing in a process of its own.

    This one never imports PyTorch: a peak begins with that of the process it was started by.
    """
    options = ["--one", json.dumps(what), "--precision", given.precision]
    options += ["--threads", str(given.threads), "--steps", str(given.steps)]
    environment = os.environ | {"OMP_NUM_THREADS": str(given.threads)}
    command = [sys.executable, __file__, *options]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def commit() -> str:
    """What is measured; `-dirty` where files are changed."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "?"


def available() -> int:
    """Bytes of memory that are free or can be freed."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


# From here on: one thing measured, in its own process.


def one(what: dict, given: argparse.Namespace) -> dict:
    """Measure a point, the ceilings of a size, or what the machine is."""
    import resource

    import torch

    import transduce.train.loop  # noqa: F401 - all that a step imports
    from transduce.device import kept_memory

    torch.set_num_threads(given.threads)
    torch.manual_seed(1)
    imports = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if what["what"] == "machine":
        return {"processor": processor(), "torch": torch.__version__, "imports": imports}
    with kept_memory():
        if what["what"] == "ceiling":
            return ceiling(what["size"], given.precision)
        point = Point(*what["point"])
        seconds = step_times(point, given)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - imports
    return {"seconds": seconds, "peak": peak, **counts(point, given.precision)}


def processor() -> str:
    """The name of it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?"
    )


def step_times(point: Point, given: argparse.Namespace) -> list[float]:
    """Seconds of each step after those of warm-up, of sentences that fill their rows."""
    import numpy as np

    from transduce.data.batching import collate

    shape = (point.sentences, 2, point.length - 1)
    batch = collate(np.random.default_rng(1).integers(4, point.vocabulary, shape).tolist())
    step = transduce(point.size, given.precision == "bf16", vocabulary=point.vocabulary)
    seconds = [timed(lambda: step(batch)) for _ in range(WARM_UP + given.steps)]
    return seconds[WARM_UP:]


def timed(call: Callable) -> float:
    """The seconds of a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def counts(point: Point, precision: str) -> dict[str, int]:
    """The operations of a step, and the bytes held for weights and logits at the loss.

    All weights are there with Adam's two moments, the layers' in bfloat16 once more. The table's
    gradient is there as well, and four bytes more a weight: what a chunk of the loss adds to it, or
    half of that and a copy of the table in bfloat16. Of a chunk's 2^24 logits there are themselves,
    probabilities and errors, 8 bytes in either precision; 12 while the next chunk follows.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from transduce.model import transformer

    transformer.fused_attention_pays = lambda q, k: False
    with torch.device("meta"):
        model = our_model(point.size, point.vocabulary)
        ids = torch.ones(point.sentences, point.length, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            model.output(model.decode(ids, *model.encode(ids))).sum().backward()
    table = model.output.weight.numel()
    layers = sum(weight.numel() for weight in model.parameters()) - table
    held = (14 if precision == "bf16" else 12) * layers + 20 * table
    logits = point.sentences * point.length * point.vocabulary
    held += 8 * logits if logits <= 2**24 else 12 * 2**24
    return {"operations": counter.get_total_flops(), "held": held}


def ceiling(size: str, precision: str) -> dict:
    """Best rates of matrix products of the model's shapes, and of copying (read and written)."""
    import torch

    from transduce.model.kernels import gradient_of_weight, product

    _, d_model, d_ff, _ = SHAPES[size]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    shapes = [
        (POSITIONS, d_model, d_model),
        (POSITIONS, d_model, d_ff),
        (POSITIONS, d_ff, d_model),
        (2**24 // VOCABULARY, d_model, VOCABULARY),
    ]
    rates = {}
    for rows, inner, columns in shapes:
        x, y = torch.randn(rows, inner).to(dtype), torch.randn(rows, columns).to(dtype)
        weight = torch.randn(columns, inner).to(dtype)
        forward = fastest(lambda x=x, weight=weight: product(x, weight))
        gradient = fastest(lambda x=x, y=y: gradient_of_weight(y, x))
        operations = 2 * rows * inner * columns
        rates[f"{rows} x {inner} by {inner} x {columns}"] = operations / forward
        rates[f"{columns} x {rows} by {rows} x {inner}"] = operations / gradient
    source, target = torch.ones(2, 2**26)  # of 256 MB each: no cache holds it
    copied = 2 * source.nbytes / fastest(lambda: target.copy_(source))
    shape = max(rates, key=lambda shape: rates[shape])
    return {"products": rates[shape], "shape": shape, "copied": copied}


def fastest(call: Callable) -> float:
    """The fewest seconds of some calls."""
    return min(timed(call) for _ in range(12))


# From here on: what was found.


def exponent(points: list[dict], name: str) -> str:
    """The a of value ~ x^a over the upper half of the points."""
    upper = points[len(points) // 2 :]
    if len(upper) < 2:
        return "-"
    xs, ys = [log(point["x"]) for point in upper], [log(point[name]) for point in upper]
    return f"{statistics.linear_regression(xs, ys).slope:.2f}"


def report(found: dict) -> None:
    """Print all as tables of Markdown."""
    print(
        f"{found['date']}, {found['commit']}, {found['processor']}, {found['threads']} threads, "
        f"{found['precision']}, PyTorch {found['torch']}, {found['minutes']} minutes; the imports "
        f"take {found['imports'] / 1e6:.0f} MB, not counted below"
    )
    print("\n| | products, GFLOP/s at best | of the shape | copying, GB/s |\n|---|---|---|---|")
    for size, each in found["ceilings"].items():
        print(
            f"| {size} | {each['products'] / 1e9:.0f} | {each['shape']} | "
            f"{each['copied'] / 1e9:.1f} |"
        )
    for curve in found["curves"]:
        print(f"\n{PLOTS[curve['plot']]}, {curve['label']}\n")
        print("| | s | spread | peak GB | rest GB | GFLOP | GFLOP/s | of the ceiling |")
        print("|---|---|---|---|---|---|---|---|")
        for point in curve["points"]:
            rate = point["operations"] / point["time"]
            low, high = min(point["seconds"]), max(point["seconds"])
            print(
                f"| {point['x']:,} | {point['time']:.3f} | {low:.3f}-{high:.3f} | "
                f"{point['peak'] / 1e9:.2f} | {point['rest'] / 1e9:.2f} | "
                f"{point['operations'] / 1e9:,.0f} | {rate / 1e9:.0f} | "
                f"{rate / found['ceilings'][point['size']]['products']:.0%} |"
            )
    print("\n| exponents along | | time | operations | rest of memory | positions |")
    print("|---|---|---|---|---|---|")
    for curve in found["curves"]:
        names = ("time", "operations", "rest", "positions")
        row = " | ".join(exponent(curve["points"], name) for name in names)
        print(f"| {curve['plot']} | {curve['label']} | {row} |")


def draw(found: dict, folder: Path) -> None:
    """Draw a plot of each kind of curve: time beside memory, and thin lines as they should be."""
    try:
        import matplotlib
    except ImportError:
        sys.exit("the plots need matplotlib: make bench-growth, or pip install matplotlib")
    matplotlib.use("svg")
    from matplotlib import pyplot

    grey = "#737a83"  # to be read on white and on black
    style = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), grey
    )
    style |= {"svg.fonttype": "none", "svg.hashsalt": "growth", "font.family": "sans-serif"}
    plain = {"frameon": False, "fontsize": 9}
    style |= {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
    for plot, along in PLOTS.items():
        drawn = [each for each in found["curves"] if each["plot"] == plot and each["points"]]
        if not drawn:
            continue
        with pyplot.rc_context(style):
            figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
            for curve, colour in zip(drawn, ("#2f81d0", "#d9702b"), strict=False):
                draw_curve(curve, colour, panels)
            for panel, value in zip(panels, ("seconds a step", "peak memory (GB)"), strict=True):
                scales(panel, sorted({point["x"] for each in drawn for point in each["points"]}))
                panel.set(xlabel=along, ylabel=value)
            panels[1].plot([], [], color=grey, linewidth=0.8, label="as it should grow")
            figure.legend(
                *panels[1].get_legend_handles_labels(), loc="outside upper center", ncols=5, **plain
            )
            figure.savefig(folder / f"{plot}.svg", transparent=True, metadata={"Date": None})
            pyplot.close(figure)


def draw_curve(curve: dict, colour: str, panels) -> None:  # noqa: ANN001
    """Draw a curve's time and memory, each with its law, laid through the upper half of it."""
    points = curve["points"]
    upper = points[len(points) // 2 :]
    xs = [point["x"] for point in points]
    pace = exp(statistics.fmean(log(each["time"] / each["operations"]) for each in upper))
    share = statistics.median(each["rest"] / each["positions"] for each in upper)
    time_law = [pace * point["operations"] for point in points]
    memory_law = [(point["held"] + share * point["positions"]) / 1e9 for point in points]
    memory = [point["peak"] / 1e9 for point in points]
    lines = {"color": colour, "linewidth": 0.8}
    dots = {"color": colour, "marker": "o", "markersize": 5, "linestyle": ""}
    panels[0].plot(xs, time_law, **lines)
    panels[0].plot(xs, [point["time"] for point in points], label=curve["label"], **dots)
    panels[1].plot(xs, memory_law, **lines)
    panels[1].plot(xs, memory, label=curve["label"], **dots)
    if curve["plot"] == "vocabulary":
        rest = [point["rest"] / 1e9 for point in points]
        label = f"{curve['label']}, less weights and logits"
        panels[1].plot(xs, [share * point["positions"] / 1e9 for point in points], **lines)
        panels[1].plot(xs, rest, label=label, fillstyle="none", **dots)


def scales(panel, xs: list[int]) -> None:  # noqa: ANN001
    """Make both axes logarithmic, with plain numbers, a tick at each x."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xticks(xs, [f"{x // 1000}k" if x % 1000 == 0 else f"{x}" for x in xs])
    low, high = panel.get_ylim()
    if high < 5 * low:  # what hardly differs should look like it
        low, high = (low * high / 5) ** 0.5, (low * high * 5) ** 0.5
        panel.set_ylim(low, high)
    ticks = (1, 2, 5) if high > 12 * low else (1, 1.5, 2, 3, 4, 6, 8)
    panel.yaxis.set_major_locator(LogLocator(subs=ticks))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_minor_locator(NullLocator())
    panel.grid(color="#737a83", alpha=0.2, linewidth=0.6)


if __name__ == "__main__":
    main()
