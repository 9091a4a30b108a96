"""What README and docs say is so: commands run, snippets run, settings and messages exist."""

import re
import shlex
import shutil
import subprocess
import warnings
from pathlib import Path

import pdoc
import pdoc.render
import pytest
import typer
from command import transduce
from corpora import SMALL, SMALL_OPTIONS, reversals

import transduce as package
from transduce.cli.app import app
from transduce.config import Settings, load
from transduce.decode.scorer import Scored
from transduce.model.config import PRESETS
from transduce.train.config import TrainConfig
from transduce.train.defaults import _SIZES as SIZES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]

NOT_RUN = {
    "transduce demo": "it takes two minutes; test_demo.py runs it",
    "transduce view run": "it runs until Ctrl-C; test_view.py runs it",
}
"""Documented commands that are only parsed, and why. `make ...` is not run either: this is it."""

TINY = [
    *SMALL_OPTIONS,
    *("--threads", "1", "--set", "train.max_steps=4", "--set", "train.warmup=2"),
    *("--set", "train.validate_every=1", "--set", "train.save_every=1"),
    *("--set", "train.average_last=4"),
]
"""What train and check are given besides: a model of a second, with four checkpoints."""
TUNED = [
    part
    for pair in zip(TINY[::2], TINY[1::2], strict=True)
    for part in pair
    if not pair[1].startswith(("model.", "tokenizer."))
]
"""The same where the model is there already."""

RENAMED = {"step-4370": "step-4", "step-4600": "step-4"}
"""What has another name in a run of four steps."""

SHELL = {"cp", "paste"}
"""Other programs in a block of commands; they are run as they stand."""


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


def commands(page: Path) -> list[str]:
    """The commands of a page: where a block has prompts, what stands behind them."""
    found = []
    for block in blocks(page, ""):
        lines = block.splitlines()
        asked = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        found += asked or [line for line in lines if line.split(" ")[0] in {"transduce", "make"}]
    return [re.sub(r"\s+#.*", "", line) for line in found]


EVERY = [line for page in PAGES for line in commands(page)]
TRANSDUCE = sorted({line for line in EVERY if line.startswith("transduce ")})
MAKE = sorted({line for line in EVERY if line.startswith("make ")})


def words_of(line: str) -> list[str]:
    return shlex.split(re.split(r"[<>|]", line)[0])[1:]


@pytest.mark.parametrize("line", TRANSDUCE)
def test_a_documented_command_parses(line: str):
    words = words_of(line)
    verbs = typer.main.get_command(app)
    with verbs.make_context("transduce", words) as context:
        name, verb, rest = verbs.resolve_command(context, words)
        assert name
        verb.make_context(name, rest, parent=context).close()


@pytest.mark.parametrize("line", MAKE)
def test_a_documented_target_exists(line: str):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in line.split()[1:]:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_every_verb_is_documented_by_a_command():
    verbs = typer.main.get_command(app).list_commands(None)
    assert {words_of(line)[0] for line in TRANSDUCE} == set(verbs)
    assert MAKE
    assert set(EVERY) >= NOT_RUN.keys()


def lines_of(path: Path, *parts: Path, first: int, last: int) -> None:
    """Make a file of some lines of others, side by side with a tab."""
    rows = zip(*(part.read_text().splitlines()[first:last] for part in parts), strict=True)
    path.write_text("".join("\t".join(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all the files and models that the pages name."""
    folder = tmp_path_factory.mktemp("docs")
    source, target = reversals(folder, pairs=160)
    for name, first, last in (("train", 0, 120), ("val", 120, 140), ("test", 140, 160)):
        lines_of(folder / f"{name}.en", source, first=first, last=last)
        lines_of(folder / f"{name}.de", target, first=first, last=last)
        lines_of(folder / f"{name}.tsv", source, target, first=first, last=last)
    for name in ("some.en", "text.en", "long.en"):
        shutil.copy(folder / "test.en", folder / name)
    for name in ("test.out", "greedy.out"):
        shutil.copy(folder / "test.de", folder / name)
    (recipe,) = blocks(DOCS / "settings.md", "toml")
    (folder / "recipe.toml").write_text(recipe, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        pairs = ["--source", "train.en", "--target", "train.de"]
        for seed, out in (("1", "run"), ("2", "run2"), ("3", "run3")):
            made = transduce("train", *pairs, "--out", out, "--seed", seed, *TINY)
            assert made.status == 0, made.errors
    for name in ("one-model", "another-model", "transduce-demo"):
        shutil.copytree(folder / "run" / "best", folder / name)
    return folder


def run(line: str) -> tuple[int, str]:
    """Run a documented line in this process, or give it to the shell."""
    if line.split()[0] in SHELL:
        done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr
    for long, short in RENAMED.items():
        line = line.replace(long, short)
    words = words_of(line)
    if words[0] in ("train", "check"):
        words += TUNED if "--start-from" in words else TINY
    files = dict(re.findall(r"([<>])\s*(\S+)", line))
    done = transduce(*words, text=Path(files["<"]).read_bytes() if "<" in files else b"")
    if ">" in files:
        Path(files[">"]).write_bytes(done.out)
    return done.status, done.errors


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_commands_run(
    page: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In the order in which they stand, in one folder; a training finds its --out unused."""
    folder = tmp_path / "folder"
    shutil.copytree(finished, folder, symlinks=True)
    monkeypatch.chdir(folder)
    done = []
    for line in commands(page):
        if line.startswith("make ") or line in NOT_RUN:
            continue
        out = re.search(r"--out (\S+)", line)
        if words_of(line)[:1] in (["train"], ["check"]) and line not in done:
            shutil.rmtree(folder / (out[1] if out else "transduce-run"), ignore_errors=True)
        status, errors = run(line)
        assert status == 0, f"{line}\n{errors}"
        done.append(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_python_runs(
    page: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source, target = reversals(tmp_path, pairs=60)
    if page.name in ("inside.md", "tracing.md"):  # they begin with a model
        shutil.copytree(finished / "run", tmp_path / "run", symlinks=True)
    source.rename(tmp_path / "train.en")
    target.rename(tmp_path / "train.de")
    monkeypatch.chdir(tmp_path)
    names = {"SMALL": SMALL}  # a block goes on where the one before it ended
    for code in blocks(page, "python"):
        small = code.replace('out=Path("run")', 'out=Path("run"), **SMALL')
        assert (small != code) == ("train(" in code)
        exec(small, names)


def names_of(kind: type[Settings], section: str) -> set[str]:
    return {f"{section}.{name}" for name in kind.model_fields}


def settings_table() -> dict[str, str]:
    """Of each setting in the table, its row."""
    text, told = (DOCS / "settings.md").read_text(encoding="utf-8"), {}
    for row in re.findall(r"^\| `[a-z]+\..*$", text, flags=re.MULTILINE):
        first, *others = re.findall(r"`([\w.]+)`", row.split("|")[1])
        section = first.split(".")[0]
        told |= dict.fromkeys([first, *(f"{section}.{name}" for name in others)], row)
    return told


def test_the_table_of_settings_is_complete():
    exist = set()
    for section in ("data", "tokenizer", "model", "train"):
        kind = TrainConfig.model_fields[section].annotation
        assert kind is not None
        exist |= names_of(kind, section)
    assert settings_table().keys() == exist


def test_the_table_of_settings_tells_the_defaults():
    config = TrainConfig(tsv=Path("text.tsv"))
    for name, row in settings_table().items():
        section, field = name.split(".")
        default = getattr(getattr(config, section), field)
        told = row.split("|")[2]
        if default is None or field == "preset":  # chosen, or the preset's
            continue
        values = default if isinstance(default, tuple) else (default,)
        assert set(map(plain_value, values)) <= set(re.findall(r"[^\s,`]+", told)), row


def plain_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else str(value)


def test_the_table_of_presets_is_complete_and_true():
    text = (DOCS / "settings.md").read_text(encoding="utf-8").split("## Presets")[1]
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `")]
    told = {}
    for row in rows:
        names = re.findall(r"`([^`]+)`", row[0])
        for place, name in enumerate(names):
            told[name] = [cell.split(",")[place].strip() if "," in cell else "" for cell in row[1:]]
            if len(names) == 1:
                told[name] = [cell.strip() for cell in row[1:]]
    assert told.keys() == PRESETS.keys()
    for name, cells in told.items():
        for field, cell in zip(("d_model", "d_ff", "heads", "encoder_layers"), cells, strict=False):
            if cell and name != "base":
                assert str(PRESETS[name].get(field, {"encoder_layers": 6}.get(field))) == cell


def test_the_table_of_chosen_sizes_is_true():
    text = (DOCS / "training.md").read_text(encoding="utf-8").split("## What is chosen")[1]
    lines = re.findall(r"^\| (?:[\d,]+|more) \| `.*", text, re.MULTILINE)
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines]
    sizes = [
        [f"{pairs:,}", preset, norm, f"{dropout:g}", f"{average:g}", str(passes)]
        for pairs, preset, norm, dropout, average, passes, _ in SIZES
    ]
    assert rows == [*sizes[:-1], ["more", *sizes[-1][1:]]]


def test_the_fields_and_options_of_a_translation_are_all_listed():
    text = (DOCS / "translating.md").read_text(encoding="utf-8").split("## JSON")[1]
    listed = re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)
    assert sorted(listed) == sorted(["line", *package.Translation._fields])
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    listed = re.findall(r"`(\w+)`", text.split("those of `SearchOptions`:")[1].split("Besides:")[0])
    assert sorted(listed) == sorted(package.SearchOptions.model_fields)
    text = (DOCS / "evaluating.md").read_text(encoding="utf-8")
    listed = re.findall(r"`(\w+)`", text.split("gives an object a line:")[1].split("\n- ")[0])
    assert sorted(listed) == sorted(["line", "log_prob", "perplexity", *Scored._fields])


def test_a_documented_recipe_is_understood(tmp_path: Path):
    recipes = [text for page in PAGES for text in blocks(page, "toml")]
    assert recipes
    for number, text in enumerate(recipes):
        path = tmp_path / f"{number}.toml"
        path.write_text(text, encoding="utf-8")
        assert load(TrainConfig, path).source == tmp_path / "train.en"


def source_text() -> str:
    """All of the package's text, with the strings that are written in pieces put together."""
    files = sorted(Path(package.__file__).parent.rglob("*.py"))
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    return re.sub(r'"\s*\n\s*f?"', "", text)


def messages() -> list[str]:
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    text = text[text.index("## Messages") :]
    return re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE)


@pytest.mark.parametrize("message", messages())
def test_a_documented_message_exists(message: str):
    """Names in capitals stand for what the program puts there, as {...} in its source."""
    parts = re.split(r"\b(?:FILE(?=[,:])|N|B|V|X|NAME)\b", message)
    pattern = r"[^\n\"]*?".join(re.escape(part) for part in parts)
    assert re.search(pattern, source_text()), message


def test_there_are_messages():
    assert len(messages()) >= 25


def test_every_kind_of_error_is_documented():
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    kinds = {kind.__name__ for kind in package.TransduceError.__subclasses__()}
    assert kinds == set(re.findall(r"^\| `(\w+Error)` \|", text, flags=re.MULTILINE))


def test_pages_link_to_what_exists():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for link, anchor in re.findall(r"\]\(([^)#:]+)(?:#([^)]+))?\)", text):
            there = page.parent / link
            assert there.exists(), (page, link)
            if anchor:
                heads = re.findall(r"^#+ (.*)", there.read_text(encoding="utf-8"), re.MULTILINE)
                slugs = [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads]
                assert anchor in slugs, (page, anchor)


def test_the_index_lists_every_page():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^- \[[^]]+\]\((\w+\.md)\): ", text, flags=re.MULTILINE))
    assert listed == {page.name for page in DOCS.glob("*.md")} - {"index.md"}


def test_no_page_names_a_folder_of_some_machine():
    for page in PAGES:
        found = re.findall(r"(?<![\w.])/(?:home|root|tmp|work|Users)\b", page.read_text())
        assert not found, (page, found)


def test_the_first_screen_of_the_readme_is_short():
    lines = PAGES[0].read_text(encoding="utf-8").splitlines()
    assert max(number for number, line in enumerate(lines, 1) if line.startswith("- ")) <= 40


def test_the_reference_of_public_names_is_made_without_a_warning(tmp_path: Path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (line,) = re.findall(r"\$\(BIN\)/pdoc (.*)", makefile)
    options, modules = line.split("-o site ")
    assert options.split() == ["--docformat", "google", "--math"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.render.configure(docformat="google", math=True)
        pdoc.pdoc(*shlex.split(modules), output_directory=tmp_path)
    page = (tmp_path / "transduce.html").read_text(encoding="utf-8")
    scores = (tmp_path / "transduce" / "evaluate.html").read_text(encoding="utf-8")
    for name in package.__all__:
        assert f'id="{name}"' in page
    for bad in ("Alias for field", "Initialize internal Module state"):
        assert bad not in page
        assert bad not in scores


def test_every_public_name_says_what_it_is():
    for name in package.__all__:
        thing = getattr(package, name)
        if name == "PRESETS":  # no object of its own to have a docstring; pdoc reads the source's
            continue
        assert thing.__doc__, name
        first = thing.__doc__.split("\n\n")[0]
        assert first.rstrip().endswith("."), name
        for part, member in vars(thing).items() if isinstance(thing, type) else ():
            if (
                not part.startswith("_")
                and callable(member)
                and member.__module__ == thing.__module__
            ):
                assert member.__doc__, f"{name}.{part}"
