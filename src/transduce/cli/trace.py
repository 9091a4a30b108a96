"""The verb trace: what a model does with a sentence, as a table, as JSON, as a page."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from os.path import realpath
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len

from transduce.cli.align import aligned
from transduce.cli.options import Alpha, Beam, Device, Threads, prepare_machine, search_options
from transduce.cli.output import opened
from transduce.cli.trace_files import write_files
from transduce.decode.translator import Translator
from transduce.device import enough_memory
from transduce.errors import DataError, DeviceError, SettingsError
from transduce.files import printable
from transduce.progress import say
from transduce.text.corpus import read_lines_leniently
from transduce.trace.alignment import Units
from transduce.trace.alive import goes_inside
from transduce.trace.document import Trace, pieces
from transduce.trace.learning import learning as learnt
from transduce.trace.steps import last_cross_attention
from transduce.trace.trace import trace as trace_one

_LIKELIEST = 3


def trace(  # noqa: PLR0913 - one parameter an option
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="A model directory, or a training run.")],
    texts: Annotated[
        list[str],
        typer.Argument(metavar="TEXT...", help="Sentences; - is a line each of standard input."),
    ],
    target: Annotated[
        str | None, typer.Option(help="Look at this translation [the model's own best].")
    ] = None,
    beam: Beam = None,
    alpha: Alpha = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page to look at, offline, in a browser.")
    ] = None,
    model_inside: Annotated[
        bool | None,
        typer.Option(
            help="Put the model into the page, so that it can translate other text"
            " [up to 1,000,000 parameters: yes]."
        ),
    ] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", help="Write every number, as JSON.")
    ] = None,
    learning: Annotated[
        bool, typer.Option("--learning", help="MODEL is a run: with its checkpoints' maps of TEXT.")
    ] = False,
    alignments: Annotated[
        bool, typer.Option(help="Print i-j, source word and target word from 0, and nothing else.")
    ] = False,
    block: Annotated[
        str | None, typer.Option(help="Of --alignments: a cross-attention [the last].")
    ] = None,
    head: Annotated[
        int | None, typer.Option(min=0, help="Of --alignments: a head [the mean of all].")
    ] = None,
    units: Annotated[
        Units | None, typer.Option(help="Of --alignments: words or pieces [words].")
    ] = None,
    beside: Annotated[
        list[Path] | None,
        typer.Option(
            help="Another model, to compare with on the page; may be given several times."
        ),
    ] = None,
    device: Device = None,
    threads: Threads = None,
) -> None:
    """Show what a model does with a sentence, number by number, and check the numbers."""
    texts = list(_read(texts))
    if not texts:
        raise DataError("standard input has no line: there is nothing to trace")
    if target is not None and len(texts) > 1:
        raise SettingsError(f"--target is the translation of one TEXT, and there are {len(texts)}")
    of_alignments = (block, head, units) != (None, None, None)
    of_files = {"--learning": learning, "--beside": beside}
    _check_files(html, as_json, of_files, model_inside is not None)
    if alignments and (html, as_json) != (None, None):
        raise SettingsError("--alignments prints links alone; leave --html and --json out")
    if of_alignments and not alignments:
        raise SettingsError("--block, --head and --units are for --alignments")
    options = search_options(context)
    machine = prepare_machine(device, threads)
    translator, *others = (
        Translator.load(each, device=machine) for each in (model, *(beside or ()))
    )
    bundle = translator.bundles[0]
    look = partial(trace_one, target=target, beam=options.beam, alpha=options.alpha)
    with enough_memory(DeviceError, "by what is recorded; trace a shorter sentence"):
        if alignments:
            found = (look(translator, text) for text in texts)
            shown, how, ok = aligned(found, bundle, block, head, units)
            told = [how]
        else:
            inside = html is not None and goes_inside(bundle, model_inside)
            answers = as_json is not None or (html is not None and not inside)
            traces = [look(translator, text, answers=answers) for text in texts]
            compared = [[look(other, text) for text in texts] for other in others]
            more = {"run": learnt(model, traces[0]).to_json()} if learning else {}
            told = write_files(traces, compared, more, html, as_json, inside=inside)
            shown = "\n".join(_table(one) for one in traces)
            ok = all(one.ok for group in (traces, *compared) for one in group)
    with opened(None) as out:
        out.write(shown)
    for line in told:
        say(context.obj, printable(line))
    if not ok:
        raise typer.Exit(1)


def _read(texts: Sequence[str]) -> Iterator[str]:
    """The texts; standard input is read only if one of them is -."""
    for text in texts:
        if text == "-":
            yield from (line.text for line in read_lines_leniently(None))
        else:
            yield text


def _check_files(
    html: Path | None, as_json: Path | None, of_files: Mapping[str, object], of_page: bool
) -> None:
    """`of_files` are options, and what was given of them, that only files show."""
    for option, path in {"--html": html, "--json": as_json}.items():
        if path == Path("-"):
            raise SettingsError(
                f"{option} - is no file: the table goes to standard output; name one"
            )
    if html is not None and as_json is not None and realpath(html) == realpath(as_json):
        raise SettingsError(f"--html and --json both name {html}; name two files")
    if html is None and of_page:
        raise SettingsError("--model-inside is of the page; add --html FILE")
    for option, given in of_files.items():
        if given and html is None and as_json is None:
            raise SettingsError(f"{option} is of a page or a document; add --html or --json FILE")


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
    block = last_cross_attention(trace.bundle.model)
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
