"""SIGINT and SIGTERM as a request to stop: met at once, or when all is saved."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from transduce.errors import Stopped


@dataclass
class Stop:
    """A request to stop."""

    asked: bool = False
    waits: bool = False
    """Whether it is met by who looks at `asked`, when all is saved, and not at once."""


@contextmanager
def stop_signals() -> Generator[Stop]:
    """Turn SIGINT and SIGTERM into Stopped, or into `asked` while the request waits.

    A second signal ends the process as if nobody listened.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: object) -> None:
        if not stop.waits:
            raise Stopped("stopped before training began; the same command starts it")
        if stop.asked:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
