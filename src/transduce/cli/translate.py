"""The verb translate: lines in, as many lines out."""

import json
import os
import stat
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

import transduce
from transduce import bundle
from transduce.cli.options import (
    Alpha,
    BatchTokens,
    Beam,
    Device,
    Threads,
    prepare_machine,
    search_options,
)
from transduce.cli.output import check_apart, opened_at
from transduce.decode.resume import complete, describe
from transduce.decode.stream import PAUSE, WINDOW, translate_stream
from transduce.decode.translator import Translation, Translator, default_batch_tokens
from transduce.device import enough_memory
from transduce.errors import DataError, DeviceError, SettingsError
from transduce.progress import Stage, say
from transduce.text.corpus import Line, read_lines_leniently


def translate(  # noqa: PLR0913 - one parameter an option
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="A model directory, or a training run.")],
    file: Annotated[
        Path | None, typer.Argument(help="Text, a sentence a line [standard input].")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write here [standard output].")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an --output that was interrupted.")
    ] = False,
    ensemble: Annotated[
        list[Path] | None,
        typer.Option(metavar="MODEL", help="A further model to average with; can be repeated."),
    ] = None,
    beam: Beam = None,
    alpha: Alpha = None,
    n_best: Annotated[
        int | None,
        typer.Option(help="Translations a line; as text: line ||| translation ||| score [1]."),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Most tokens of an output [source + 50].")
    ] = None,
    no_repeat_ngram: Annotated[
        int | None, typer.Option(help="Let no sequence of this many tokens come twice.")
    ] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw at random; no search.")] = False,
    temperature: Annotated[
        float | None, typer.Option(help="Of sampling; near 0 it is greedy [1].")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among the k likeliest.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample among the likeliest with this mass (nucleus).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of sampling [0].")] = None,
    format_: Annotated[
        Literal["text", "jsonl"], typer.Option("--format", help="Plain lines, or JSON with scores.")
    ] = "text",
    batch_tokens: BatchTokens = None,
    device: Device = None,
    threads: Threads = None,
) -> None:
    """Translate a file or standard input: as many lines out as in, in their order."""
    options = search_options(context)
    check_apart(output, file)
    where = prepare_machine(device, threads)
    # Links are followed once: while a run goes on, its best may become another model.
    folders = [bundle.find(path).resolve() for path in (model, *(ensemble or []))]
    batch_tokens = batch_tokens or default_batch_tokens(where)
    about = None  # what is done does not outlive a kill, unless text and output are files
    regular = file is not None and file.is_file()
    if file and regular and output and (output.is_file() or not output.exists()):
        how = {"format": format_, "batch_tokens": batch_tokens, "window": WINDOW}
        how |= options.model_dump(mode="json")
        about = describe(folders, file, how, device=where, version=transduce.__version__)
    elif resume:
        raise SettingsError("--resume needs FILE and --output, both of them regular files")
    if output and resume and complete(output):
        say(
            context.obj,
            f"{output} is there, with no unfinished part: to translate again leave out --resume",
        )
        return
    translator = Translator.load(*folders, device=where)
    if file is None and sys.stdin and sys.stdin.isatty():
        context.obj.print("type a sentence and Enter; Ctrl-D ends", style="dim")
    told = f"with --batch-tokens {batch_tokens} and --beam {options.beam}; lower one of them"
    shares: deque[float] = deque()
    with (
        enough_memory(DeviceError, told),
        opened_at(output, about, resume=resume) as (done, add),
        Stage(_screen(context.obj, output), "translating", "lines", done=done) as stage,
    ):
        windows = translate_stream(
            translator,
            _read(file, done, shares) if file and regular else read_lines_leniently(file),
            options=options,
            batch_tokens=batch_tokens,
            pause=None if regular else PAUSE,
        )
        for window in stage.watch(_with_shares(windows, shares)):
            records = [
                _as_json(number, found)
                if format_ == "jsonl"
                else _as_text(number, found, options.n_best)
                for number, found in enumerate(window, start=done + 1)
            ]
            add("".join(records), len(window))
            done += len(window)
            stage.advance(len(window))


def _read(file: Path, skip: int, shares: deque[float]) -> Iterator[Line]:
    """Yield the lines of a text, and note for each the share of the bytes that ends with it."""
    try:
        opened = file.open("rb")
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from None
    with opened:
        size = max(1, os.fstat(opened.fileno()).st_size)
        for line in read_lines_leniently(file, opened, skip=skip):
            shares.append(opened.tell() / size)
            yield line


def _with_shares(
    windows: Iterable[list[Translation]], shares: deque[float]
) -> Iterator[tuple[float, list[Translation]]]:
    """Say with each window what share of the text ends with it; 0 where nobody knows.

    The text is read ahead of its translation: `shares` has more than the window.
    """
    share = 0.0
    for window in windows:
        for _ in window:
            share = shares.popleft() if shares else 0.0
        yield share, window


def _as_text(number: int, translation: Translation, n_best: int) -> str:
    if n_best == 1:
        return translation.text + "\n"
    every = [(translation.text, translation.score), *translation.alternatives]
    return "".join(f"{number} ||| {text} ||| {score:.6f}\n" for text, score in every)


def _as_json(number: int, translation: Translation) -> str:
    record: dict[str, Any] = {"line": number, **translation._asdict()}
    record["alternatives"] = [{"text": t, "score": s} for t, s in translation.alternatives]
    return json.dumps(record, ensure_ascii=False) + "\n"


def _screen(console: Console, output: Path | None) -> Console:
    """Where to show progress: nowhere if the translations themselves pass on the terminal."""
    if output is not None:
        return console
    shown = False
    with suppress(OSError):  # standard error is closed
        stdout, stderr = sys.stdout.fileno(), console.file.fileno()
        if console.is_terminal:
            shown = not os.isatty(stdout)
        elif stat.S_ISREG(os.fstat(stdout).st_mode):
            shown = not os.path.sameopenfile(stdout, stderr)
    return console if shown else Console(quiet=True)
