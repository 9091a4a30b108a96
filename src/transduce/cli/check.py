"""The verb check: whether a training would run, and what it would take."""

import typer
from rich.console import Console

from transduce.cli.output import opened
from transduce.cli.train import takes_settings
from transduce.files import printable
from transduce.train.check import check as examine
from transduce.train.config import TrainConfig


@takes_settings
def check(config: TrainConfig, console: Console) -> None:
    """Tell what train would do with these settings and files, and what is wrong; train nothing."""
    findings = examine(config, console)
    with opened(None) as out:
        out.writelines(f"{printable(line)}\n" for line in findings.lines)
        if not findings.problems:
            out.write("this training would run\n")
    for problem in findings.problems:
        typer.echo(f"error: {printable(problem)}", err=True)
    if findings.problems:
        raise typer.Exit(2)
