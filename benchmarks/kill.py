"""Kill a training at random moments, and compare its bytes with those of one that ran through.

    python benchmarks/kill.py [--kills 100] [--seed 1] [--threads 1 2] [--steps 400] [--ema 0]

For fp32 and bf16, each at 1 and 2 threads: a run goes through once; then runs of the same settings
get SIGKILL at moments drawn uniformly from the first quarter of that time, each time started again
by the same call, until their share of the kills is used up and the last run has finished. Every
finished run must have the same model.safetensors and training.safetensors (by sha256) and the same
snapshots, name the same best, and have left nothing behind. Moments before the first step, in
preparing the text, in saving and in validating are among them: the table counts those before the
first checkpoint.

What is killed is the whole training: a process forked from this one, which has imported PyTorch and
transduce but has started no thread and computed nothing, so that a start costs milliseconds instead
of two seconds. Nothing is shared with the next one but the run's folder.

Prints a table in Markdown. Exit status 0: all bytes are the same; 1: they are not, and the folder
is kept.
"""

import argparse
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

from transduce import train
from transduce.config import validate
from transduce.train.checkpoint import steps
from transduce.train.config import TrainConfig


def settings(
    folder: Path, name: str, options: argparse.Namespace, kind: tuple[str, int]
) -> TrainConfig:
    """A training of some seconds that saves and validates often."""
    precision, threads = kind
    return validate(
        TrainConfig,
        {
            "source": str(folder / "text.src"),
            "target": str(folder / "text.tgt"),
            "out": str(folder / name),
            "precision": precision,
            "threads": threads,
            "model": {"preset": "tiny", "d_model": 64, "d_ff": 128, "heads": 4},
            "tokenizer": {"vocab_size": 280},
            "train": {
                "max_steps": options.steps,
                "batch_tokens": 512,
                "warmup": 50,
                "validate_every": max(1, options.steps // 5),
                "save_every": max(1, options.steps // 40),
                "log_every": 5,
                "beam": 2,
                "ema_decay": options.ema,
                "snapshots": True,
            },
        },
    )


def write_text(folder: Path) -> None:
    """Write lines of letters, and the same lines reversed."""
    draw = random.Random(1)
    lines = [
        [draw.choice("abcdefghijklmnop") for _ in range(draw.randint(3, 12))] for _ in range(1500)
    ]
    for name, step in (("text.src", 1), ("text.tgt", -1)):
        text = "".join(" ".join(line[::step]) + "\n" for line in lines)
        (folder / name).write_text(text, encoding="utf-8")


def start(config: TrainConfig) -> int:
    """Start a training in a process of its own, and return its id."""
    process = os.fork()
    if process:
        return process
    try:
        train(config)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def end(process: int, seconds: float | None = None) -> bool:
    """Wait for a training, so many seconds and then kill it; return whether it came to its end."""
    until = time.monotonic() + (3600 if seconds is None else seconds)
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            if status:
                sys.exit(f"a training ended with status {status}: see above")
            return True
        if time.monotonic() >= until:
            os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            return status == 0  # it had just come to its end
        time.sleep(0.001)


def outcome(run: Path) -> dict[str, str]:
    """Everything that has to be the same, and what a finished run should not contain."""
    last = run / "checkpoints" / f"step-{steps(run)[-1]}"
    return {
        "best": os.readlink(run / "best"),
        "model": digest(run / "best" / "model.safetensors"),
        "training": digest(last / "training.safetensors"),
        "snapshots": " ".join(
            f"{path.parent.name}:{digest(path)}"
            for path in sorted((run / "snapshots").glob("*/model.safetensors"))
        ),
        "leftovers": " ".join(sorted(str(path.relative_to(run)) for path in run.rglob(".*"))),
    }


def digest(path: Path) -> str:
    """The sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def compare(folder: Path, options: argparse.Namespace, kind: tuple[str, int], kills: int) -> bool:
    """Make one row of the table: kill so many times; return whether all runs are the same."""
    draw = random.Random(f"{options.seed} {kind}")
    began = time.monotonic()
    reference = f"{kind[0]}-{kind[1]}"
    end(start(settings(folder, reference, options, kind)))
    through = time.monotonic() - began
    expected = outcome(folder / reference)
    assert not expected["leftovers"], expected
    done, early, runs, different = 0, 0, 0, 0
    while done < kills:
        config = settings(folder, f"{reference}-{runs}", options, kind)
        runs += 1
        while not end(start(config), draw.uniform(0, through / 4) if done < kills else None):
            done += 1
            early += not steps(config.out)
        if (found := outcome(config.out)) != expected:
            different += 1
            print(f"{config.out}: {found}, not {expected}", file=sys.stderr)
        else:
            shutil.rmtree(config.out)
    same = "yes" if not different else f"NO: {different} runs differ"
    print(
        f"| {kind[0]} | {kind[1]} | {done} | {early} | {runs} | {same} "
        f"| `{expected['model'][:16]}` | {through:.1f} s | {time.monotonic() - began:.0f} s |",
        flush=True,
    )
    return not different


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="of all rows together")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ema", type=float, default=0.0, help="train.ema_decay")
    parser.add_argument("--steps", type=int, default=400, help="train.max_steps")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="transduce-kill-"))
    write_text(folder)
    print(f"PyTorch {torch.__version__}, {os.cpu_count()} CPUs, {options}\n")
    print(
        "| precision | threads | kills | before the first checkpoint | runs | same bytes | model "
        "| one run | all |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    kinds = [(precision, threads) for precision in ("fp32", "bf16") for threads in options.threads]
    shares = [len(range(row, options.kills, len(kinds))) for row in range(len(kinds))]
    same = [compare(folder, options, *row) for row in zip(kinds, shares, strict=True) if row[1]]
    if not all(same):
        sys.exit(f"the runs that differ are in {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
