"""Does it learn as well: bfloat16 against float32, fast paths against plain ones, some seeds each.

    python benchmarks/precision.py --source S --target T --valid-source S --valid-target T --work W
        [--steps 1000] [--seeds 3] [--processes 2] [--threads 1]

Trains the settings that `transduce train` chooses for the text, but so many steps, and tells the
validation loss and BLEU of the last. `plain` is float32 with no fast path: every product by
PyTorch's default library, its own dropout, all logits at once, and memory given back.
"""

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MODES = ("plain", "fp32", "bf16")


def main() -> None:
    """Train all that are not there yet, and print a table of Markdown."""
    parser = argparse.ArgumentParser(description="The same learning, whatever computes it.")
    for name in ("source", "target", "valid-source", "valid-target", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        mode, seed = given.one
        one(given, mode, int(seed))
        return
    runs = [(mode, seed) for mode in reversed(MODES) for seed in seeds(mode, given.seeds)]
    with ThreadPoolExecutor(given.processes) as pool:
        for done in pool.map(process, runs):
            done.check_returncode()
    table(given.work, given.seeds)


def seeds(mode: str, count: int) -> range:
    """The plain paths take long, and have one seed: it is their curve that is compared."""
    return range(1, 2 if mode == "plain" else count + 1)


def process(run: tuple[str, int]) -> subprocess.CompletedProcess[bytes]:
    """Train one in a process of its own."""
    return subprocess.run([sys.executable, *sys.argv, "--one", *map(str, run)], check=False)


def one(given: argparse.Namespace, mode: str, seed: int) -> None:
    """Train one; a run that is there already is gone on with."""
    from transduce import TrainConfig, train
    from transduce.config import validate

    if mode == "plain":
        only_plain_paths()
    every = given.steps // 4
    tree = {
        "source": str(given.source),
        "target": str(given.target),
        "valid_source": str(given.valid_source),
        "valid_target": str(given.valid_target),
        "out": str(given.work / f"{mode}-{seed}"),
        "seed": seed,
        "threads": given.threads,
        "precision": "bf16" if mode == "bf16" else "fp32",
        "train": {"max_steps": given.steps, "validate_every": every, "save_every": every},
    }
    train(validate(TrainConfig, tree))


def only_plain_paths() -> None:
    """Put what is written plainly in the place of all that is fast."""
    from contextlib import nullcontext

    from techniques import plain_dropout, plain_products

    from transduce.model import transformer
    from transduce.model.loss import smoothed_loss
    from transduce.train import loop, start

    plain_products()
    plain_dropout()
    transformer.fused_attention_pays = lambda q, k: False
    loop.projected_loss = lambda states, output, labels, smoothing: smoothed_loss(
        states @ output.T, labels, smoothing
    )
    loop.kept_memory = start.kept_memory = nullcontext


def table(work: Path, count: int) -> None:
    """Print each mode's losses, their mean and spread."""
    print("| | validation loss of each seed | mean | BLEU |\n|---|---|---|---|")
    for mode in MODES:
        losses, scores = [], []
        for seed in seeds(mode, count):
            lines = (work / f"{mode}-{seed}" / "metrics.jsonl").read_text(encoding="utf-8")
            last = [
                each for line in lines.splitlines() if "valid_bleu" in (each := json.loads(line))
            ][-1]
            losses.append(last["valid_loss"])
            scores.append(last["valid_bleu"])
        each = ", ".join(f"{loss:.4f}" for loss in losses)
        bleu = ", ".join(f"{score:.2f}" for score in scores)
        print(f"| {mode} | {each} | {statistics.mean(losses):.4f} | {bleu} |")


if __name__ == "__main__":
    main()
