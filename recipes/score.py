"""Scores finished runs on Multi30k's validation and test set, as README.md's table has it.

    python recipes/score.py RUN [RUN ...] --data-root DATA [--ten]

Of several runs, the seeds of one recipe, mean and standard deviation are printed besides. With
--ten it shows ten translations of the first run's test set, good and bad, by a rule: of all
sentences, sorted by their chrF, those at ranks 50, 150, ... 950.
"""

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from sacrebleu.metrics import CHRF
from safetensors import safe_open

SETS = {"validation": "val", "test_2016": "test_2016_flickr"}


def main() -> None:
    """Translate, score, and print Markdown."""
    parser = argparse.ArgumentParser(description="Scores of runs on Multi30k.")
    parser.add_argument("run", type=Path, nargs="+")
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--ten", action="store_true")
    given = parser.parse_args()
    text = given.data_root / "multi30k" / "lc.norm.tok"
    bleu: dict[str, list[float]] = {name: [] for name in SETS}
    print("| run | seed | parameters | validation | test_2016 |\n|---|---|---|---|---|")
    for number, run in enumerate(given.run):
        record = json.loads((run / "config.json").read_text())
        about = json.loads((run / "best" / "config.json").read_text())
        for name, stem in SETS.items():
            language = about["target_language"]
            source, reference = (text / f"{stem}.lc.norm.tok.{x}.gz" for x in ("en", language))
            with tempfile.TemporaryDirectory() as folder:
                output = Path(folder) / "output"
                bleu[name].append(score(run, source, reference, output, record["chosen"]))
                translations = output.read_text(encoding="utf-8").splitlines()
        seed = record["settings"]["seed"]
        found = " | ".join(f"{bleu[name][-1]:.2f}" for name in SETS)
        print(f"| {run.name} | {seed} | {parameters(run):,} | {found} |", flush=True)
        if given.ten and number == 0:
            show(ten(lines(source), translations, lines(reference)))
    if len(given.run) > 1:
        spread = [f"{statistics.mean(b):.2f} ± {statistics.stdev(b):.2f}" for b in bleu.values()]
        print(f"| mean | | | {' | '.join(spread)} |")


def score(run: Path, source: Path, reference: Path, output: Path, chosen: dict) -> float:
    """BLEU of a run's translations by its own search, as `evaluate` counts tokenised text."""
    call = [sys.executable, "-m", "transduce", "evaluate", str(run), "--json"]
    call += ["--source", str(source), "--reference", str(reference), "--output", str(output)]
    call += ["--tokenize", "none", "--beam", str(chosen["beam"]), "--alpha", str(chosen["alpha"])]
    answer = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(answer)["systems"][0]["scores"]["BLEU"]["value"]


def parameters(run: Path) -> int:
    """How many numbers a run has learnt."""
    with safe_open(run / "best" / "model.safetensors", "np") as file:
        return sum(file.get_tensor(name).size for name in file.keys())  # noqa: SIM118


def lines(path: Path) -> list[str]:
    """The lines of a gzipped text."""
    return gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")[:-1]


def ten(sources: list[str], found: list[str], references: list[str]) -> list[tuple[str, ...]]:
    """Ten of a thousand sentences, from bad to good, in the middle of each tenth by chrF."""
    chrf = CHRF()
    rated = sorted(
        (chrf.sentence_score(one, [other]).score, source, one, other)
        for source, one, other in zip(sources, found, references, strict=True)
    )
    return [
        (f"{score:.0f}", *texts)
        for score, *texts in rated[len(rated) // 20 :: max(1, len(rated) // 10)]
    ]


def show(rows: list[tuple[str, ...]]) -> None:
    """Print translations beside their references."""
    for chrf, source, translation, reference in rows:
        print(f"\nchrF {chrf}\n  source      {source}")
        print(f"  translation {translation}\n  reference   {reference}")


if __name__ == "__main__":
    main()
