"""A translation that is killed goes on to the same bytes, and never with another work's part."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest
import torch
from command import refused, transduce
from hypothesis import given
from hypothesis import strategies as st
from test_translator import WORDS

from transduce import bundle
from transduce.bundle import Bundle
from transduce.decode.resume import describe, unfinished
from transduce.errors import BundleError, DataError
from transduce.files import lock
from transduce.ids import EOS
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import TokenizerConfig, train_tokenizer

WINDOW = 16
LINES = 7 * WINDOW + 7

# The program with small windows, each of them recorded at once; it kills itself in the middle of
# the window that KILL names, with half of its bytes on disk.
PROGRAM = f"""
import json, os, resource, signal, sys
from transduce.cli.app import main
from transduce.decode import resume as resuming, stream
stream.translate_stream.__kwdefaults__["window"] = {WINDOW}
resuming.SECONDS_BETWEEN_RECORDS = 0.0
add, windows = resuming.Part.add, []
def kill_in_the_middle(part, text, lines):
    windows.append(lines)
    if len(windows) == int(os.environ.get("KILL", 0)):
        data = text.encode()
        part._file.write(data[: len(data) // 2 + 1])
        part._file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    add(part, text, lines)
resuming.Part.add = kill_in_the_middle
"""

# Started once and forked for each command: to start costs seconds.
FORKS = """
for line in sys.stdin:
    words, errors, env = json.loads(line)
    if not isinstance(words, list):
        print(os.waitstatus_to_exitcode(os.waitpid(words, 0)[1]), flush=True)
    elif child := os.fork():
        print(child, flush=True)
    else:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        os.environ |= env
        if "LARGEST" in env:
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(env["LARGEST"]),) * 2)
        sys.argv = ["transduce", "translate", *words]
        try:
            main()
        except SystemExit as ended:
            sys.stderr.flush()
            os._exit(ended.code or 0)
"""


class Program:
    """Runs commands in processes of their own."""

    def __init__(self, process: subprocess.Popen, folder: Path) -> None:
        self._process = process
        self._errors = folder / "errors"

    def start(self, *words: str | Path, **env: str) -> int:
        return self._ask([str(word) for word in (*words, *COMMON)], env)

    def wait(self, child: int) -> tuple[int, str]:
        """The status of a command, and what it has told."""
        return self._ask(child, {}), self._errors.read_text()

    def run(self, *words: str | Path, **env: str) -> tuple[int, str]:
        return self.wait(self.start(*words, **env))

    def _ask(self, words: list[str] | int, env: dict[str, str]) -> int:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([words, str(self._errors), env]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Generator[Program]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM + FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        yield Program(process, tmp_path_factory.mktemp("program"))


KILLED = -signal.SIGKILL
COMMON = ("--threads", "1", "--max-length", "12")


def save_model(folder: Path, *, seed: int) -> Path:
    words = WORDS.split()
    texts = [" ".join(words[i % 18 :: 1 + i % 4]) for i in range(90)]
    tokenizer = train_tokenizer(texts, TokenizerConfig(), vocab_size=320)
    torch.manual_seed(seed)
    config = TransformerConfig(
        source_vocab_size=tokenizer.size, target_vocab_size=tokenizer.size, d_model=32, heads=2,
        d_ff=64, encoder_layers=1, decoder_layers=1, max_length=64, tie="none",
    )  # fmt: skip
    model = Transformer(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so that the output depends on the source
            parameter.mul_(1.7)
        model.output.weight[EOS] *= 8  # an end now and then
    folder.mkdir()
    bundle.save(folder, Bundle(model, tokenizer, tokenizer, {}), "a card")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("resume") / "model", seed=13)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines, now and then an empty one, one that is not UTF-8 near the start and near the end."""
    words = WORDS.split()
    lines = [" ".join(words[i % 17 :: 1 + i % 5][:4]).encode() for i in range(LINES)]
    lines[2] = lines[2 * WINDOW] = lines[LINES - 20] = b""
    lines[4] = lines[LINES - 5] = b"a \xff dog"
    file = tmp_path_factory.mktemp("resume") / "text"
    file.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    return file


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


UNFINISHED = {".out.unfinished", ".out.unfinished.json"}


@pytest.mark.parametrize(
    "options",
    [
        ["--beam", "1"],
        ["--beam", "2", "--n-best", "2", "--format", "jsonl"],
    ],
)
def test_killed_and_resumed_it_ends_with_the_same_bytes(
    program: Program, model: Path, text: Path, tmp_path: Path, options: list[str]
):
    whole = tmp_path.with_suffix(".whole")
    assert program.run(model, text, "--output", whole, *options)[0] == 0
    words = (model, text, "--output", tmp_path / "out", *options)
    for resume, kill, lines in (([], 4, 3), (["--resume"], 3, 5)):
        assert program.run(*words, *resume, KILL=str(kill))[0] == KILLED
        assert names(tmp_path) == UNFINISHED
        record = json.loads((tmp_path / ".out.unfinished.json").read_text())
        assert record["lines"] == lines * WINDOW
        assert (tmp_path / ".out.unfinished").stat().st_size > record["bytes"]  # a record is cut
    status, errors = program.run(*words, "--resume")
    assert status == 0, errors
    assert (tmp_path / "out").read_bytes() == whole.read_bytes()
    assert names(tmp_path) == {"out"}
    # Warnings name lines of the file, and only those that are translated now.
    assert f"line {LINES - 4}: not UTF-8" in errors
    assert errors.count("not UTF-8") == 1
    again = transduce("translate", *words, "--resume")  # a loop until it succeeds comes to an end
    assert again.status == 0
    assert (
        "out is there, with no unfinished part: to translate again leave out --resume"
        in again.errors
    )
    assert (tmp_path / "out").read_bytes() == whole.read_bytes()


def test_killed_from_outside_again_and_again(
    program: Program, model: Path, text: Path, tmp_path: Path
):
    words = (model, text, "--format", "jsonl", "--output")
    record = tmp_path / ".out.unfinished.json"
    lines = 0
    for _ in range(3):
        child = program.start(*words, tmp_path / "out", "--resume")
        while not (tmp_path / "out").exists():
            time.sleep(0.005)
            if record.exists() and (now := json.loads(record.read_text())["lines"]) > lines:
                lines = now
                os.kill(child, signal.SIGKILL)
                break
        program.wait(child)
    assert lines
    assert (tmp_path / "out").exists() or program.run(*words, tmp_path / "out", "--resume")[0] == 0
    assert program.run(*words, tmp_path / "whole")[0] == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


def test_another_model_text_or_option_is_refused_by_name(
    program: Program, model: Path, text: Path, tmp_path: Path
):
    other_model = save_model(tmp_path / "other", seed=14)
    other_text = tmp_path / "text"
    other_text.write_bytes(text.read_bytes() + b"\nand more")
    out = ("--output", tmp_path / "out", "--beam", "2")
    assert program.run(model, text, *out, KILL="3")[0] == KILLED
    before = {name: (tmp_path / name).read_bytes() for name in UNFINISHED}
    differences = [
        ((other_model, text, *out), "model was "),
        ((model, other_text, *out), "text was "),
        ((model, text, *out, "--beam", "1"), "beam was 2, is 1"),
        ((model, text, *out, "--alpha", "1"), "alpha was 0.6, is 1.0"),
        ((model, text, *out, "--n-best", "2"), "n_best was 1, is 2"),
        ((model, text, *out, "--format", "jsonl"), "format was 'text', is 'jsonl'"),
        ((model, text, *out, "--batch-tokens", "99"), "batch_tokens was 4096, is 99"),
    ]
    for words, name in differences:
        error = refused("translate", *words, "--resume", *COMMON)
        assert name in error
        assert error.count(" was ") == 1
    assert {name: (tmp_path / name).read_bytes() for name in UNFINISHED} == before


def test_started_without_resume_it_says_so_and_starts_afresh(
    program: Program, model: Path, text: Path, tmp_path: Path
):
    out = ("--output", tmp_path / "out", "--beam", "1")
    assert program.run(model, text, *out, KILL="3")[0] == KILLED
    status, errors = program.run(model, text, *out, "--format", "jsonl")
    assert status == 0
    assert "starting afresh" in errors
    records = [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    assert [record["line"] for record in records] == list(range(1, LINES + 1))
    assert names(tmp_path) == {"out"}


def test_resume_needs_files(model: Path, text: Path, tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    commands = [
        (model,),
        (model, text),
        (model, "--output", tmp_path / "out"),
        (model, text, "--output", "/dev/null"),
        (model, pipe, "--output", tmp_path / "out"),
    ]
    expected = "--resume needs FILE and --output, both of them regular files"
    for words in commands:
        assert refused("translate", *words, "--resume") == f"error: {expected}"


def test_ctrl_c_keeps_what_is_done(model: Path, text: Path, tmp_path: Path):
    large = tmp_path / "large"
    large.write_bytes(text.read_bytes() * 99)
    # A shell has its background jobs ignore the signal, and so those that run this test there.
    program = PROGRAM + "signal.signal(signal.SIGINT, signal.default_int_handler)\nmain()"
    command = [sys.executable, "-c", program, "translate", str(model), str(large)]
    command += ["--output", str(tmp_path / "out"), "--threads", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    record = tmp_path / ".out.unfinished.json"
    while not record.exists() or not json.loads(record.read_text())["lines"]:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"lines are done and kept; go on with --resume" in errors
    assert b"Traceback" not in errors
    assert names(tmp_path) == {"large", *UNFINISHED}


def test_a_full_disk_keeps_what_is_done(program: Program, model: Path, text: Path, tmp_path: Path):
    much = ("--beam", "1", "--format", "jsonl")
    out = (*much, "--output", tmp_path / "out")
    assert program.run(model, text, *much, "--output", tmp_path / "whole")[0] == 0
    size = (tmp_path / "whole").stat().st_size
    status, errors = program.run(model, text, *out, LARGEST=str(size // 2))
    assert status == 2
    assert errors.splitlines()[-1].endswith("out: File too large")
    assert "go on with --resume" in errors
    assert program.run(model, text, *out, "--resume")[0] == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


ABOUT = {"work": {"model": "a"}, "place": {"threads": 1}}


@given(
    windows=st.lists(st.lists(st.text(st.characters(codec="utf-8"), max_size=3), max_size=4)),
    data=st.data(),
)
def test_whatever_was_written_behind_the_record_is_made_again(
    tmp_path_factory: pytest.TempPathFactory, windows: list[list[str]], data: st.DataObject
):
    """A kill at any byte: the part is longer than its record by any piece of what came next."""
    folder = tmp_path_factory.mktemp("part")
    texts = ["".join(f"{line}\n" for line in window) for window in windows]
    done = data.draw(st.integers(0, len(windows)))
    behind = data.draw(st.binary(max_size=8)) or "".join(texts[done:]).encode()
    behind = behind[: data.draw(st.integers(0, len(behind)))]

    with unfinished(folder / "out", ABOUT, resume=False) as part:
        for text, window in zip(texts[:done], windows[:done], strict=True):
            part.add(text, len(window))
        part.record()
        kept = [path.read_bytes() for path in sorted(folder.iterdir())]
    (folder / "out").unlink()
    (folder / ".out.unfinished").write_bytes(kept[0] + behind)
    (folder / ".out.unfinished.json").write_bytes(kept[1])

    with unfinished(folder / "out", ABOUT, resume=True) as part:
        assert part.lines == sum(map(len, windows[:done]))
        for text, window in zip(texts[done:], windows[done:], strict=True):
            part.add(text, len(window))
    assert (folder / "out").read_bytes() == "".join(texts).encode()
    assert names(folder) == {"out"}


def interrupted(folder: Path, *, lines: int = 3) -> Path:
    with suppress(KeyboardInterrupt), unfinished(folder / "out", ABOUT, resume=False) as part:
        part.add("x\n" * lines, lines)
        part.record()
        raise KeyboardInterrupt
    return folder / "out"


def test_a_part_that_lost_bytes_or_its_record_is_not_trusted(tmp_path: Path):
    out = interrupted(tmp_path)
    part, record = (tmp_path / name for name in sorted(UNFINISHED))
    part.write_bytes(b"x\nx")
    with pytest.raises(DataError, match="3 bytes are gone"), unfinished(out, ABOUT, resume=True):
        pass
    whole = json.loads(record.read_text())
    wrong = [{"lines": n} for n in (1.5, True, -1, 10**30, "3", None)] + [{"bytes": 6.0}]
    wrong += [{"work": [1]}, {"place": "x"}]
    bad = [json.dumps(whole | change) for change in wrong]
    bad += ['{"format": 1}', "[]", "", "7", "[" * 10**5, '{"a":' * 10**5, "\udcff"]
    for damage in bad:
        record.write_text(damage, errors="surrogateescape")
        with pytest.raises(DataError, match="is damaged"), unfinished(out, ABOUT, resume=True):
            pass
    record.write_text('{"format": 2}')
    with pytest.raises(DataError, match="format 2"), unfinished(out, ABOUT, resume=True):
        pass
    record.unlink()
    for resume in (False, True):
        with pytest.raises(DataError, match="no record"), unfinished(out, ABOUT, resume=resume):
            pass
    assert part.read_bytes() == b"x\nx"
    part.write_bytes(b"")
    with unfinished(out, ABOUT, resume=True) as again:
        assert again.lines == 0
    assert out.read_bytes() == b""


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", sorted(UNFINISHED))
def test_a_users_own_file_of_that_name_is_not_taken(tmp_path: Path, name: str, resume: bool):
    (tmp_path / name).write_text("mine")
    with (
        pytest.raises(DataError, match=rf"{name} is .*remove it"),
        unfinished(tmp_path / "out", ABOUT, resume=resume),
    ):
        pass
    assert (tmp_path / name).read_text() == "mine"
    assert names(tmp_path) == {name}


def test_what_is_started_afresh_always_has_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A kill between any two of its steps: the next call knows the part for its own."""
    out = interrupted(tmp_path)
    part, record = (tmp_path / name for name in sorted(UNFINISHED))
    kept = part.read_bytes(), record.read_bytes()
    steps = ["transduce.decode.resume.write_whole", "pathlib.Path.unlink", "os.fsync"]
    for step in steps:
        part.write_bytes(kept[0])
        record.write_bytes(kept[1])

        class Killed(BaseException):
            pass

        def kill(*_: object, **__: object) -> None:
            raise Killed

        with monkeypatch.context() as patch, suppress(Killed):
            patch.setattr("transduce.decode.resume._leave", kill)
            patch.setattr(step, kill)
            with unfinished(out, ABOUT, resume=False):
                raise Killed
        with unfinished(out, ABOUT, resume=False) as again:
            assert again.lines == 0
        assert names(tmp_path) == {"out"}


def test_links_in_a_circle_are_no_output(tmp_path: Path):
    (tmp_path / "out").symlink_to("out")
    with (
        pytest.raises(OSError, match="symbolic links"),
        unfinished(tmp_path / "out", ABOUT, resume=False),
    ):
        pass
    assert names(tmp_path) == {"out"}


def test_of_nothing_nothing_is_kept(tmp_path: Path):
    interrupted(tmp_path, lines=0)
    assert names(tmp_path) == set()


def test_an_older_output_stays_until_the_new_one_is_complete(tmp_path: Path):
    (tmp_path / "out").write_text("old")
    out = interrupted(tmp_path)
    assert out.read_text() == "old"
    with unfinished(out, ABOUT, resume=True) as part:
        part.add("y\n", 1)
    assert out.read_text() == "x\nx\nx\ny\n"


def test_two_cannot_write_one_output(tmp_path: Path):
    out = tmp_path / "out"
    with unfinished(out, ABOUT, resume=False) as part:
        part.add("x\n", 1)
        for resume in (False, True):
            with (
                pytest.raises(DataError, match="another process is translating into it"),
                unfinished(out, ABOUT, resume=resume),
            ):
                pass
    assert out.read_text() == "x\n"


@pytest.mark.parametrize("another", [False, True])
def test_an_output_completed_meanwhile_is_not_written_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, another: bool
):
    out = interrupted(tmp_path)
    part, record = (tmp_path / name for name in sorted(UNFINISHED))

    def late(_: IO) -> bool:
        part.replace(out)  # what the other process does, before it lets go of its lock
        record.unlink()
        if another:
            part.write_text("of a third one")
        return True

    monkeypatch.setattr("transduce.decode.resume.lock", late)
    with (
        pytest.raises(DataError, match="has just completed it"),
        unfinished(out, ABOUT, resume=False),
    ):
        raise AssertionError
    assert out.read_text() == "x\nx\nx\n"
    assert not another or part.read_text() == "of a third one"


def test_a_part_is_held_until_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    replace, tried = Path.replace, []

    def watch(path: Path, target: Path) -> Path:
        if path.suffix == ".unfinished":
            with path.open("rb") as file:
                tried.append(lock(file))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", watch)
    with unfinished(tmp_path / "out", ABOUT, resume=False) as part:
        part.add("x\n", 1)
    assert tried == [False]
    assert names(tmp_path) == {"out"}


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
@pytest.mark.parametrize("resume", [False, True])
def test_what_is_planted_in_the_place_of_a_part_is_not_touched(
    tmp_path: Path, kind: str, resume: bool
):
    planted, other = tmp_path / ".out.unfinished", tmp_path / "other"
    other.write_text("precious")
    if kind == "pipe":
        os.mkfifo(planted)
    elif kind == "folder":
        planted.mkdir()
    else:
        planted.symlink_to(other if kind == "link" else tmp_path / "new")
    with (
        pytest.raises(DataError, match=r"\.out\.unfinished is a link, or no file"),
        unfinished(tmp_path / "out", ABOUT, resume=resume),
    ):
        pass
    assert other.read_text() == "precious"
    assert names(tmp_path) == {"other", ".out.unfinished"}


def test_another_place_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    out = interrupted(tmp_path)
    caplog.clear()
    with unfinished(out, ABOUT | {"place": {"threads": 2}}, resume=True):
        pass
    [message] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert message.startswith("threads was 1, is 2")


def test_a_model_is_known_by_every_file_that_shapes_its_translations(model: Path, tmp_path: Path):
    text = tmp_path / "text"
    text.write_text("a")
    device = torch.device("cpu")

    def name(folder: Path) -> str:
        return describe([folder], text, {}, device=device, version="1")["work"]["model"]

    copy = tmp_path / "copy"
    copy.mkdir()
    for path in model.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert name(copy) == name(model)
    (copy / "model_card.md").write_text("another card")
    assert name(copy) == name(model)
    for file in ("config.json", "model.safetensors", "tokenizer.model"):
        before = (copy / file).read_bytes()
        (copy / file).write_bytes(before + b" ")
        assert name(copy) != name(model)
        (copy / file).write_bytes(before)
    (copy / "config.json").unlink()
    os.mkfifo(copy / "config.json")
    with pytest.raises(BundleError, match=r"config\.json: cannot be read"):
        name(copy)
    with pytest.raises(DataError, match="cannot be read"):
        describe([model], tmp_path / "none", {}, device=device, version="1")
