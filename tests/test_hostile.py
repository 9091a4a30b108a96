"""Models and runs of strangers: one line of error, nothing run, read or written outside of them."""

import hashlib
import json
import os
import pickle
import re
import resource
import shutil
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import SMALL, reversals, stop_after
from hypothesis import given, strategies
from safetensors.torch import load_file, save_file

from transduce import bundle, train
from transduce.bundle import Bundle
from transduce.cli.models import describe
from transduce.config import validate
from transduce.errors import BundleError, RunError, TransduceError
from transduce.evaluate import Score
from transduce.files import (
    last_json_line,
    printable,
    read_json,
    read_json_lines,
    read_plain,
    whole_file,
    whole_folder,
)
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import TokenizerConfig, train_tokenizer
from transduce.train import checkpoint
from transduce.train.config import TrainConfig
from transduce.train.loop import Result

SECRET = "the user's own words\n"
ABOUT = {"source_language": "en", "target_language": "nl", "licence": ""}


class Trap:
    """A pickle that makes a folder when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory."""
    folder = tmp_path_factory.mktemp("sound")
    one = train_tokenizer(["a small cat sees the old dog"], TokenizerConfig(), vocab_size=280)
    sizes = {"d_model": 8, "heads": 2, "d_ff": 16, "encoder_layers": 1, "decoder_layers": 1}
    words = {"source_vocab_size": one.size, "target_vocab_size": one.size, "max_length": 16}
    torch.manual_seed(0)
    model = Transformer(validate(TransformerConfig, sizes | words))
    bundle.save(folder, Bundle(model, one, one, ABOUT), "# A model\n")
    return folder


@pytest.fixture
def model(sound: Path, tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(SECRET)
    return Path(shutil.copytree(sound, tmp_path / "model"))


# attacks on a model directory: each takes the folder and spoils one file


def weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]):
    def attack(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
        save_file(change(tensors), path)

    return attack


def header(change: Callable[[dict], object]):
    """Rewrite the header of model.safetensors; the numbers stay as they are."""

    def attack(folder: Path) -> None:
        path = folder / "model.safetensors"
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        tree = json.loads(data[8 : 8 + size])
        changed = change(tree)
        text = changed if isinstance(changed, str) else json.dumps(tree)
        raw = text.encode()
        path.write_bytes(struct.pack("<Q", len(raw)) + raw + data[8 + size :])

    return attack


def first(tree: dict) -> dict:
    return tree[min(name for name in tree if name != "__metadata__")]


def raw(name: str, data: bytes, size: int = 0):
    def attack(folder: Path) -> None:
        (folder / name).write_bytes(data)
        if size:
            os.truncate(folder / name, size)

    return attack


def setting(**changes: object):
    def attack(folder: Path) -> None:
        path = folder / "config.json"
        tree = json.loads(path.read_text())
        tree["architecture"] |= changes
        path.write_text(json.dumps(tree))

    return attack


def sparse(name: str, size: int):
    def attack(folder: Path) -> None:
        with (folder / name).open("r+b") as file:
            file.truncate(size)

    return attack


def link(name: str, target: str):
    def attack(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return attack


def special(name: str, make: Callable[[Path], object]):
    def attack(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return attack


def disguised(name: str):
    def attack(folder: Path) -> None:
        torch.save({"weights": Trap(folder.parent / "sprung")}, folder / name)

    return attack


def duplicate_name(tree: dict) -> str:
    name, entry = min(tree), first(tree) | {"data_offsets": [0, 4], "shape": [1]}
    return f'{json.dumps(tree)[:-1]}, "{name}": {json.dumps(entry)}}}'


def same_offsets(tree: dict) -> None:
    a, b, *_ = (tree[n] for n in sorted(tree) if n != "__metadata__" and "bias" in n)
    b["data_offsets"] = a["data_offsets"]


FILES = ("config.json", "model.safetensors", "tokenizer.model")
HUGE = {"d_model": 2**16, "heads": 2, "d_ff": 2**20, "encoder_layers": 9, "max_length": 2**17}
ATTACKS: dict[str, Callable[[Path], object]] = {
    "header beyond the file": raw("model.safetensors", struct.pack("<Q", 10**6) + b"{}"),
    "header of gigabytes": raw("model.safetensors", struct.pack("<Q", 2**62) + b"{}"),
    "header of 128 MB": raw("model.safetensors", struct.pack("<Q", 1 << 27), size=1 << 28),
    "header a million deep": header(lambda tree: '{"a":' + "[" * 10**6),
    "header no object": header(lambda tree: "[1, 2]"),
    "entry no object": header(lambda tree: tree.update(x=3)),
    "duplicate name": header(duplicate_name),
    "offsets overlap": header(same_offsets),
    "offsets outside": header(lambda tree: first(tree).update(data_offsets=[0, 10**12])),
    "offsets backwards": header(lambda tree: first(tree).update(data_offsets=[80, 0])),
    "shape negative": header(lambda tree: first(tree).update(shape=[-8])),
    "shape of floats": header(lambda tree: first(tree).update(shape=[8.0])),
    "shape endless": header(lambda tree: first(tree).update(shape=[10**40])),
    "dtype unknown": header(lambda tree: first(tree).update(dtype="F3")),
    "dtype no text": header(lambda tree: first(tree).update(dtype=[["F32"]])),
    "int64": weights(lambda t: {n: x.long() for n, x in t.items()}),
    "float64": weights(lambda t: {n: x.double() for n, x in t.items()}),
    "bfloat16": weights(lambda t: {n: x.bfloat16() for n, x in t.items()}),
    "one of int32": weights(lambda t: t | {min(t): t[min(t)].int()}),
    "zero size": weights(lambda t: t | {min(t): torch.zeros(0)}),
    "no tensors": weights(lambda t: {}),
    "nan": weights(lambda t: t | {min(t): t[min(t)] * float("nan")}),
    "infinite": weights(lambda t: t | {min(t): t[min(t)] + float("inf")}),
    "weights of 10 TB": sparse("model.safetensors", 10**13),
    "config of 5 GB": sparse("config.json", 5 * 10**9),
    "tokenizer of 5 GB": sparse("tokenizer.model", 5 * 10**9),
    "config a million deep": raw("config.json", b'{"a":' * 10**5 + b"1"),
    "config lists deep": raw("config.json", b'{"format": 1, "a": ' + b"[" * 40 + b"]" * 40 + b"}"),
    "config a list": raw("config.json", b"[]"),
    "config UTF-16": raw("config.json", '{"format": 1}'.encode("utf-16")),
    "config names twice": raw("config.json", b'{"format": 1, "format": 1, "architecture": {}}'),
    "config digits": raw("config.json", b'{"format": ' + b"9" * 10**5 + b"}"),
    "config format true": raw("config.json", b'{"format": true, "architecture": {}}'),
    "config default sizes": raw("config.json", b'{"format": 1, "architecture": {}}'),
    "licence a list": raw("config.json", b'{"format": 1, "licence": [], "architecture": {}}'),
    "architecture text": setting(d_model="8"),
    "architecture true": setting(encoder_layers=True),
    "architecture nan": setting(dropout=float("nan")),
    "architecture null": setting(d_ff=None),
    "architecture list": setting(heads=[2]),
    "architecture object": setting(norm={"post": 1}),
    "architecture endless": setting(position_offset=10**400),
    "architecture 10^12 floats": setting(**HUGE),
    "architecture vocabulary": setting(source_vocab_size=10**30, target_vocab_size=10**30),
    "architecture unknown": setting(**{"\x1b[31m\n": 1}),
    "positions of 100 GB": setting(max_length=2**17, d_model=2**16, d_k=1, d_v=1),
    "tokenizer text": raw("tokenizer.model", b"a b c\n" * 100),
    "tokenizer no UTF-8": lambda folder: (folder / "tokenizer.model").write_bytes(
        (folder / "tokenizer.model").read_bytes().replace("▁".encode(), b"\x81\x96\xe2")
    ),
    **{f"{name} empty": raw(name, b"") for name in FILES},
    **{f"{name} gone": (lambda n: lambda folder: (folder / n).unlink())(name) for name in FILES},
    **{f"{name} a torch file": disguised(name) for name in FILES},
    **{f"{name} a pickle": raw(name, pickle.dumps(Trap(Path("sprung")))) for name in FILES},
    **{f"{name} a link out": link(name, "../secret") for name in FILES},
    **{f"{name} a link to /etc": link(name, "/etc/passwd") for name in FILES},
    **{f"{name} a link to a device": link(name, "/dev/zero") for name in FILES},
    **{f"{name} a link to itself": link(name, name) for name in FILES},
    **{f"{name} a pipe": special(name, os.mkfifo) for name in FILES},
    **{f"{name} a folder": special(name, Path.mkdir) for name in FILES},
}

READERS: dict[str, Callable[[Path], object]] = {
    "load": lambda folder: bundle.load(folder),
    "info": lambda folder: describe(folder),
    "average": lambda folder: bundle.average([folder, folder]),
}

# What `info` and `average` need not see: they do not look at the numbers, or put them in a model.
UNSEEN = {("info", "nan"), ("info", "infinite"), ("average", "nan"), ("average", "infinite")}


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Whoever allocates gigabytes fails, and does not harm the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.timeout(20)
def test_a_model_of_a_stranger_is_refused_in_a_line(
    model: Path, attack: str, reader: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(model.parent)
    if (reader, attack) in UNSEEN:
        return
    ATTACKS[attack](model)
    with pytest.raises(TransduceError) as error:
        READERS[reader](model)
    text = printable(str(error.value))
    assert len(text) < 600
    assert "\n" not in str(error.value) or "\\x0a" in text
    assert SECRET.strip() not in text
    assert "root:" not in text
    assert not (model.parent / "sprung").exists()
    assert (model.parent / "secret").read_text() == SECRET


@pytest.mark.parametrize("name", FILES)
def test_a_link_out_is_refused_even_to_what_would_fit(model: Path, name: str):
    (model / name).rename(model.parent / "theirs")
    (model / name).symlink_to("../theirs")
    for reader in READERS.values():
        with pytest.raises(TransduceError, match="a link that leads out of its folder"):
            reader(model)


def test_what_lies_in_its_folder_by_a_link_is_read(model: Path):
    (model / "real").mkdir()
    (model / "model.safetensors").rename(model / "real" / "weights")
    (model / "model.safetensors").symlink_to("real/weights")
    (model.parent / "mine").symlink_to(model)
    expected = bundle.load(model).model.state_dict()
    found = bundle.load(model.parent / "mine").model.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def spoil(data: bytes, cut: int, flips: list[tuple[int, int]]) -> bytes:
    spoilt = bytearray(data[: len(data) - cut % (len(data) + 1)] if cut else data)
    for place, value in flips:
        if spoilt:
            spoilt[place % len(spoilt)] = value
    return bytes(spoilt)


damage = strategies.tuples(
    strategies.just(0) | strategies.integers(0, 2**20),
    strategies.lists(
        strategies.tuples(
            strategies.integers(0, 300) | strategies.integers(0, 2**20), strategies.integers(0, 255)
        ),
        max_size=4,
    ),
)


@pytest.mark.parametrize("name", [*FILES, "model_card.md"])
def test_any_damage_is_an_error_of_ours_or_a_model(
    sound: Path, tmp_path_factory: pytest.TempPathFactory, name: str
):
    folder = tmp_path_factory.mktemp("fuzz")
    shutil.copytree(sound, folder, dirs_exist_ok=True)
    whole = (sound / name).read_bytes()

    @given(damage)
    def holds(how: tuple[int, list[tuple[int, int]]]) -> None:
        (folder / name).write_bytes(spoil(whole, *how))
        for reader in READERS.values():
            try:
                found = reader(folder)
            except TransduceError:
                continue
            if isinstance(found, Bundle):
                assert all(p.isfinite().all() for p in found.model.parameters())
                found.target_tokenizer.decode(found.source_tokenizer.encode("a cat é"))

    holds()


# runs


def settings(folder: Path) -> TrainConfig:
    text = {"source": str(folder / "text.src"), "target": str(folder / "text.tgt")}
    return validate(TrainConfig, SMALL | text | {"out": str(folder / "run")})


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a run that was stopped at step 10 of 20."""
    folder = tmp_path_factory.mktemp("runs")
    reversals(folder)
    stop_after(10, settings(folder))
    return folder


@pytest.fixture
def home(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it, beside a folder of the user's."""
    shutil.copytree(stopped, tmp_path, symlinks=True, dirs_exist_ok=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "secret").write_text(SECRET)
    (tmp_path / "mine" / "empty").touch()
    (tmp_path / "mine" / ".step-5.part").mkdir()
    return tmp_path


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def moved(name: str):
    """Put a link in the place of something of the run, which is moved to the user's folder."""

    def attack(run: Path) -> None:
        (run / name).rename(run.parent / "mine" / Path(name).name)
        (run / name).symlink_to(run.parent / "mine" / Path(name).name)

    return attack


def planted(name: str, target: str):
    def attack(run: Path) -> None:
        path = run / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        path.symlink_to(target)

    return attack


def moment(change: Callable[[dict[str, torch.Tensor]], object]):
    def attack(run: Path) -> None:
        path = run / "checkpoints" / "step-10" / "training.safetensors"
        tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
        change(tensors)
        save_file(tensors, path)

    return attack


def object_array(run: Path) -> None:
    np.save(run / "data" / "train" / "lengths.npy", np.array([Trap(run.parent / "sprung")], object))


def ids_beyond(run: Path) -> None:
    path = run / "data" / "train" / "ids.bin"
    path.write_bytes(b"\xff" * path.stat().st_size)


def valid(*references: object):
    line = json.dumps({"source": "a b", "references": references})
    return raw("data/valid.jsonl", f"{line}\n".encode())


def record(name: str, **changes: object):
    def attack(run: Path) -> None:
        tree = json.loads((run / name).read_text())
        (run / name).write_text(json.dumps(tree | changes))

    return attack


def chosen(**changes: object):
    def attack(run: Path) -> None:
        tree = json.loads((run / "config.json").read_text())
        tree["chosen"] |= changes
        (run / "config.json").write_text(json.dumps(tree))

    return attack


NEWEST = "checkpoints/step-10"
DATA = ("data/report.json", "data/valid.jsonl", "data/tokenizer.model", "data/train/store.json")
DATA = (*DATA, "data/train/lengths.npy", "data/train/ids.bin")
SUMS = f"{NEWEST}/SHA256SUMS"
SUMMED = tuple(f"{NEWEST}/{n}" for n in (*FILES, "training.safetensors", "training.json"))
STATE = (*SUMMED, SUMS)
OWN = ("lock", "config.json", "metrics.jsonl")
REFUSED: dict[str, Callable[[Path], object]] = {
    **{f"{name} moved out": moved(name) for name in (*OWN, "data", "checkpoints", NEWEST)},
    **{f"{name} moved out": moved(name) for name in (*DATA, *STATE)},
    **{f"{name} a device": planted(name, "/dev/zero") for name in (*OWN, *DATA, *STATE)},
    **{f"{name} a pipe": special(name, os.mkfifo) for name in (*OWN, *DATA, *STATE)},
    **{f"{name} a folder": special(name, Path.mkdir) for name in (*OWN, *DATA, *STATE)},
    **{f"{name} a torch file": disguised(name) for name in (*OWN[:2], *DATA, *STATE)},
    "lock to an empty file": planted("lock", "../mine/empty"),
    "lock to nothing": planted("lock", "../mine/new"),
    "config.json to nothing": planted("config.json", "../mine/new"),
    "metrics.jsonl to nothing": planted("metrics.jsonl", "../mine/new"),
    "a checkpoint that is a link": planted("checkpoints/step-3", "../../mine"),
    "lengths of objects": object_array,
    "ids beyond the vocabulary": ids_beyond,
    "a reference that is no text": valid(["a"], 3),
    "no references": valid(),
    "valid.jsonl deep": raw("data/valid.jsonl", b"[" * 10**5),
    "report lines no text": record("data/report.json", lines=[3]),
    "report files no files": record("data/report.json", files={"source": {"name": 3}}),
    "files no files": record("config.json", files={"source": 3}),
    "settings no settings": record("config.json", settings=[]),
    **{
        f"{name} that nobody may choose": chosen(**{name: value})
        for name, value in {"validate_every": 0, "batch_tokens": 0, "ema_decay": 7.0}.items()
    },
    "threads without end": record("config.json", threads=10**9),
    "threads text": record("config.json", threads="1"),
    "bf16 text": record("config.json", bf16="yes"),
    "format a list": record("config.json", format=[1]),
    "other sizes": record("config.json", architecture={}),
    "step negative": record(f"{NEWEST}/training.json", position=-3),
    "metrics of 30 GB": sparse("metrics.jsonl", 30 * 10**9),
    "best nan": record(f"{NEWEST}/training.json", best_bleu=float("nan")),
    "moments of another shape": moment(lambda t: t.update({min(t): torch.zeros(3)})),
    "moments too many": moment(lambda t: t.update(more=torch.zeros(3))),
    "moments of integers": moment(lambda t: t.update({min(t): t[min(t)].int()})),
}


def renew_sums(run: Path) -> None:
    """Whoever changes a checkpoint can write its sums too: of all files, by links or not."""
    sums = []
    for line in (run / SUMS).read_text().splitlines():
        digest, _, name = line.partition("  ")
        path = run / NEWEST / name
        if path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        sums.append(f"{digest}  {name}\n")
    (run / SUMS).write_text("".join(sums))


def sums(change: Callable[[str], str]):
    def attack(run: Path) -> None:
        (run / SUMS).write_text(change((run / SUMS).read_text()))

    return attack


# Attacks on the sums themselves, or on what they are to notice: they stay as they are.
SUMS_REFUSED: dict[str, Callable[[Path], object]] = {
    "sums of a file elsewhere": sums(lambda text: f"{'0' * 64}  ../../../mine/secret\n{text}"),
    "sums of a device": sums(lambda text: f"{'0' * 64}  /dev/zero\n{text}"),
    "sums of nothing": sums(lambda text: ""),
    "sums without the weights": sums(
        lambda text: re.sub("(?m)^.*model.safetensors\n", "", text, count=1)
    ),
    "sums that are none": sums(lambda text: "a\n\n  b  c\x00\n"),
    "sums of a terabyte": sparse(SUMS, 10**12),
    "weights another": weights(lambda t: t | {min(t): t[min(t)] + 1}),
    "weights another, and a file more": lambda folder: (
        (folder / ".DS_Store").touch(),
        weights(lambda t: t | {min(t): t[min(t)] + 1})(folder),
    ),
}
for _name in ("weights another", "weights another, and a file more"):
    SUMS_REFUSED[_name] = (lambda f: lambda run: f(run / NEWEST))(SUMS_REFUSED[_name])


@pytest.mark.parametrize("attack", SUMS_REFUSED)
@pytest.mark.timeout(60)
def test_sums_of_a_stranger_are_checked_and_lead_nowhere(home: Path, attack: str):
    SUMS_REFUSED[attack](home / "run")
    before = snapshot(home / "mine")
    with pytest.raises(RunError, match=r"step-10 is damaged .*; remove it to go on from") as error:
        train(settings(home))
    assert "\n" not in str(error.value)
    assert SECRET.strip() not in str(error.value)
    assert snapshot(home / "mine") == before


def test_what_else_lies_in_a_checkpoint_is_no_damage(home: Path):
    (home / "run" / NEWEST / ".DS_Store").write_bytes(b"\0")
    (home / "run" / NEWEST / "notes").mkdir()
    train(settings(home))
    assert checkpoint.steps(home / "run")[-1] == 20


@pytest.mark.parametrize("attack", REFUSED)
@pytest.mark.timeout(60)
def test_a_run_of_a_stranger_is_refused_and_touches_nothing_of_ours(home: Path, attack: str):
    REFUSED[attack](home / "run")
    if not attack.startswith(SUMS) and (home / "run" / SUMS).exists():
        renew_sums(home / "run")
    before = snapshot(home / "mine")
    with pytest.raises(RunError) as error:
        train(settings(home))
    assert re.search("damaged|remove it|is not|config.json|format", str(error.value))
    assert "\n" not in str(error.value)
    assert SECRET.strip() not in str(error.value)
    assert snapshot(home / "mine") == before
    assert not (home / "run" / "sprung").exists()
    assert not (home / "sprung").exists()


def test_a_run_of_another_version_is_said_to_be_one(home: Path):
    record("config.json", new_decision=3)(home / "run")
    told = r"made by another version of transduce, or is damaged \(unknown setting new_decision"
    with pytest.raises(RunError, match=told):
        train(settings(home))


HARMLESS: dict[str, Callable[[Path], object]] = {
    "best leads elsewhere": planted("best", "../mine"),
    ".best.part": planted(".best.part", "../mine/secret"),
    ".config.json.part": planted(".config.json.part", "../mine/secret"),
    ".metrics.jsonl.part": planted(".metrics.jsonl.part", "../mine/secret"),
    ".step-5.part": planted("checkpoints/.step-5.part", "../../mine"),
    ".step-15.part": planted("checkpoints/.step-15.part", "../../mine"),
    ".average.part": planted("checkpoints/.average.part", "../../mine/secret"),
    "average": planted("checkpoints/average", "../../mine"),
}


@pytest.mark.parametrize("attack", HARMLESS)
def test_links_where_a_training_writes_are_replaced_and_not_followed(home: Path, attack: str):
    HARMLESS[attack](home / "run")
    before = snapshot(home / "mine")
    result = train(settings(home))
    assert snapshot(home / "mine") == before
    assert result.folder.resolve().is_relative_to(home / "run")


def test_a_best_that_leads_out_of_the_run_is_no_model(home: Path, sound: Path):
    (home / "run" / "best").unlink()
    (home / "run" / "best").symlink_to(sound)
    with pytest.raises(BundleError, match="leads out of the run"):
        bundle.load(home / "run")


@pytest.mark.parametrize("name", [*OWN, *DATA, *STATE])
def test_any_damage_of_a_run_is_an_error_of_ours_or_goes_on(
    stopped: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(stopped, tmp_path, symlinks=True, dirs_exist_ok=True)
    whole = (stopped / "run" / name).read_bytes()
    # What has been read has been read; the training itself is not what is tried.
    start = sys.modules["transduce.train.start"]
    monkeypatch.setattr(start, "go_on", lambda *_: Result(tmp_path, Score(0.0, "")))

    told = []

    @given(damage)
    def holds(how: tuple[int, list[tuple[int, int]]]) -> None:
        (tmp_path / "run" / name).write_bytes(spoil(whole, *how))
        if name in SUMMED:
            renew_sums(tmp_path / "run")
        try:
            train(settings(tmp_path))
        except TransduceError as error:
            told.append(str(error))

    holds()
    assert not any("\n" in text for text in told)
    assert told or name == "metrics.jsonl"  # what is no record there is left out


# the helpers


def test_a_link_beside_a_file_to_write_is_not_written_through(tmp_path: Path):
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / ".out.part").symlink_to("secret")
    with whole_file(tmp_path / "out") as file:
        file.write("new")
    assert (tmp_path / "secret").read_text() == SECRET
    assert (tmp_path / "out").read_text() == "new"
    assert not (tmp_path / "out").is_symlink()


def test_what_lies_beside_an_output_is_not_touched(tmp_path: Path):
    for name in (".out.part", ".out.old.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "secret").write_text(SECRET)
    before = snapshot(tmp_path)
    with whole_file(tmp_path / "out") as file:
        file.write("new")
    (tmp_path / "out").unlink()
    with whole_folder(tmp_path / "out", replace=False):
        pass
    (tmp_path / "out").rmdir()
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_came_meanwhile_is_not_replaced(tmp_path: Path, kind: str):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "secret").write_text(SECRET)
    before, out = snapshot(tmp_path / "mine"), tmp_path / "out"

    def make() -> None:
        with whole_folder(out, replace=False) as beside:
            (beside / "new").touch()
            if kind == "file":
                out.write_text(SECRET)
            elif kind == "folder":
                shutil.copytree(tmp_path / "mine", out)
            else:
                out.symlink_to("mine")

    with pytest.raises(OSError, match="irectory"):
        make()
    assert snapshot(tmp_path / "mine") == before
    assert (out.is_file(), out.is_symlink()) == (kind == "file", kind == "link")
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "out"}
    assert kind != "folder" or snapshot(out) == before


def test_an_output_is_as_the_umask_says(tmp_path: Path):
    before = os.umask(0o027)
    try:
        with whole_file(tmp_path / "file"), whole_folder(tmp_path / "folder", replace=False):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750


def test_links_in_a_circle_are_an_error_and_stay(tmp_path: Path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"), whole_file(tmp_path / "a"):
        pass
    assert (tmp_path / "a").is_symlink()


def test_what_cannot_take_its_name_leaves_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def rename(path: Path, target: Path) -> Path:
        if path.name == ".made.part":
            raise OSError(5, "Input/output error")
        return original(path, target)

    original = Path.rename
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").touch()
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="Input/output"), whole_folder(tmp_path / "made") as beside:
        (beside / "new").touch()
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["made", "made/old"]


def test_memory_is_not_taken_for_what_a_file_may_have(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"abc")
    tracemalloc.start()
    assert read_plain(tmp_path / "file", 1 << 30) == b"abc"
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


def test_a_record_without_end_takes_no_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + b" " * 50_000_000 + b'\n{"step": 2}\n')
    tracemalloc.start()
    assert [record["step"] for record in read_json_lines(path)] == [1, 2]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10 << 20
    assert [", line 2 is no record" in told for told in caplog.messages] == [True]
    assert last_json_line(path, "step") == {"step": 2}


def test_a_model_too_large_for_the_machine_is_not_read(
    model: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bundle, "machine_memory", lambda device: 1000)
    monkeypatch.delattr(bundle, "load_file")
    with pytest.raises(BundleError, match=r"the model takes .* GB, this machine has"):
        bundle.load(model)
    with pytest.raises(BundleError, match=r"an average takes .* GB, this machine has"):
        bundle.average([model, model])


def test_an_output_is_written_through_the_users_own_link(tmp_path: Path):
    (tmp_path / "real").touch()
    (tmp_path / "out").symlink_to("real")
    with whole_file(tmp_path / "out") as file:
        file.write("new")
    assert (tmp_path / "real").read_text() == "new"


@given(
    strategies.recursive(
        strategies.none() | strategies.booleans() | strategies.integers() | strategies.text(),
        lambda inner: (
            strategies.lists(inner, max_size=3)
            | strategies.dictionaries(strategies.text(), inner, max_size=3)
        ),
        max_leaves=12,
    )
)
def test_json_is_read_as_json_does(tmp_path_factory: pytest.TempPathFactory, tree: object):
    path = tmp_path_factory.getbasetemp() / "tree.json"
    path.write_bytes(json.dumps({"tree": tree}).encode())
    assert read_json(path) == {"tree": tree}


@given(strategies.text())
def test_what_is_shown_is_one_line_and_moves_no_cursor(text: str):
    shown = printable(text)
    assert shown.isprintable() or any("\udc80" <= c <= "\udcff" for c in shown)
    if text.isprintable():
        assert shown == text
