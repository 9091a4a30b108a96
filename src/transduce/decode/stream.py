"""Translates a stream of lines, in order and bounded memory; answers when its input pauses."""

import queue
import threading
import time
from collections.abc import Iterable, Iterator

from transduce.decode.search import SearchOptions
from transduce.decode.translator import Translation, Translator
from transduce.text.corpus import Line

WINDOW = 2048
"""Lines that are sorted by length and translated together."""
PAUSE = 0.05
"""Seconds that a line waits for others to be translated with."""


def translate_stream(
    translator: Translator,
    lines: Iterable[Line | str],
    *,
    options: SearchOptions | None = None,
    batch_tokens: int | None = None,
    window: int = WINDOW,
    pause: float | None = PAUSE,
) -> Iterator[list[Translation]]:
    """Yield the translation of each line, in order and in windows; blank lines come back empty.

    Lines are read ahead in a thread. They are translated as soon as `window` of them are there, or
    as the first has waited `pause` seconds: behind a pipe nothing waits for the end of the input.
    Where `pause` is None all windows but the last are full, whatever the time it takes to read.
    An error of `lines` is raised here, after the translations of the lines before it.
    """
    reader = _Reader(lines, window)
    try:
        while taken := reader.take(window, pause):
            yield translator.translate_lines(
                [line.text for line in taken],
                options or SearchOptions(),
                numbers=[line.number for line in taken],
                batch_tokens=batch_tokens,
            )
    finally:
        reader.stop()


class _Reader:
    """Reads lines in a thread, at most `ahead` of them in advance."""

    def __init__(self, lines: Iterable[Line | str], ahead: int) -> None:
        # Behind the last line comes what ended the input: None, or the error.
        self._queue: queue.Queue[Line | BaseException | None] = queue.Queue(ahead)
        self._stopped = threading.Event()
        self._end: list[BaseException | None] = []
        # A daemon: it may be waiting for a pipe that never closes.
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def take(self, most: int, pause: float | None) -> list[Line]:
        """Wait for a line, then up to `pause` seconds for more; none at the end of the input."""
        taken: list[Line] = []
        deadline = None  # there is none before the first line
        while len(taken) < most and not self._end:
            try:
                # What has arrived in the meantime is taken without waiting.
                wait = None if deadline is None else max(0.0, deadline - time.monotonic())
                item = self._queue.get(timeout=wait)
            except queue.Empty:
                break
            if isinstance(item, Line):
                taken.append(item)
                if len(taken) == 1 and pause is not None:
                    deadline = time.monotonic() + pause
            else:
                self._end.append(item)
        if not taken and self._end[0] is not None:
            raise self._end[0]
        return taken

    def stop(self) -> None:
        """End the thread: now, or at the next line if it waits for its input."""
        self._stopped.set()
        while True:  # make room: the thread may be waiting to put a line
            try:
                self._queue.get_nowait()
            except queue.Empty:
                return

    def _read(self, lines: Iterable[Line | str]) -> None:
        end = None
        try:
            for number, line in enumerate(lines, start=1):
                self._queue.put(line if isinstance(line, Line) else Line(number, line))
                if self._stopped.is_set():
                    return
        except (
            BaseException
        ) as error:  # whatever it is, it belongs to the one who reads the results
            end = error
        self._queue.put(end)
