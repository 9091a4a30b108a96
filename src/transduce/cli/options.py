"""Options that several verbs have; None is whatever the search or the machine makes of it."""

from typing import Annotated

import torch
import typer

from transduce.config import validate
from transduce.decode.search import SearchOptions
from transduce.device import choose_device, set_threads

Beam = Annotated[int | None, typer.Option(help="Beams; 1 is greedy search [4].")]
Alpha = Annotated[float | None, typer.Option(help="Exponent of the length penalty [0.6].")]
BatchTokens = Annotated[
    int | None, typer.Option(min=1, help="Source pieces in a batch, beams included.")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, mps [auto].")]
Threads = Annotated[
    int | None, typer.Option(min=0, max=1024, help="CPU threads; 0 is all cores [0].")
]


def prepare_machine(device: str | None, threads: int | None) -> torch.device:
    """Set the number of threads and return the device.

    Raises:
        DeviceError: no such device here.
    """
    set_threads(threads or 0)
    return choose_device(device or "auto")


def search_options(context: typer.Context) -> SearchOptions:
    """Those of the search's options that a verb has and was given, the others by default.

    Raises:
        SettingsError: one is out of range, or they contradict each other.
    """
    given = {name: context.params.get(name) for name in SearchOptions.model_fields}
    return validate(SearchOptions, {name: x for name, x in given.items() if x is not None})
