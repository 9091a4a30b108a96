"""A translation that is killed goes on to the same bytes, and never with another work's part."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_translator import WORDS

from transduce import bundle
from transduce.bundle import Bundle
from transduce.decode.resume import describe, unfinished
from transduce.errors import DataError
from transduce.ids import EOS
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import TokenizerConfig, train_tokenizer

WINDOW = 16
LINES = 7 * WINDOW + 7

# The program with small windows, each of them recorded at once; it kills itself in the middle of
# the window that KILL names, with half of its bytes on disk.
PROGRAM = f"""
import os, signal, sys
from transduce.cli.app import main
from transduce.decode import resume, stream
stream.translate_stream.__kwdefaults__["window"] = {WINDOW}
resume.SECONDS_BETWEEN_RECORDS = 0.0
add, left = resume.Part.add, [int(os.environ.get("KILL", 0))]
def kill_in_the_middle(part, text, lines):
    left[0] -= 1
    if not left[0]:
        data = text.encode()
        part._file.write(data[: len(data) // 2 + 1])
        part._file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    add(part, text, lines)
resume.Part.add = kill_in_the_middle
main()
"""


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


def run(*words: str | Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "translate", *map(str, words), "--threads", "1"],
        capture_output=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )


# All in one process: to start takes longer than to refuse.
REFUSED = """
import json, sys
from transduce.cli.app import app
from transduce.errors import TransduceError
for words in json.loads(sys.argv[1]):
    try:
        app(["translate", *words], standalone_mode=False)
        print(json.dumps("it was not refused"))
    except TransduceError as error:
        print(json.dumps(str(error)))
"""


def refused(*commands: tuple[str | Path, ...]) -> list[str]:
    """What the program says against each of some commands."""
    words = json.dumps([[*map(str, command)] for command in commands])
    found = subprocess.run(
        [sys.executable, "-c", REFUSED, words], capture_output=True, timeout=240, check=True
    )
    return [json.loads(line) for line in found.stdout.splitlines()]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


UNFINISHED = {".out.unfinished", ".out.unfinished.json"}


@pytest.mark.parametrize(
    "options",
    [
        ["--beam", "1"],
        ["--beam", "3", "--n-best", "3"],
        ["--beam", "2", "--n-best", "2", "--format", "jsonl"],
    ],
)
def test_killed_and_resumed_it_ends_with_the_same_bytes(
    model: Path, text: Path, tmp_path: Path, options: list[str]
):
    whole = run(model, text, "--output", tmp_path / "whole", *options)
    assert whole.returncode == 0, whole
    (tmp_path / "whole").rename(tmp_path.with_suffix(".whole"))
    words = (model, text, "--output", tmp_path / "out", *options)
    for resume, kill, lines in (([], 4, 3), (["--resume"], 3, 5)):
        assert run(*words, *resume, KILL=str(kill)).returncode == -signal.SIGKILL
        assert names(tmp_path) == UNFINISHED
        record = json.loads((tmp_path / ".out.unfinished.json").read_text())
        assert record["lines"] == lines * WINDOW
        assert (tmp_path / ".out.unfinished").stat().st_size > record["bytes"]  # a record is cut
    resumed = run(*words, "--resume")
    assert resumed.returncode == 0, resumed
    assert (tmp_path / "out").read_bytes() == tmp_path.with_suffix(".whole").read_bytes()
    assert names(tmp_path) == {"out"}
    # Warnings name lines of the file, and only those that are translated now.
    assert f"line {LINES - 4}: not UTF-8".encode() in resumed.stderr
    assert resumed.stderr.count(b"not UTF-8") == 1
    assert "nothing of it is unfinished" in refused((*words, "--resume"))[0]


def test_killed_from_outside_again_and_again(model: Path, text: Path, tmp_path: Path):
    command = [sys.executable, "-c", PROGRAM, "translate", str(model), str(text), "--resume"]
    command += ["--output", str(tmp_path / "out"), "--format", "jsonl", "--threads", "1"]
    record = tmp_path / ".out.unfinished.json"
    lines = 0
    for _ in range(3):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            time.sleep(0.005)
            if record.exists() and (now := json.loads(record.read_text())["lines"]) > lines:
                lines = now
                process.kill()
                break
        process.wait()
    assert lines
    assert run(*command[4:]).returncode == 0
    assert run(*command[4:6], *command[9:], "--output", tmp_path / "whole").returncode == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


def test_another_model_text_or_option_is_refused_by_name(model: Path, text: Path, tmp_path: Path):
    other_model = save_model(tmp_path / "other", seed=14)
    other_text = tmp_path / "text"
    other_text.write_bytes(text.read_bytes() + b"\nand more")
    out = ("--output", tmp_path / "out", "--beam", "2")
    assert run(model, text, *out, KILL="3").returncode == -signal.SIGKILL
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
    errors = refused(*((*words, "--resume") for words, _ in differences))
    for error, (_, name) in zip(errors, differences, strict=True):
        assert name in error
        assert error.count(" was ") == 1
        assert "\n" not in error
    assert {name: (tmp_path / name).read_bytes() for name in UNFINISHED} == before


def test_started_without_resume_it_says_so_and_starts_afresh(
    model: Path, text: Path, tmp_path: Path
):
    out = ("--output", tmp_path / "out", "--beam", "1")
    assert run(model, text, *out, KILL="3").returncode == -signal.SIGKILL
    found = run(model, text, *out, "--format", "jsonl")
    assert found.returncode == 0
    assert b"starting afresh" in found.stderr
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
    errors = refused(*((*words, "--resume") for words in commands))
    assert errors == [expected] * len(commands)


def test_ctrl_c_keeps_what_is_done(model: Path, text: Path, tmp_path: Path):
    large = tmp_path / "large"
    large.write_bytes(text.read_bytes() * 99)
    command = [sys.executable, "-c", PROGRAM, "translate", str(model), str(large)]
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


def test_a_full_disk_keeps_what_is_done(model: Path, text: Path, tmp_path: Path):
    out = ("--output", tmp_path / "out", "--beam", "1")
    assert run(model, text, "--output", tmp_path / "whole", "--beam", "1").returncode == 0
    size = (tmp_path / "whole").stat().st_size
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size // 2}, {size}))\n"
    full = subprocess.run(
        [sys.executable, "-c", limit + PROGRAM, "translate", *map(str, (model, text, *out))],
        capture_output=True,
        timeout=240,
    )
    assert full.returncode == 2, full
    assert full.stderr.splitlines()[-1].endswith(b"out: File too large")
    assert b"go on with --resume" in full.stderr
    assert run(model, text, *out, "--resume").returncode == 0
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
    for damage in ('{"format": 1}', "[]", "", '{"format": 1, "lines": -1, "bytes": "a"}'):
        record.write_text(damage)
        with pytest.raises(DataError, match="is damaged"), unfinished(out, ABOUT, resume=True):
            pass
    record.write_text('{"format": 2}')
    with pytest.raises(DataError, match="format 2"), unfinished(out, ABOUT, resume=True):
        pass
    record.unlink()
    with unfinished(out, ABOUT, resume=True) as again:
        assert again.lines == 0
    assert out.read_bytes() == b""


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
    with pytest.raises(DataError, match="cannot be read"):
        describe([model], tmp_path / "none", {}, device=device, version="1")
