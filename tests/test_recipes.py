"""Each recipe is complete: with text where it looks for it, `check` finds nothing wrong."""

import gzip
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from command import transduce
from corpora import SMALL_OPTIONS

from transduce.config import load
from transduce.model.config import PRESETS
from transduce.train.config import TrainConfig

RECIPES = Path(__file__).parents[1] / "recipes"
DATA = Path(__file__).parents[2] / "shared" / "data"
NAMES = sorted(path.stem for path in RECIPES.glob("*.toml"))
PAGE = (RECIPES / "README.md").read_text(encoding="utf-8")
SIDES = {"source": 0, "target": 1, "valid_source": 0, "valid_target": 1}


def stand_ins(recipe: Path, root: Path) -> None:
    """Write text where a recipe looks for it, enough for its vocabulary."""
    tree = tomllib.loads(recipe.read_text(encoding="utf-8"))
    pairs = [
        (f"a man {i} sees {i * 7} dogs", f"ein mann {i} sieht {i * 7} hunde") for i in range(90)
    ]
    for key, name in tree.items():
        if key in SIDES:
            text = "".join(f"{pair[SIDES[key]]}{' .' * ('valid' in key)}\n" for pair in pairs)
        elif key in ("tsv", "valid_tsv"):
            text = "".join(f"{one}{' .' * ('valid' in key)}\t{other}\n" for one, other in pairs)
        else:
            continue
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


@pytest.mark.parametrize("name", NAMES)
def test_check_finds_nothing_wrong(name: str, tmp_path: Path):
    recipe = RECIPES / f"{name}.toml"
    stand_ins(recipe, tmp_path)
    small = ("model.encoder_layers=1", "model.decoder_layers=1", "model.d_model=32")
    options = [word for change in small for word in ("--set", change)]
    options += ["--data-root", str(tmp_path), "--out", str(tmp_path / "run"), "--threads", "1"]
    found = transduce("check", str(recipe), *options)
    assert found.status == 0, found.errors
    # As it is, at its real size, it is at least read, and strictly.
    load(TrainConfig, recipe, (), values={}, root=tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason=f"needs the texts in {DATA}")
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("multi", "tatoeba"))])
def test_check_finds_nothing_wrong_with_the_real_text(name: str, tmp_path: Path):
    options = ("--data-root", DATA, "--out", tmp_path / "run", "--threads", "1")
    found = transduce("check", RECIPES / f"{name}.toml", *options)
    assert found.status == 0, found.errors
    assert "validation pairs read" in found.text


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_opens_with_its_command_and_stands_in_the_table(name: str):
    text = (RECIPES / f"{name}.toml").read_text(encoding="utf-8")
    command, *head = [line[2:] for line in text.splitlines() if line.startswith("#")]
    assert command.startswith(f"transduce train recipes/{name}.toml --data-root DATA")
    assert f"| `{name}` |" in PAGE
    head = " ".join(head)
    assert "NOT RUN" in head or "Time, hardware, scores: README.md" in head
    where_not = PAGE.index("## What was not run")
    assert ("NOT RUN" in head) == (PAGE.index(f"| `{name}` |") > where_not)


def test_the_rows_of_table_3_are_presets():
    rows = re.findall(r"^\| \([A-E]\)[^|]*\| `([^`]+)` \|", PAGE, flags=re.MULTILINE)
    of_the_paper = [name for name in PRESETS if name not in ("tiny", "small", "base", "big")]
    assert sorted(rows) == sorted(of_the_paper)


def test_the_recipes_of_the_paper_are_the_papers():
    root = Path()
    base, big, french, row = (
        load(TrainConfig, RECIPES / f"wmt14-{name}.toml", (), values={}, root=root)
        for name in ("en-de-base", "en-de-big", "en-fr-big", "en-de-table3")
    )
    for config, steps, last, subwords in (
        (base, 100_000, 5, 37_000),
        (big, 300_000, 20, 37_000),
        (french, 300_000, 20, 32_000),
        (row, 100_000, 1, 37_000),
    ):
        train = config.train
        assert (train.max_steps, train.average_last, config.tokenizer.vocab_size) == (
            steps, last, subwords,
        )  # fmt: skip
        assert train.batch_tokens * train.accumulate == 25_000
        assert (train.warmup, train.learning_rate_scale) == (4000, 1.0)
        assert (train.adam_betas, train.adam_epsilon) == ((0.9, 0.98), 1e-9)
        assert (train.label_smoothing, train.clip_norm) == (0.1, 0)
        assert train.ema_decay is None
    assert french.model.dropout == 0.1
    assert (base.model.preset, big.model.preset, big.model.dropout) == ("base", "big", None)


def test_scores_are_those_of_evaluate_and_ten_are_shown_by_the_rule(tmp_path: Path):
    recipe, run = RECIPES / "multi30k-en-de-tiny.toml", tmp_path / "run"
    text = tmp_path / "multi30k" / "lc.norm.tok"
    text.mkdir(parents=True)
    for stem in ("train", "val", "test_2016_flickr"):
        for language, line in (("en", f"a man {stem}"), ("de", "ein mann sieht viele hunde .")):
            lines = "".join(f"{line}{' so' * (i % 7)}\n" for i in range(90)).encode()
            (text / f"{stem}.lc.norm.tok.{language}.gz").write_bytes(gzip.compress(lines))
    options = [*SMALL_OPTIONS, "--set", "train.accumulate=1", "--threads", "1"]
    options += ["--set", "train.max_steps=100", "--set", "train.validate_every=50"]
    done = transduce("train", recipe, "--data-root", tmp_path, "--out", run, *options)
    assert done.status == 0, done.errors
    call = [sys.executable, RECIPES / "score.py", run, run, "--data-root", tmp_path, "--ten"]
    answer = subprocess.run(call, check=True, capture_output=True, text=True).stdout
    search = ("--tokenize", "none", "--beam", "2", "--alpha", "1", "--json")
    # The search is the run's own: a beam of 2 by SMALL_OPTIONS, an alpha of 1 by the recipe.
    files = [text / f"val.lc.norm.tok.{language}.gz" for language in ("en", "de")]
    found = transduce("evaluate", run, "--source", files[0], "--reference", files[1], *search)
    bleu = json.loads(found.text)["systems"][0]["scores"]["BLEU"]["value"]
    rows = [line for line in answer.splitlines() if line.startswith("| run | 1 |")]
    assert len(rows) == 2
    assert bleu > 1
    assert rows[0].split(" | ")[3] == f"{bleu:.2f}"
    assert f"| mean | | | {bleu:.2f} ± 0.00 |" in answer
    shown = [int(chrf) for chrf in re.findall("^chrF (.*)$", answer, flags=re.MULTILINE)]
    assert len(shown) == 10
    assert shown == sorted(shown)
