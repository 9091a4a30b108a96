"""The program `transduce`: its verbs, its exit status, and how warnings and errors are shown."""

import logging
import os
import sys
from typing import Annotated

import typer
from rich.console import Console

import transduce
from transduce.cli.check import check
from transduce.cli.demo import demo
from transduce.cli.evaluate import evaluate, score
from transduce.cli.figure import figure
from transduce.cli.models import average, info
from transduce.cli.trace import trace
from transduce.cli.train import train
from transduce.cli.translate import translate
from transduce.cli.usage import UsageError, explain
from transduce.cli.view import view
from transduce.device import enough_memory
from transduce.errors import DeviceError, Stopped, TransduceError
from transduce.files import printable
from transduce.progress import say

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The Transformer of 'Attention Is All You Need': from two text files to a translator.",
)
for verb in (demo, check, train, translate, evaluate, score, trace, view, info, average):
    app.command()(verb)
app.add_typer(figure, name="figure")


def main() -> None:
    """Run the command line; a user's error is one line and exit status 2."""
    # Where options of a verb can be lowered, the verb names them.
    told = "whatever it was that was read; take a smaller model or text, or a larger machine"
    try:
        with enough_memory(DeviceError, told):
            sys.exit(app(prog_name="transduce", standalone_mode=False))
    except TransduceError as error:
        typer.echo(f"error: {printable(str(error))}", err=True)
    except UsageError as error:
        typer.echo(f"error: {explain(error)}", err=True)
    except BrokenPipeError:
        raise
    except OSError as error:  # the last resort: where it could tell more, the verb does
        what = "" if error.filename is None else f"{error.filename}: "
        typer.echo(f"error: {printable(f'{what}{error.strerror}')}", err=True)
    except Stopped as stopped:
        typer.echo(str(stopped), err=True)
        sys.exit(75)
    sys.exit(2)


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
        message = printable(record.getMessage())  # one line, whatever a file says
        say(self._console, f"{record.levelname.lower()}: {message}")


@app.callback(invoke_without_command=True)
def _settings(
    context: typer.Context,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Tell more.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    errors = _Steady(stderr=True)
    log = logging.getLogger("transduce")
    log.handlers = [_Warnings(errors)]
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    context.obj = errors if not quiet else Console(quiet=True)
