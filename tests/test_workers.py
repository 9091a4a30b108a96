"""Work spread over processes comes back in order, and nothing of it stays when something ends."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import labour
import pytest
from corpora import SMALL_OPTIONS

from transduce.errors import DataError, RunError, TokenizerError
from transduce.workers import spread

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


def children(parent):
    """The processes that a process has started and that still run, by /proc."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, ppid = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has just ended
            continue
        if int(ppid) == parent and state != "Z":
            found.add(int(path.parent.name))
    return found


def running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize(("processes", "count"), [(0, 7), (1, 0), (1, 7), (2, 1), (3, 7)])
def test_answers_come_in_the_order_of_the_requests(processes, count):
    requests = ((number,) for number in range(count))
    answers = list(spread(labour.doubler, (0.02,), requests, processes=processes))
    assert answers == [2 * number for number in range(count)]
    assert not children(os.getpid())


def test_requests_are_taken_no_sooner_than_they_can_be_worked_on():
    taken = 0

    def requests():
        nonlocal taken
        for taken in range(1, 20):
            yield (taken,)

    for answered, _ in enumerate(spread(labour.doubler, (0.0,), requests(), processes=2)):
        assert taken <= answered + 1 + 2


def test_a_large_request_and_a_large_answer_do_not_wait_for_each_other():
    big = b"x" * 5_000_000
    answers = spread(labour.doubled, (), ((big,) for _ in range(4)), processes=2)
    assert [len(answer) for answer in answers] == [2 * len(big)] * 4


def test_workers_are_processes_of_their_own_without_pytorch():
    told = list(spread(labour.teller, (), [()] * 4, processes=2))
    assert len({process for process, _ in told} - {os.getpid()}) == 2
    assert not any(torch for _, torch in told)


@pytest.mark.parametrize(
    ("way", "error", "told"),
    [
        ("killed", RunError, r"was killed \(signal 9\).*--threads"),
        ("memory", RunError, "out of memory"),
        ("told", TokenizerError, "^no such subword$"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_told_in_a_line_and_ends_all(way, error, told):
    with pytest.raises(error, match=told) as raised:
        list(spread(labour.failer, (way,), ((n,) for n in range(9)), processes=2))
    assert "\n" not in str(raised.value)
    assert not children(os.getpid())


def test_warnings_of_a_worker_are_heard(caplog):
    with caplog.at_level(logging.WARNING):
        list(spread(labour.failer, ("odd",), ((n,) for n in range(4)), processes=2))
    found = [(r.name, r.levelname, r.getMessage()) for r in caplog.records]
    assert found == [("transduce.labour", "WARNING", "this is odd")]


@pytest.mark.parametrize("processes", [0, 1, 2])
@pytest.mark.parametrize(("way", "told"), [("slow", "the answer"), ("fine", "the request")])
def test_of_two_errors_the_one_of_the_first_request_is_told(way, told, processes):
    def requests():
        yield from ((n if way == "slow" else 0,) for n in range(4))
        raise DataError("the request")

    answers = []
    with pytest.raises(DataError, match=told):
        answers.extend(spread(labour.failer, (way,), requests(), processes=processes))
    assert not children(os.getpid())


def test_who_stops_listening_leaves_nothing_running():
    answers = spread(labour.doubler, (0.0,), ((n,) for n in range(100)), processes=2)
    assert next(answers) == 0
    assert len(children(os.getpid())) == 2
    answers.close()
    assert not children(os.getpid())


@pytest.mark.parametrize("work", ["sleeper", "idle"])
def test_workers_do_not_outlive_a_parent_that_is_killed(work):
    # No `if __name__ == "__main__"`: a user's script is not run again in the workers.
    request = "(60,)" if work == "sleeper" else "(0,)"
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import labour
from transduce.workers import spread
for _ in spread(labour.sleeper, (), [{request}] * 2, processes=2):
    time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", script])
    wait_until(lambda: len(children(parent.pid)) == 2)
    workers = children(parent.pid)
    time.sleep(0.3)
    assert all(map(running, workers))
    parent.kill()
    parent.wait()
    wait_until(lambda: not any(map(running, workers)), seconds=5)


def test_ctrl_c_is_for_the_parent_alone():
    script = f"""
import signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
signal.signal(signal.SIGINT, lambda *_: None)  # it goes on
import labour
from transduce.workers import spread
for answer in spread(labour.doubler, (0.3,), ((n,) for n in range(4)), processes=2):
    print(answer, flush=True)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    first = parent.stdout.readline()
    os.killpg(parent.pid, signal.SIGINT)  # as a terminal does
    rest, _ = parent.communicate(timeout=60)
    assert (first + rest).split() == ["0", "2", "4", "6"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """So much text that processes are started for it."""
    path = tmp_path_factory.mktemp("text") / "text.tsv"
    path.write_text("".join(f"the number {n}\tdie Zahl {n}\n" for n in range(200_000)))
    return path


def start(text, out):
    command = [sys.executable, "-m", "transduce", "train", "--tsv", str(text), "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--threads", "2", *SMALL_OPTIONS],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: len(children(process.pid)) == 2)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_while_text_is_read_nothing_stays(text, tmp_path, number):
    process = start(text, tmp_path / "run")
    workers = children(process.pid)
    os.killpg(process.pid, number)  # as a terminal does with Ctrl-C
    _, told = process.communicate(timeout=30)
    assert process.returncode == 75
    assert "Traceback" not in told
    assert not any(map(running, workers))
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"lock"}


def test_a_worker_that_is_killed_ends_the_training_with_a_line(text, tmp_path):
    process = start(text, tmp_path / "run")
    workers = sorted(children(process.pid))
    os.kill(workers[0], signal.SIGKILL)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 2
    assert told.splitlines()[-1].startswith("error: a process that prepares the text was killed")
    assert "Traceback" not in told
    assert not any(map(running, workers))
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"lock"}
