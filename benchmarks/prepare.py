"""How fast millions of pairs are prepared, in how much memory; the yardstick is SentencePiece.

    python benchmarks/prepare.py ../shared/data/tatoeba.en-fr/train.tsv.gz --pairs 10 --work /tmp/b

makes 10 million pairs of the pairs of a TSV file (a number is added each time round, so that they
differ), prepares them in a process of their own, and tells: rates, by wall clock and by the seconds
of CPU of all processes together; the memory of all processes together at its peak (proportional set
size, from /proc); and the rate at which SentencePiece alone encodes the same text with the same
model, on one core, in the same run. Numbers of a machine with other work are good for ratios only.
"""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

YARDSTICK = 500_000  # pairs that SentencePiece alone encodes


def make(source: Path, text: Path, pairs: int) -> None:
    """Write so many pairs that differ."""
    with gzip.open(source, "rt") if source.suffix == ".gz" else source.open() as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    with text.with_suffix(".part").open("w") as file:
        for number in range(pairs):
            round_, row = divmod(number, len(rows))
            end = f" {round_}" if round_ else ""
            file.write("\t".join(f"{side}{end}" for side in rows[row]) + "\n")
    text.with_suffix(".part").rename(text)


def prepare(text: Path, folder: Path, threads: int) -> None:
    """Prepare a text; each stage's name, seconds and seconds of CPU go to standard output."""
    import torch
    from rich.console import Console

    from transduce import TrainConfig
    from transduce.train import prepare as module

    class Timed(module.Stage):
        def __enter__(self) -> "Timed":
            self.began = (time.perf_counter(), sum(os.times()[:4]))
            return super().__enter__()

        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            now = (time.perf_counter(), sum(os.times()[:4]))
            wall, cpu = (end - start for start, end in zip(self.began, now, strict=True))
            print(json.dumps([self._name, wall, cpu]), flush=True)

    module.Stage = Timed
    torch.set_num_threads(threads)
    data = module.prepare(TrainConfig(tsv=text), folder, {}, Console(stderr=True))
    print(json.dumps(["all", len(data.train), sum(os.times()[:4])]), flush=True)


def memory(process: int) -> tuple[int, int]:
    """Bytes that a process and all under it hold together, and how many processes they are."""
    parents, total, count = {}, 0, 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    for each in parents:
        ancestor = each
        while ancestor not in (process, 0, None):
            ancestor = parents.get(ancestor)
        if ancestor == process:
            try:
                lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            count += 1
    return total, count


def yardstick(text: Path, model: Path) -> float:
    """Pairs a minute that SentencePiece alone encodes on one core."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    seconds, pairs = 0.0, 0
    with text.open() as file:
        while pairs < YARDSTICK and (rows := [*islice(file, 4000)]):
            sides = [side for row in rows for side in row.rstrip("\n").split("\t")]
            began = time.process_time()
            processor.encode(sides, num_threads=1)
            seconds += time.process_time() - began
            pairs += len(rows)
    return pairs / seconds * 60


def main() -> None:
    """Make the text, prepare it, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tsv", type=Path, help="pairs to repeat: source TAB target, .gz or not")
    parser.add_argument("--pairs", type=float, default=1.0, help="millions [1]")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="[all cores]")
    parser.add_argument("--work", type=Path, required=True, help="folder for text and result")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    pairs = round(given.pairs * 1e6)
    text, folder = given.work / f"{pairs}.tsv", given.work / "data"
    if given.child:
        prepare(text, folder, given.threads)
        return
    given.work.mkdir(parents=True, exist_ok=True)
    if not text.exists():
        make(given.tsv, text, pairs)
    shutil.rmtree(folder, ignore_errors=True)
    began, peak, peak_at = time.perf_counter(), (0, 0), 0.0
    child = subprocess.Popen([sys.executable, *sys.argv, "--child"], stdout=subprocess.PIPE)
    while child.poll() is None:
        if (now := memory(child.pid)) > peak:
            peak, peak_at = now, time.perf_counter() - began
        time.sleep(0.2)
    wall = time.perf_counter() - began
    if child.returncode:
        sys.exit(child.returncode)
    *stages, (_, kept, cpu) = [json.loads(line) for line in child.stdout]
    alone = yardstick(text, folder / "tokenizer.model")
    rate = pairs / cpu * 60
    print(f"{pairs:,} pairs, {text.stat().st_size / 1e6:,.0f} MB of text, {kept:,} to learn from")
    for name, seconds, used in stages:
        print(
            f"  {name:20}{seconds:8.1f} s {used:8.1f} s of CPU {pairs / used * 60:14,.0f} pairs/min"
        )
    print(f"  {'all':20}{wall:8.1f} s {cpu:8.1f} s of CPU {rate:14,.0f} pairs/min a core")
    print(f"  by the wall clock, {given.threads} threads: {pairs / wall * 60:,.0f} pairs/min")
    print(f"  memory at most {peak[0] / 1e9:.2f} GB in {peak[1]} processes, after {peak_at:.0f} s")
    print(f"  SentencePiece alone encodes {alone:,.0f} pairs/min a core: {alone / rate:.2f} times")


if __name__ == "__main__":
    main()
