"""The verb figure: pictures of a model and of a training, as SVG or PNG, without a browser."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from transduce.bundle import load
from transduce.cli.options import Alpha, Beam, Device, Threads, prepare_machine, search_options
from transduce.cli.output import opened
from transduce.decode.translator import Translator
from transduce.device import enough_memory
from transduce.errors import DataError, DeviceError, SettingsError, TraceError
from transduce.files import printable
from transduce.progress import say
from transduce.trace.figures import raster
from transduce.trace.figures.attention import attention as draw_attention
from transduce.trace.figures.beam import beam as draw_beam
from transduce.trace.figures.loss import loss as draw_loss
from transduce.trace.figures.masks import masks as draw_masks
from transduce.trace.figures.positions import positions as draw_positions
from transduce.trace.record import check_head
from transduce.trace.steps import last_cross_attention
from transduce.trace.trace import trace
from transduce.train.monitor import read_metrics

figure = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=False,
    help="Draw a picture, with the numbers of the page, as .svg or .png.",
)

Model = Annotated[Path, typer.Argument(help="A model directory, or a training run.")]
Text = Annotated[str, typer.Argument(help="The sentence to translate.")]
Target = Annotated[
    str | None, typer.Option(help="Look at this translation [the model's own best].")
]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Where to: FILE.svg or FILE.png.")
]
Scale = Annotated[
    float | None, typer.Option(min=0.1, max=20, help="Of a .png: pixels for one of the .svg [2].")
]


@figure.command()
def attention(  # noqa: PLR0913 - one parameter an option
    context: typer.Context,
    model: Model,
    text: Text,
    output: Output,
    block: Annotated[
        str | None,
        typer.Option(help="Such as decoder.1.cross_attention [the last cross-attention]."),
    ] = None,
    head: Annotated[
        str, typer.Option(metavar="N|mean|all", help="A head from 0, their mean, or each.")
    ] = "mean",
    target: Target = None,
    scale: Scale = None,
    device: Device = None,
    threads: Threads = None,
) -> None:
    """Who attends to whom in one block: a row a query, a column a key."""
    _check(output, scale)
    if head not in ("mean", "all") and not (head.isascii() and head.isdecimal()):
        raise SettingsError(f"--head {head}: it is a number from 0, mean or all")
    translator = Translator.load(model, device=prepare_machine(device, threads))
    network = translator.bundles[0].model
    block = block or last_cross_attention(network)
    check_head(network, block, int(head) if head.isdecimal() else 0)
    found = _traced(translator, text, target, {})
    if f"{block}.weights" not in found["tensors"]:
        raise TraceError(f"{block} is too large to draw; shorten the text")
    each = {"mean": [None], "all": list(range(network.config.heads))}
    heads = each[head] if head in each else [int(head)]
    _write(context, draw_attention(found, [(block, one) for one in heads]), output, scale)


@figure.command()
def masks(
    context: typer.Context,
    model: Model,
    text: Text,
    output: Output,
    target: Target = None,
    scale: Scale = None,
    device: Device = None,
    threads: Threads = None,
) -> None:
    """The three masks of a sentence: what is padding, what comes later."""
    _check(output, scale)
    translator = Translator.load(model, device=prepare_machine(device, threads))
    _write(context, draw_masks(_traced(translator, text, target, {})), output, scale)


@figure.command()
def beam(  # noqa: PLR0913 - one parameter an option
    context: typer.Context,
    model: Model,
    text: Text,
    output: Output,
    beam: Beam = None,
    alpha: Alpha = None,
    scale: Scale = None,
    device: Device = None,
    threads: Threads = None,
) -> None:
    """The search as a tree: what was kept, pruned and finished, and why one won."""
    _check(output, scale)
    options = search_options(context)
    translator = Translator.load(model, device=prepare_machine(device, threads))
    found = _traced(translator, text, None, {"beam": options.beam, "alpha": options.alpha})
    _write(context, draw_beam(found), output, scale)


@figure.command()
def positions(
    context: typer.Context,
    model: Model,
    output: Output,
    length: Annotated[int, typer.Option(min=1, help="How many positions.")] = 64,
    scale: Scale = None,
) -> None:
    """What a model adds to an embedding for its place: position over dimension."""
    _check(output, scale)
    network = load(model).model
    embedding = network.source_embedding
    if length > network.config.max_length:
        raise SettingsError(
            f"--length {length}: this model has {network.config.max_length:,} positions"
        )
    with torch.inference_mode():
        table = embedding.positions[:length].float().cpu().numpy().astype(np.float64)
    _write(context, draw_positions(table, network.config.positions), output, scale)


@figure.command()
def loss(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="A training run.")],
    output: Output,
    scale: Scale = None,
) -> None:
    """How a training went: loss, learning rate and BLEU over its steps."""
    _check(output, scale)
    drawn = draw_loss(list(read_metrics(run / "metrics.jsonl")), run.absolute().name)
    _write(context, drawn, output, scale)


def _check(output: Path, scale: float | None) -> None:
    """Refuse, before anything is computed, what could not be written."""
    if output.suffix not in (".svg", ".png"):
        raise SettingsError(f"--output {output}: a figure is a .svg or a .png")
    if output.suffix == ".png":
        raster.library()
    elif scale is not None:
        raise SettingsError("--scale is for .png; an .svg has any size")


def _traced(
    translator: Translator, text: str, target: str | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the trace of a document; a figure of a blank text would be empty."""
    if not text.strip():
        raise DataError("TEXT is blank: nothing to draw")
    with enough_memory(DeviceError, "by what is recorded; draw a shorter sentence"):
        return trace(translator, text, target, **options).to_json()["traces"][0]


def _write(context: typer.Context, svg: str, output: Path, scale: float | None) -> None:
    image = raster.png(svg, scale or 2.0) if output.suffix == ".png" else svg.encode()
    with opened(output) as file:
        file.buffer.write(image)
    say(context.obj, printable(f"written to {output}"))
