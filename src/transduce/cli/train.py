"""The verb that makes a model, train, and the options that it shares with its dry run."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from transduce import config
from transduce.train.config import TrainConfig
from transduce.train.start import train as run_train


def settings(  # noqa: PLR0913 - one parameter an option
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
    start_from: Annotated[
        Path | None, typer.Option(help="A model to fine-tune.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run [transduce-run].")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, order, dropout [1].")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, mps [auto].")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads [all cores].")] = None,
    precision: Annotated[
        str | None, typer.Option(help="auto, fp32 or bf16 [auto: measured].")
    ] = None,
    tensorboard: Annotated[
        bool | None, typer.Option("--tensorboard", help="Write RUN/tensorboard/ too.")
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
) -> TrainConfig:
    """Read the settings of a training from the command line and a recipe."""
    # The options bear the names of the settings.
    shared = TrainConfig.model_fields.keys() & context.params
    values = {name: value for name in shared if (value := context.params[name]) is not None}
    return config.load(TrainConfig, recipe, set_ or (), values=values, root=data_root)


def takes_settings(verb: Callable[[TrainConfig, Console], None]) -> Callable[..., None]:
    """Make a verb of a function: its options are those of `settings`."""

    def run(**options: Any) -> None:  # noqa: ANN401 - whatever `settings` takes
        verb(settings(**options), options["context"].obj)

    run.__name__, run.__doc__ = verb.__name__, verb.__doc__
    run.__signature__ = inspect.signature(settings)  # pyrefly: ignore[missing-attribute]
    return run


@takes_settings
def train(config: TrainConfig, console: Console) -> None:
    """Make a translator of two text files, or go on with one that was stopped."""
    run_train(config, console=console)
