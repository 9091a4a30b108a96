"""Spreads work over processes, in order, and lets none of them outlive the one that asked.

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
from pathlib import Path
from typing import Any, NoReturn

from transduce import errors
from transduce.errors import RunError, TransduceError

log = logging.getLogger(__name__)

Values = tuple[Any, ...]
"""What can be sent: None, numbers, text, bytes, and tuples and lists of them."""

_START = """
import marshal, sys, types
sys.path[:], here = marshal.load(sys.stdin.buffer)
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
    underway for each process.

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
        for request in requests:
            answers = [busy[0].answer()] if not idle else []
            worker = idle.popleft() if idle else busy.popleft()
            worker.ask(request)
            busy.append(worker)
            yield from answers
        yield from (worker.answer() for worker in busy)
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    def __init__(self, make: Callable[..., Callable[..., Any]], setup: Values) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for us; we end them
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self.ask((sys.path, str(Path(__file__).parent)))
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
        for warning in warnings:
            log.warning("%s", warning)
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
    questions, answers, sys.stdout = sys.stdin.buffer, sys.stdout.buffer, sys.stderr
    # Nothing here makes cycles, and to look for them among many small lists takes long.
    gc.disable()
    logging.getLogger("transduce").addHandler(warnings := _Warnings())
    module, name, setup = marshal.load(questions)
    work = getattr(importlib.import_module(module), name)(*setup)
    while True:
        request = marshal.load(questions)
        warnings.lines = []
        try:
            error, value = "", work(*request)
        except TransduceError as raised:
            error, value = type(raised).__name__, str(raised)
        except MemoryError:
            error, value = "RunError", "a process that prepares the text is out of memory"
        marshal.dump((error, value, warnings.lines), answers)
        answers.flush()


class _Warnings(logging.Handler):
    """Keeps what is warned of, for the asker to tell."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _end_with_the_asker() -> None:
    """End at once, in the middle of whatever, when the other end of standard input is gone."""
    poll = select.poll()
    poll.register(0, 0)
    poll.poll()
    os._exit(0)
