"""Spreads work over processes; answers come in order, and no process outlives the one that asked.

A worker is a Python of its own that answers on its standard output what it is asked on its standard
input. It is not forked: PyTorch's threads would not survive it, and it need not load PyTorch. It
does not run the user's script again, as multiprocessing would.
"""

import gc
import importlib
import logging
import marshal
import os
import select
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from transduce import errors
from transduce.errors import RunError, TransduceError

Values = tuple[Any, ...]
"""What can be sent: None, numbers, text, bytes, and tuples and lists of them."""

_START = """
import sys, types
here, *sys.path[:] = sys.argv[1:]
package = types.ModuleType("transduce")  # without its __init__, which loads PyTorch
package.__path__ = [here]
sys.modules["transduce"] = package
from transduce.workers import serve
serve()
"""


def spread(
    make: Callable[..., Callable[..., Any]],
    setup: Values,
    requests: Iterable[Values],
    *,
    processes: int,
) -> Iterator[Any]:
    """Yield `make(*setup)(*request)` for each request, in order; 0 processes: without any.

    `make` is a function of a module that does not load PyTorch. There is at most one request
    underway for each process. What goes wrong with a request is raised after the answers to those
    before it, as it is without processes.

    Raises:
        RunError: a process was killed, or ran out of memory.
    """
    if not processes:
        work = make(*setup)
        yield from (work(*request) for request in requests)
        return
    workers: list[_Worker] = []
    try:
        # All at once: they start side by side.
        workers.extend(_Worker(make, setup) for _ in range(processes))
        idle, busy = deque(workers), deque[_Worker]()
        wrong: list[TransduceError] = []
        for request in _until_wrong(requests, wrong):
            answers = [busy[0].answer()] if not idle else []
            worker = idle.popleft() if idle else busy.popleft()
            worker.ask(request)
            busy.append(worker)
            yield from answers
        yield from (worker.answer() for worker in busy)
        for error in wrong:
            raise error
    finally:
        for worker in workers:
            worker.end()


def _until_wrong(requests: Iterable[Values], wrong: list[TransduceError]) -> Iterator[Values]:
    try:
        yield from requests
    except TransduceError as error:
        wrong.append(error)


class _Worker:
    def __init__(self, make: Callable[..., Callable[..., Any]], setup: Values) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(Path(__file__).parent), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for us; we end them
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self.ask((make.__module__, make.__name__, setup))

    def ask(self, values: Values) -> None:
        assert self._process.stdin is not None
        try:
            marshal.dump(values, self._process.stdin)
            self._process.stdin.flush()
        except BrokenPipeError:
            self._died()

    def answer(self) -> Any:  # noqa: ANN401 - of Values
        assert self._process.stdout is not None
        try:
            error, value, warnings = marshal.load(self._process.stdout)
        except EOFError:
            self._died()
        for name, level, message in warnings:
            logging.getLogger(name).log(level, "%s", message)
        if error:
            raise getattr(errors, error)(value)
        return value

    def _died(self) -> NoReturn:
        code = self._process.wait()
        # Above 0 it has printed a traceback.
        assert code <= 0, f"a process that prepares the text ended with {code}"
        raise RunError(
            f"a process that prepares the text was killed (signal {-code}), perhaps for want of "
            "memory; start again, with fewer --threads if memory is short"
        )

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def serve() -> None:
    """Be a worker, until nobody asks any more."""
    threading.Thread(target=_end_with_the_asker, daemon=True).start()
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    # Nothing here makes cycles, and to look for them among many small lists takes long.
    gc.disable()
    logging.getLogger("transduce").addHandler(warnings := _Warnings())
    work: Callable[..., Any] | None = None
    for question in _questions(sys.stdin.buffer):
        if work is None:  # the first one says what is to be done
            module, name, setup = question
            work = getattr(importlib.import_module(module), name)(*setup)
            continue
        warnings.found = []
        try:
            error, value = "", work(*question)
        except TransduceError as raised:
            error, value = type(raised).__name__, str(raised)
        except MemoryError:
            error, value = "RunError", "a process that prepares the text is out of memory"
        marshal.dump((error, value, warnings.found), answers)
        answers.flush()


def _questions(file: BinaryIO) -> Iterator[Values]:
    with suppress(EOFError):  # nobody asks any more
        while True:
            yield marshal.load(file)


class _Warnings(logging.Handler):
    """Keeps what is warned of, with its logger's name and level, for the asker to log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append((record.name, record.levelno, record.getMessage()))


def _end_with_the_asker() -> None:
    """End at once, in the middle of whatever, when the other end of standard input is gone."""
    poll = select.poll()
    poll.register(0, 0)
    poll.poll()
    os._exit(0)
