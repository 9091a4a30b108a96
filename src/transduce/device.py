"""Which device, how many threads, and whether bfloat16 pays: what depends on the machine."""

import ctypes
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from transduce.errors import DeviceError, TransduceError

_GAIN = 1.15
"""How much faster bfloat16 must be in the measurement to be taken."""


def choose_device(name: str) -> torch.device:
    """Return the device of a name such as cpu, cuda, cuda:1 or mps; auto takes a GPU if there.

    Raises:
        DeviceError: no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError("not a device to train or translate on")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = re.split(r"[,.\n]", str(error))[0]
        gpus = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        there = ", ".join(("auto", "cpu", *(gpu for gpu, usable in gpus.items() if usable)))
        raise DeviceError(
            f"device {name!r} cannot be used here ({reason}); here there are: {there}"
        ) from None
    return device


def set_threads(threads: int) -> int:
    """Use so many CPU threads, 0 leaving PyTorch's choice; return the number in use."""
    if threads:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


# Allocators fail in their own words: of the CPU, of CUDA and MPS, of C++, of cuBLAS.
_NO_MEMORY = re.compile("allocate memory|not enough memory|out of memory|bad_alloc|ALLOC_FAILED")


@contextmanager
def enough_memory(kind: type[TransduceError], remedy: str) -> Generator[None]:
    """Raise this kind of error, with the remedy, where the memory of machine or GPU runs out."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _NO_MEMORY.search(str(error)):
            raise
        raise kind(f"memory ran out, {remedy}") from None


# Parameters of glibc's mallopt (malloc.h), with its defaults and what a training sets. To set one
# ends glibc's adapting of its thresholds: the defaults of those are where it leads, not begins.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4
_DEFAULTS = {_MMAP_MAX: 65_536, _TOP_PAD: 128 << 10}
_DEFAULTS |= {_MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 64 << 20}
_KEPT = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1, _TOP_PAD: 64 << 20}


@contextmanager
def kept_memory() -> Generator[None]:
    """Keep memory that is freed for what is asked for next; afterwards give it back.

    Each step of a training frees what the next one asks for. Left to itself glibc returns large
    pieces at once, and the system fills them with zeros anew (benchmarks/techniques.py says what
    that costs). It holds for the whole process, and is not to be nested. Elsewhere than on glibc
    nothing changes.
    """
    # oneDNN would keep 1,024 compiled products, half a megabyte each: of shapes that come again so
    # seldom that the next step's push them out. Read when it first computes.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(library, "mallopt"):
        yield
        return
    for parameter, value in _KEPT.items():
        library.mallopt(parameter, value)
    try:
        yield
    finally:
        for parameter, value in _DEFAULTS.items():
            library.mallopt(parameter, value)
        library.malloc_trim(0)


def machine_memory(device: torch.device) -> int:
    """Bytes of memory that there are for a device, taken or not; a container's limit counts."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return sys.maxsize
    with suppress(OSError, ValueError):  # "max", where there is no limit
        return min(there, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return there


def peak_memory(device: torch.device) -> int:
    """Bytes that this process has taken at most: on the GPU, where it uses one."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource  # not on Windows, where one can translate but not train

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def bf16_pays(device: torch.device, step: Callable[[bool], None]) -> bool:
    """Time a step without (False) and with (True) bfloat16 on this machine; pick the faster.

    A GPU that has bfloat16 always gains; a CPU may emulate it, or lose more in casts than it gains.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(4):
        for bf16, times in seconds.items():
            began = time.perf_counter()
            step(bf16)
            times.append(time.perf_counter() - began)
    # The first of each warms up.
    fp32, bf16 = (statistics.median(times[1:]) for times in seconds.values())
    return fp32 > _GAIN * bf16
