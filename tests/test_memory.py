"""Memory that runs out ends a run in one line and loses nothing; a training keeps its own."""

import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from corpora import SMALL, SMALL_OPTIONS, reversals

from transduce import train
from transduce.config import validate
from transduce.device import enough_memory
from transduce.errors import DeviceError, RunError
from transduce.train import checkpoint
from transduce.train import loop as loop_module
from transduce.train.config import TrainConfig

# Everything is imported; from now on, or from a call on, the process gets no more than so much.
LIMITED = """
import importlib, resource, sys
from transduce.cli.app import main

def limit():
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + {spare},) * 2)

module, _, name = "{where}".partition(":")
if not name:
    limit()
else:
    module = importlib.import_module(module)
    original, calls = getattr(module, name), []
    def hungry(*arguments, **named):
        calls.append(1)
        if len(calls) == {call}:
            limit()
            take = bytearray if "{kind}" == "python" else importlib.import_module("torch").empty
            take({hunger})
        return original(*arguments, **named)
    setattr(module, name, hungry)
sys.argv[0] = "transduce"
main()
"""


def limited(words: list[str], **where: object) -> subprocess.CompletedProcess[str]:
    values = {"where": "", "spare": 10**8, "call": 1, "hunger": 10**9, "kind": "torch"} | where
    script = [sys.executable, "-c", LIMITED.format(**values), *words]
    return subprocess.run(script, capture_output=True, text=True, timeout=200, check=False)


def words(folder: Path, *more: str) -> list[str]:
    text = ["--source", str(folder / "text.src"), "--target", str(folder / "text.tgt")]
    out = ["--out", str(folder / "run"), "--threads", "1"]
    return ["-q", "train", *text, *out, *SMALL_OPTIONS, *more]


def last_line(found: subprocess.CompletedProcess[str]) -> str:
    assert found.returncode == 2, found.stderr
    *_, last = found.stderr.splitlines()
    assert last.startswith("error: memory ran out"), found.stderr
    assert "Traceback" not in found.stderr
    return last


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS binds on Linux")


@needs_linux
def test_a_batch_too_large_is_told_before_training_begins(tmp_path: Path):
    reversals(tmp_path, pairs=20_000)
    found = limited(words(tmp_path, "--set", "train.batch_tokens=200000"), spare=3 * 10**8)
    assert "train.batch_tokens=200000" in last_line(found)


@needs_linux
@pytest.mark.parametrize(
    ("where", "call", "kind"),
    [
        ("transduce.train.loop:train_step", 7, "torch"),
        ("transduce.train.loop:train_step", 7, "python"),
        ("transduce.train.loop:validate", 2, "torch"),
    ],
)
def test_in_a_step_or_a_validation_it_costs_what_came_after_the_last_checkpoint(
    tmp_path: Path, where: str, call: int, kind: str
):
    reversals(tmp_path)
    told = last_line(limited(words(tmp_path), where=where, call=call, kind=kind))
    assert "train.batch_tokens=256" in told
    assert "train.beam=2" in told
    assert "data.max_length=250" in told
    assert checkpoint.steps(tmp_path / "run") == [5]
    assert not list((tmp_path / "run").rglob(".*"))
    again = subprocess.run(
        [sys.executable, "-m", "transduce", *words(tmp_path)], timeout=200, check=False
    )
    assert again.returncode == 0


@needs_linux
def test_translating_tells_which_option_to_lower(tmp_path: Path):
    source, target = reversals(tmp_path)
    text = {"source": str(source), "target": str(target), "out": str(tmp_path / "run")}
    train(validate(TrainConfig, SMALL | text))
    (tmp_path / "long").write_text(("a b c d e f g h " * 50 + "\n") * 500)
    output = tmp_path / "translated"
    call = ["translate", str(tmp_path / "run"), str(tmp_path / "long"), "--output", str(output)]
    found = limited([*call, "--batch-tokens", "1000000", "--threads", "1"], spare=3 * 10**8)
    assert "--batch-tokens 1000000 and --beam 4; lower" in last_line(found)
    assert not output.exists()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."),
        RuntimeError("MPS backend out of memory (MPS allocated: 17.00 GB)"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: not enough memory"),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
    ],
)
def test_all_allocators_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    reversals(tmp_path, pairs=60)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(loop_module, "train_step", fail)
    text = {"source": str(tmp_path / "text.src"), "target": str(tmp_path / "text.tgt")}
    with pytest.raises(RunError, match=re.escape("train.batch_tokens=256")) as found:
        train(validate(TrainConfig, SMALL | text | {"out": str(tmp_path / "run")}))
    assert "\n" not in str(found.value)


def test_another_error_stays_what_it_is():
    with pytest.raises(RuntimeError, match="shapes"), enough_memory(DeviceError, ""):
        raise RuntimeError("shapes do not fit")


# Page faults of making and dropping tensors of so many MB, and what the process holds, in MB.
MEASURE = """
import json, resource, torch
from transduce.device import kept_memory

def faults(size):
    for counted in (False, True):  # the first time a heap may have to grow
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(4):
            torch.empty(size << 18).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def held():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmRSS"))

torch.set_num_threads(1)
found = {}
"""
KEPT = """
found |= {"before": faults(64), "held before": held()}
with kept_memory():
    found |= {"inside": faults(64) + faults(96), "held inside": held()}
found |= {"held after": held(), "after": faults(400)}
try:
    with kept_memory():
        raise KeyError
except KeyError:
    found["after an error"] = faults(400)
"""
ADAPTED = """
with kept_memory():
    pass
found["small"] = faults(1) + faults(4) + faults(16)
"""

needs_glibc = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"),
    reason="only glibc is told to keep memory",
)


def measure(script: str) -> dict[str, int]:
    script = MEASURE + script + "print(json.dumps(found))"
    return json.loads(subprocess.check_output([sys.executable, "-c", script], timeout=100))


@needs_glibc
def test_a_training_keeps_freed_memory_and_gives_it_back_at_its_end():
    found = measure(KEPT)
    # Four tensors of 64 MB or more, of 128 pages in all even if pages are huge. Those that come
    # after are larger than what may lie in the heap, where it costs nothing until it is used.
    assert all(found[when] > 100 for when in ("before", "after", "after an error")), found
    assert found["inside"] < 20, found
    assert found["held inside"] > found["held before"] + 60, found
    assert found["held after"] < found["held before"] + 20, found


@needs_glibc
def test_after_it_everyday_tensors_are_not_given_back_each_time():
    # As it is without it: glibc learns from the first that is freed.
    assert measure(ADAPTED)["small"] < 30
