import threading
import time
from itertools import chain, count, islice

import pytest

from transduce.decode.search import SearchOptions
from transduce.decode.stream import translate_stream
from transduce.decode.translator import Translation, Translator
from transduce.text.corpus import Line


class Upper(Translator):
    """Stands for a Translator: shouts, and notes the windows that it was given."""

    def __init__(self):
        self.windows = []

    def translate_lines(self, texts, options, *, numbers=None, prefixes=None, batch_tokens=0):
        self.windows.append((list(numbers), list(texts)))
        return [Translation(text=text.upper()) for text in texts]


def flat(windows):
    """The translations of a stream, one by one."""
    return chain.from_iterable(windows)


LINES = ["", "a b", "c", "", " ", "", "d", "e", "f", ""]


@pytest.mark.parametrize("window", [1, 3, 4, 100])
def test_lines_come_back_in_order_whatever_the_window(window):
    upper = Upper()
    found = list(flat(translate_stream(upper, LINES, window=window)))
    assert [one.text for one in found] == [line.upper() for line in LINES]
    assert [n for numbers, _ in upper.windows for n in numbers] == list(range(1, 11))
    assert all(len(numbers) <= window for numbers, _ in upper.windows)


def test_no_input_gives_no_output():
    assert list(translate_stream(Upper(), [])) == []


def test_full_windows_are_filled():
    upper = Upper()
    list(translate_stream(upper, map(str, range(1000)), window=250, pause=5.0))
    assert [len(numbers) for numbers, _ in upper.windows] == [250] * 4


def test_without_a_pause_windows_are_full_however_slowly_the_lines_come():
    def lines():
        for number in range(7):
            time.sleep(0.02)
            yield str(number)

    upper = Upper()
    found = list(translate_stream(upper, lines(), window=3, pause=None))
    assert [len(window) for window in found] == [3, 3, 1]
    assert [numbers for numbers, _ in upper.windows] == [[1, 2, 3], [4, 5, 6], [7]]


def test_an_input_that_pauses_is_answered():
    answered = threading.Event()

    def lines():
        yield "one"
        yield "two"
        assert answered.wait(20), "nothing came back before the input went on"
        yield "three"

    found = flat(translate_stream(Upper(), lines()))
    assert [one.text for one in islice(found, 2)] == ["ONE", "TWO"]
    answered.set()
    assert [one.text for one in found] == ["THREE"]


def test_an_input_that_trickles_is_answered():
    """It never pauses, and never ends: a line waits for a while only."""

    def lines():
        for number in count():
            time.sleep(0.01)
            yield str(number)

    upper = Upper()
    found = translate_stream(upper, lines())
    assert next(found)[0].text == "0"
    found.close()
    assert len(upper.windows[0][0]) < 100


def test_numbers_are_those_of_the_lines():
    upper = Upper()
    list(translate_stream(upper, [Line(41, "a"), Line(42, "b")], pause=5.0))
    assert upper.windows == [([41, 42], ["a", "b"])]


def test_an_error_of_the_input_comes_after_what_was_read():
    def lines():
        yield from ("one", "two")
        raise OSError("the disk is gone")

    found = flat(translate_stream(Upper(), lines()))
    assert [next(found).text, next(found).text] == ["ONE", "TWO"]
    with pytest.raises(OSError, match="the disk is gone"):
        next(found)


def test_memory_is_bounded():
    read = 0

    def lines():
        nonlocal read
        for read in range(1, 100_000):  # noqa: B007 - the count is wanted
            yield "a"

    found = translate_stream(Upper(), lines(), window=5)
    next(found)
    time.sleep(0.1)
    assert read <= 5 + 5 + 2  # the window, the queue, and what the thread holds
    found.close()


def test_the_thread_ends_when_nobody_listens_any_more():
    for window in (1, 7):
        before = set(threading.enumerate())
        found = translate_stream(Upper(), map(str, count()), window=window)
        next(found)
        [thread] = set(threading.enumerate()) - before
        found.close()
        thread.join(5)
        assert not thread.is_alive()


def test_options_reach_the_translator():
    seen = []

    class Notes(Upper):
        def translate_lines(self, texts, options, *, numbers=None, prefixes=None, batch_tokens=0):
            seen.append((options, batch_tokens))
            return super().translate_lines(
                texts, options, numbers=numbers, batch_tokens=batch_tokens
            )

    list(translate_stream(Notes(), ["a"], options=SearchOptions(beam=2), batch_tokens=77))
    assert seen == [(SearchOptions(beam=2), 77)]
