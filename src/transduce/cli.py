"""The command line: verbs that parse, call and print; what they do is elsewhere."""

import io
import json
import logging
import os
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, cast

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import transduce
from transduce import config
from transduce.decode.beam import BeamOptions
from transduce.decode.stream import translate_stream
from transduce.decode.translator import BATCH_TOKENS, Translation, Translator
from transduce.demo.run import demo as run_demo
from transduce.device import choose_device, set_threads
from transduce.errors import DataError, Stopped, TransduceError
from transduce.files import whole_file
from transduce.text.corpus import read_lines_leniently
from transduce.train.config import TrainConfig
from transduce.train.monitor import say
from transduce.train.start import train as run_train

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The Transformer of 'Attention Is All You Need': from two text files to a translator.",
)


def main() -> None:
    """Run the command line; a user's error is one line and exit status 2."""
    try:
        app()
    except TransduceError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except Stopped as stopped:
        typer.echo(str(stopped), err=True)
        sys.exit(75)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"transduce {transduce.__version__}")
        raise typer.Exit


class _Steady(Console):
    """A console that falls silent when nobody reads it any more, and ends nothing."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


class _Warnings(logging.Handler):
    """Print log records through the console of the verb, above whatever moves on it."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        say(self._console, f"{record.levelname.lower()}: {record.getMessage()}")


@app.callback()
def _settings(
    context: typer.Context,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Tell more.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    errors = _Steady(stderr=True)
    log = logging.getLogger("transduce")
    log.handlers = [_Warnings(errors)]
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    context.obj = errors if not quiet else Console(quiet=True)


@app.command()
def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("transduce-demo"),
) -> None:
    """Train a small translator on a generated corpus in two minutes, and show what it learnt."""
    run_demo(out, context.obj)


@app.command()
def train(  # noqa: PLR0913 - one parameter an option
    context: typer.Context,
    recipe: Annotated[
        Path | None, typer.Argument(help="Settings in TOML.", show_default=False)
    ] = None,
    source: Annotated[Path | None, typer.Option(help="Text to translate from.")] = None,
    target: Annotated[Path | None, typer.Option(help="Its translation, line by line.")] = None,
    tsv: Annotated[Path | None, typer.Option(help="Both in one file: source TAB target.")] = None,
    valid_source: Annotated[Path | None, typer.Option(help="Validation text.")] = None,
    valid_target: Annotated[Path | None, typer.Option(help="Its translation.")] = None,
    valid_tsv: Annotated[
        Path | None, typer.Option(help="Both in one file: source TAB reference TAB ...")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run [transduce-run].")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, order, dropout [1].")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, mps [auto].")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads [all cores].")] = None,
    precision: Annotated[
        str | None, typer.Option(help="auto, fp32 or bf16 [auto: measured].")
    ] = None,
    data_root: Annotated[
        Path | None,
        typer.Option(
            envvar="TRANSDUCE_DATA", help="Where the recipe's files are [beside the recipe]."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting, such as train.max_steps=500."),
    ] = None,
) -> None:
    """Make a translator of two text files, or go on with one that was stopped."""
    # The options bear the names of the settings.
    given = {
        name: context.params[name] for name in TrainConfig.model_fields.keys() & context.params
    }
    values = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in given.items()
        if value is not None
    }
    settings = config.load(TrainConfig, recipe, set_ or (), values=values, root=data_root)
    run_train(settings, console=context.obj)


@app.command()
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
