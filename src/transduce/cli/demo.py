"""The verb demo: a training that needs no data and no network, and what it has learnt."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from transduce.cli.output import opened
from transduce.demo.run import learn, show


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("transduce-demo"),
) -> None:
    """Train a small translator on a generated corpus in two minutes, and show what it learnt."""
    learn(out, context.obj)
    with opened(None) as shown:
        show(out, Console(file=shown))
