"""The verb translate: lines in, as many lines out."""

import io
import json
import os
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, cast

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from transduce import config
from transduce.decode.beam import BeamOptions
from transduce.decode.stream import translate_stream
from transduce.decode.translator import BATCH_TOKENS, Translation, Translator
from transduce.device import choose_device, enough_memory, set_threads
from transduce.errors import DataError, DeviceError
from transduce.files import whole_file
from transduce.text.corpus import read_lines_leniently


def translate(  # noqa: PLR0913 - one parameter an option
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="A model directory, or a training run.")],
    file: Annotated[
        Path | None, typer.Argument(help="Text, a sentence a line [standard input].")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write here [standard output].")] = None,
    beam: Annotated[int, typer.Option(help="Beams; 1 is greedy search.")] = 4,
    alpha: Annotated[float, typer.Option(help="Exponent of the length penalty.")] = 0.6,
    n_best: Annotated[
        int, typer.Option(help="Translations a line; as text: line ||| translation ||| score.")
    ] = 1,
    format_: Annotated[
        Literal["text", "jsonl"], typer.Option("--format", help="Plain lines, or JSON with scores.")
    ] = "text",
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="Source pieces in a batch, beams included.")
    ] = BATCH_TOKENS,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, max=1024, help="CPU threads; 0 is all cores.")] = 0,
) -> None:
    """Translate a file or standard input: as many lines out as in, in their order."""
    options = config.validate(BeamOptions, {"beam": beam, "alpha": alpha, "n_best": n_best})
    set_threads(threads)
    told = f"with --batch-tokens {batch_tokens} and --beam {beam}; lower one of them, or free some"
    with enough_memory(DeviceError, told):
        translator = Translator.load(model, device=choose_device(device))
        if file is None and sys.stdin and sys.stdin.isatty():
            context.obj.print("type a sentence and Enter; Ctrl-D ends", style="dim")
        lines = read_lines_leniently(file)
        found = translate_stream(translator, lines, options=options, batch_tokens=batch_tokens)
        with _opened(output) as out:
            for number, translation in enumerate(_shown(found, context.obj, output), start=1):
                out.write(
                    _as_json(number, translation)
                    if format_ == "jsonl"
                    else _as_text(number, translation, n_best)
                )
                out.flush()


def _as_text(number: int, translation: Translation, n_best: int) -> str:
    if n_best == 1:
        return translation.text + "\n"
    every = [(translation.text, translation.score), *translation.alternatives]
    return "".join(f"{number} ||| {text} ||| {score:.6f}\n" for text, score in every)


def _as_json(number: int, translation: Translation) -> str:
    record: dict[str, Any] = {"line": number, **translation._asdict()}
    record["alternatives"] = [{"text": t, "score": s} for t, s in translation.alternatives]
    return json.dumps(record, ensure_ascii=False) + "\n"


@contextmanager
def _opened(path: Path | None) -> Generator[TextIO]:
    """Yield where to write; a file has its name only once it is complete."""
    if path is None:
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
        return
    try:
        with whole_file(path) as file:
            yield file
    except OSError as error:
        raise DataError(f"--output {path}: {error.strerror}") from None


def _shown(
    translations: Iterable[Translation], console: Console, output: Path | None
) -> Iterator[Translation]:
    """Count what passes on a terminal, where the translations themselves do not show."""
    if not console.is_terminal or (output is None and sys.stdout and sys.stdout.isatty()):
        yield from translations
        return
    columns = (TextColumn("translated"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        for translation in translations:
            progress.advance(task)
            yield translation
