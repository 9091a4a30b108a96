"""What README and docs say is so: commands parse, snippets run, settings exist."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from corpora import reversals

from transduce.cli.app import app
from transduce.config import Settings
from transduce.train.config import TrainConfig

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "using.md"]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page that are marked with a language (or with none)."""
    found, inside = [], False
    for line in page.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.startswith("```"):
            inside = not inside
            if inside:
                found.append((line[3:].strip(), []))
        elif inside:
            found[-1][1].append(line)
    return ["".join(lines) for kind, lines in found if kind == language]


def commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines]


TRANSDUCE = [line for line in commands() if line.startswith("transduce ")]
MAKE = [line for line in commands() if line.startswith("make ")]


@pytest.mark.parametrize("line", TRANSDUCE)
def test_a_documented_command_parses(line: str):
    words = shlex.split(re.split(r"[<>|]|\s#", line)[0])[1:]
    verbs = typer.main.get_command(app)
    with verbs.make_context("transduce", words) as context:
        name, verb, rest = verbs.resolve_command(context, words)
        assert name
        verb.make_context(name, rest, parent=context).close()


@pytest.mark.parametrize("line", MAKE)
def test_a_documented_target_exists(line: str):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in line.split("#")[0].split()[1:]:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_there_are_commands_to_test():
    assert len(TRANSDUCE) >= 5
    assert MAKE


def names(kind: type[Settings], section: str) -> set[str]:
    return {f"{section}.{name}" for name in kind.model_fields}


def test_the_table_of_settings_is_complete_and_true():
    exist = set()
    for section in ("data", "tokenizer", "model", "train"):
        kind = TrainConfig.model_fields[section].annotation
        exist |= names(kind, section)
    told = set()
    for row in re.findall(
        r"^\| (`.*?) \|", PAGES[2].read_text(encoding="utf-8"), flags=re.MULTILINE
    ):
        first, *others = re.findall(r"`([\w.]+)`", row)
        section = first.split(".")[0]
        told |= {first, *(f"{section}.{name}" for name in others)}
    assert told == exist


@pytest.mark.parametrize("page", PAGES)
def test_documented_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source, target = reversals(tmp_path, pairs=60)
    source.rename(tmp_path / "train.en")
    target.rename(tmp_path / "train.de")
    monkeypatch.chdir(tmp_path)
    for code in blocks(page, "python"):
        exec(code, {})


def test_a_documented_recipe_is_understood(tmp_path: Path):
    from transduce.config import load

    recipes = blocks(PAGES[2], "toml")
    assert recipes
    for number, text in enumerate(recipes):
        path = tmp_path / f"{number}.toml"
        path.write_text(text, encoding="utf-8")
        assert load(TrainConfig, path).source == tmp_path / "train.en"


def test_pages_link_to_what_exists():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), (page, link)
