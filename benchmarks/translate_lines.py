"""How many lines a second `transduce translate` makes of generated text, and in how much memory.

    python benchmarks/translate_lines.py MODEL [--lines 20000] [--beam 1] [--threads 1] [--repeat 3]

The text is that of `transduce demo`, which suits its model; any other model translates it too, if
badly. Each run is a process of its own. Start-up (Python, PyTorch, the model) is what one line
takes, and is left out of the rates. CPU seconds are told too: they are steadier than the clock on a
machine that is shared. Memory is the process's peak (VmHWM of /proc, Linux), told for
a tenth of the lines too: it should not grow with them.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from transduce.demo.grammar import corpus


class Run(NamedTuple):
    """One process."""

    seconds: float
    cpu_seconds: float
    peak_mb: float


def main() -> None:
    """Measure, and print a line a run and a summary of the best as JSON."""
    parser = argparse.ArgumentParser(description="Lines a second of transduce translate.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    options = [f"--beam={given.beam}", f"--threads={given.threads}"]
    if given.batch_tokens:
        options.append(f"--batch-tokens={given.batch_tokens}")
    drawn = corpus(2026, train=given.lines, valid=0, test=0).train
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = {}
        for count in (1, max(1, given.lines // 10), given.lines):
            texts[count] = folder / str(count)
            text = "".join(sentence.source + "\n" for sentence in drawn[:count])
            texts[count].write_text(text, encoding="utf-8")
        runs: dict[int, list[Run]] = {count: [] for count in texts}
        for _ in range(given.repeat):  # interleaved: a busy moment hits all of them
            for count, text in texts.items():
                runs[count].append(translate(given.model, text, folder / "out", options))
        tokens = count_tokens(given.model, texts[given.lines], folder / "out", options)
    start = min(run.seconds for run in runs[1])
    cpu_start = min(run.cpu_seconds for run in runs[1])
    for run in runs[given.lines]:
        print(f"{given.lines / (run.seconds - start):,.0f} lines/s, {run.peak_mb:,.0f} MB")
    best = min(run.seconds for run in runs[given.lines]) - start
    cpu = min(run.cpu_seconds for run in runs[given.lines]) - cpu_start
    summary = {
        "lines": given.lines,
        "lines_per_second": round(given.lines / best, 1),
        "lines_per_cpu_second": round(given.lines / cpu, 1),
        "target_tokens_per_second": round(tokens / best, 1),
        "start_up_seconds": round(start, 2),
        "peak_mb": {count: round(max(run.peak_mb for run in all_)) for count, all_ in runs.items()},
        "options": options,
    }
    print(json.dumps(summary))


def translate(model: Path, text: Path, out: Path, options: list[str]) -> Run:
    """Translate in a process; follow its peak memory until it ends."""
    command = [sys.executable, "-m", "transduce", "-q", "translate", str(model), str(text)]
    began, used = time.monotonic(), children()
    process = subprocess.Popen([*command, f"--output={out}", *options])
    status, peak = Path(f"/proc/{process.pid}/status"), 0.0
    while process.poll() is None:
        for line in status.read_text().splitlines() if status.exists() else ():
            if line.startswith("VmHWM:"):
                peak = int(line.split()[1]) / 1024
        time.sleep(0.05)
    seconds = time.monotonic() - began
    if process.returncode:
        sys.exit(process.returncode)
    return Run(seconds, children() - used, peak)


def children() -> float:
    """CPU seconds of all processes that have ended here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def count_tokens(model: Path, text: Path, out: Path, options: list[str]) -> int:
    """Count the target's pieces, ends included; in a run of its own, since JSON costs time."""
    translate(model, text, out, [*options, "--format=jsonl"])
    with out.open(encoding="utf-8") as records:
        return sum(len(json.loads(record)["token_log_probs"]) for record in records)


if __name__ == "__main__":
    main()
