"""The verb trace: what a model does with a sentence, as a table, as JSON, as a page."""

import json
import math
from collections.abc import Iterator, Sequence
from os.path import realpath
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len

from transduce.cli.options import Alpha, Beam, Device, Threads, prepare_machine
from transduce.cli.output import opened
from transduce.config import validate
from transduce.decode.search import SearchOptions
from transduce.decode.translator import Translator
from transduce.device import enough_memory
from transduce.errors import DeviceError, SettingsError
from transduce.files import printable
from transduce.progress import say
from transduce.trace import page
from transduce.trace.document import Trace, document, pieces
from transduce.trace.trace import trace as trace_one

_LIKELIEST = 3


def trace(  # noqa: PLR0913 - one parameter an option
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="A model directory, or a training run.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Sentences to translate.")],
    target: Annotated[
        str | None, typer.Option(help="Look at this translation [the model's own best].")
    ] = None,
    beam: Beam = None,
    alpha: Alpha = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page to look at, offline, in a browser.")
    ] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", help="Write every number, as JSON.")
    ] = None,
    device: Device = None,
    threads: Threads = None,
) -> None:
    """Show what a model does with a sentence, number by number, and check the numbers."""
    if target is not None and len(texts) > 1:
        raise SettingsError(f"--target is the translation of one TEXT, and there are {len(texts)}")
    if html is not None and as_json is not None and realpath(html) == realpath(as_json):
        raise SettingsError(f"--html and --json both name {html}; name two files")
    given = {"beam": beam, "alpha": alpha}
    options = validate(SearchOptions, {k: v for k, v in given.items() if v is not None})
    translator = Translator.load(model, device=prepare_machine(device, threads))
    with enough_memory(DeviceError, "by what is recorded; trace a shorter sentence"):
        traces = [
            trace_one(
                translator,
                text,
                target,
                beam=options.beam,
                alpha=options.alpha,
                answers=html is not None or as_json is not None,
            )
            for text in texts
        ]
        _write(traces, html, as_json)
    with opened(None) as out:
        out.write("\n".join(_table(one) for one in traces))
    for path in (html, as_json):
        if path is not None:
            say(context.obj, printable(f"written to {path}"))
    if not all(one.ok for one in traces):
        raise typer.Exit(1)


def _write(traces: Sequence[Trace], html: Path | None, as_json: Path | None) -> None:
    if html is None and as_json is None:
        return
    found = document(traces)
    if as_json is not None:
        with opened(as_json, "--json") as file:
            file.write(json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n")
    if html is not None:
        with opened(html, "--html") as file:
            file.write(page.html(found))


def _table(trace: Trace) -> str:
    """What a person sees of a trace; one line a target piece, one an invariant."""
    return "".join(f"{printable(line)}".rstrip() + "\n" for line in _lines(trace))


def _lines(trace: Trace) -> Iterator[str]:
    if not trace.source:
        yield "the text is blank: nothing to translate, nothing to trace"
        return
    source = pieces(trace.bundle.source_tokenizer, trace.source)
    target = pieces(trace.bundle.target_tokenizer, trace.labels)
    search = f"beam {trace.beam.beam}, alpha {trace.beam.alpha:g}"
    yield f"source  {' '.join(source)}"
    yield f"target  {trace.target}  ({'as given' if trace.given else search})"
    yield ""
    output = trace.output
    block = f"decoder.{len(trace.bundle.model.decoder) - 1}.cross_attention"
    weights = trace.tensors[f"{block}.weights"].mean(dim=0)
    most = weights.max(dim=1)
    rows = [("", "piece", "p", "entropy", "likeliest", "reads")]
    for place, piece in enumerate(target):
        top = output.top[place][:_LIKELIEST]
        names = pieces(trace.bundle.target_tokenizer, [token for token, _, _ in top])
        rows.append(
            (
                str(place),
                piece,
                f"{math.exp(output.log_probs[place]):.4f}",
                f"{output.entropy[place]:.3f}",
                "  ".join(f"{name} {p:.3f}" for name, (_, _, p) in zip(names, top, strict=True)),
                f"{source[int(most.indices[place])]} {float(most.values[place]):.3f}",
            )
        )
    yield from _columns(rows)
    yield f"log P = {math.fsum(output.log_probs):.4f} nats; entropy in nats;"
    yield f"reads: the source piece with the most weight in {block}, mean of heads"
    yield ""
    rows = [
        (
            "✓" if one.ok else "✗",
            one.id,
            "nothing to check"
            if not one.checked
            else f"worst {'not finite' if one.worst is None else f'{one.worst:.2g}'}, "
            f"tolerance {one.tolerance:.1g}, {one.checked:,} checked",
        )
        for one in trace.invariants
    ]
    yield from _columns(rows)


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align cells, which may hold wide characters."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)
        )
