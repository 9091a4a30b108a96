"""The verb translate: lines in, as many lines out."""

import io
import json
import os
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, cast

import typer
from rich.console import Console

from transduce import bundle, config
from transduce.decode.resume import Part, describe, unfinished
from transduce.decode.search import SearchOptions
from transduce.decode.stream import PAUSE, WINDOW, translate_stream
from transduce.decode.translator import Translation, Translator
from transduce.device import choose_device, enough_memory, set_threads
from transduce.errors import DataError, DeviceError, SettingsError
from transduce.files import whole_file
from transduce.progress import Stage
from transduce.text.corpus import count_lines, read_lines_leniently


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
    beam: Annotated[int | None, typer.Option(help="Beams; 1 is greedy search [4].")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Exponent of the length penalty [0.6].")
    ] = None,
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
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Source pieces in a batch, beams included.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, max=1024, help="CPU threads; 0 is all cores.")] = 0,
) -> None:
    """Translate a file or standard input: as many lines out as in, in their order."""
    given = {name: context.params.get(name) for name in SearchOptions.model_fields}
    options = config.validate(
        SearchOptions, {name: value for name, value in given.items() if value is not None}
    )
    set_threads(threads)
    where = choose_device(device)
    # A run's best may be another one by and by.
    folders = [bundle.find(path).resolve() for path in (model, *(ensemble or []))]
    translator = Translator.load(*folders, device=where)
    batch_tokens = batch_tokens or translator.batch_tokens
    if file is None and sys.stdin and sys.stdin.isatty():
        context.obj.print("type a sentence and Enter; Ctrl-D ends", style="dim")
    about = None
    if _is_kept(file, output):
        how = {"format": format_, "batch_tokens": batch_tokens, "window": WINDOW}
        how |= options.model_dump(mode="json")
        about = describe(folders, cast(Path, file), how, device=where)
    elif resume:
        raise SettingsError("--resume needs FILE and --output, both of them regular files")

    told = f"with --batch-tokens {batch_tokens} and --beam {options.beam}; lower one of them"
    with (
        enough_memory(DeviceError, told),
        _records(output, about, resume=resume) as out,
        _shown(context.obj, file, output, out.lines) as shown,
    ):
        for window in translate_stream(
            translator,
            read_lines_leniently(file, skip=out.lines),
            options=options,
            batch_tokens=batch_tokens,
            pause=None if _is_file(file) else PAUSE,
        ):
            numbered = enumerate(window, start=out.lines + 1)
            out.add(
                "".join(_as_record(*one, format_, options.n_best) for one in numbered), len(window)
            )
            shown.advance(len(window))


def _as_record(number: int, found: Translation, format_: str, n_best: int) -> str:
    return _as_json(number, found) if format_ == "jsonl" else _as_text(number, found, n_best)


def _as_text(number: int, translation: Translation, n_best: int) -> str:
    if n_best == 1:
        return translation.text + "\n"
    every = [(translation.text, translation.score), *translation.alternatives]
    return "".join(f"{number} ||| {text} ||| {score:.6f}\n" for text, score in every)


def _as_json(number: int, translation: Translation) -> str:
    record: dict[str, Any] = {"line": number, **translation._asdict()}
    record["alternatives"] = [{"text": t, "score": s} for t, s in translation.alternatives]
    return json.dumps(record, ensure_ascii=False) + "\n"


class _Plain:
    """Where to write what cannot be resumed: each window as it comes."""

    def __init__(self, file: TextIO) -> None:
        self.lines = 0
        self._file = file

    def add(self, text: str, lines: int) -> None:
        """Write the translations of the next lines."""
        self._file.write(text)
        self._file.flush()
        self.lines += lines


@contextmanager
def _records(
    output: Path | None, about: dict[str, Any] | None, *, resume: bool
) -> Generator[Part | _Plain]:
    """Yield where to write; what can be resumed outlives a kill."""
    if output is None or about is None:
        with opened(output) as file:
            yield _Plain(file)
        return
    try:
        with unfinished(output, about, resume=resume) as part:
            yield part
    except OSError as error:
        raise DataError(f"--output {output}: {error.strerror}") from None


@contextmanager
def opened(path: Path | None) -> Generator[TextIO]:
    """Yield where to write; a file has its name only once it is complete."""
    if path is not None:
        try:
            with whole_file(path) as file:
                yield file
        except OSError as error:
            raise DataError(f"--output {path}: {error.strerror}") from None
        return
    if sys.stdout is None:
        raise DataError("standard output is closed; name a file with --output")
    out = cast(io.TextIOWrapper, sys.stdout)
    out.reconfigure(encoding="utf-8", newline="\n")  # whatever the locale says
    try:
        yield out
    except BrokenPipeError:
        raise
    except OSError as error:
        # Or what is left would be flushed again at the end.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        raise DataError(f"standard output: {error.strerror}") from None


def _is_kept(file: Path | None, output: Path | None) -> bool:
    """Whether what is done outlives a kill: the text can be read again, the output go on."""
    return _is_file(file) and output is not None and (output.is_file() or not output.exists())


def _is_file(path: Path | None) -> bool:
    return path is not None and path.is_file()


def _shown(console: Console, file: Path | None, output: Path | None, done: int) -> Stage:
    """Show progress where the translations do not: they go into a file, or here is a terminal."""
    stdout = sys.stdout if output is None else None
    shown = stdout is None or (
        not stdout.isatty()
        if console.is_terminal
        else stat.S_ISREG(os.fstat(stdout.fileno()).st_mode) and not os.path.sameopenfile(1, 2)
    )
    total = count_lines(cast(Path, file)) if shown and _is_file(file) else None
    console = console if shown else Console(quiet=True)
    return Stage(console, "translating", "lines", total=total, done=done)
