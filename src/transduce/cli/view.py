"""The verb view: the page, in a browser on this machine, with a model behind it."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from transduce.cli.options import Device, Threads, prepare_machine
from transduce.cli.output import opened
from transduce.decode.translator import Translator


def view(
    model: Annotated[Path, typer.Argument(help="A model directory, or a training run.")],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of this machine; 0 is any free one.")
    ] = 8421,
    device: Device = None,
    threads: Threads = None,
) -> None:
    """See inside a model: a page in your browser, at an address that is told; Ctrl-C ends it."""
    from transduce.serve.view import HOST, listen, server  # an extra

    where = prepare_machine(device, threads)
    with listen(port) as listener:
        answering = server(Translator.load(model, device=where))
        with opened(None) as out:
            out.write(f"http://{HOST}:{listener.getsockname()[1]}  (Ctrl-C ends)\n")
        with suppress(KeyboardInterrupt):
            answering.run(sockets=[listener])
