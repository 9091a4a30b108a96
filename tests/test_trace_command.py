"""The verb trace: a table, JSON and a page, whole or not at all; what it refuses."""

import dataclasses
import json
import re
from pathlib import Path

import contract
import pytest
from command import refused, transduce
from corpora import SMALL_OPTIONS, reversals
from pages import stored

from transduce import Translator, trace
from transduce.cli import trace as command_module

ASKED = ["a b c", "g f"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    source, target = reversals(folder, pairs=200)
    text = ["--source", str(source), "--target", str(target), "--out", str(folder / "run")]
    made = transduce("train", *text, *SMALL_OPTIONS, "--threads", "1")
    assert made.status == 0, made.errors
    return folder / "run"


def test_the_table_has_a_line_for_each_piece_and_each_invariant(model):
    found = transduce("trace", model, ASKED[0], "--threads", "1")
    assert found.status == 0, found.errors
    one = trace(Translator.load(model), ASKED[0])
    pieces = Translator.load(model).bundles[0].target_tokenizer.pieces(one.labels)
    rows = [line for line in found.lines if re.match(r"\d+ ", line)]
    assert len(rows) == len(one.labels)
    for row, piece, log_prob, entropy in zip(
        rows, [*pieces[:-1], "EOS"], one.output.log_probs, one.output.entropy, strict=True
    ):
        _, shown, p, nats = row.split()[:4]
        assert shown == piece
        assert float(p) == pytest.approx(2.718281828459045**log_prob, abs=6e-5)
        assert float(nats) == pytest.approx(entropy, abs=6e-4)
    checks = [line for line in found.lines if line.startswith("✓")]
    assert [line.split()[1] for line in checks] == [one.id for one in one.invariants]
    assert "(beam 4, alpha 0.6)" in found.text
    assert "nats" in found.text
    assert "decoder.0.cross_attention, mean of heads" in found.text


def test_json_and_page_hold_every_text(model, tmp_path):
    out, page = tmp_path / "trace.json", tmp_path / "trace.html"
    found = transduce(
        "trace",
        model,
        *ASKED,
        "",
        "--json",
        out,
        "--html",
        page,
        "--beam",
        "2",
        "--no-model-inside",
    )
    assert found.status == 0, found.errors
    payload = contract.read(json.loads(out.read_text(encoding="utf-8")))
    assert payload["model"]["name"] == "run"
    assert [one["source"]["text"] for one in payload["traces"]] == [*ASKED, ""]
    for text, one in zip(ASKED, payload["traces"], strict=False):
        assert one["searches"]["beam"]["beam"] == 2
        assert one["continuations"]
        assert one["answers"]
        wanted = trace(Translator.load(model), text, beam=2).to_json()
        (wanted,) = wanted["traces"]
        assert one["target"] == wanted["target"]
        assert one["output"]["log_probs"] == pytest.approx(wanted["output"]["log_probs"], abs=1e-5)
    assert "the text is blank" in found.text
    data = stored(page.read_text(encoding="utf-8"), "payload")
    assert json.loads(data) == json.loads(out.read_text(encoding="utf-8"))


def test_a_given_target_is_what_is_traced(model):
    found = transduce("trace", model, "a b", "--target", "b a", "--beam", "1")
    assert found.status == 0, found.errors
    assert "b a  (as given)" in found.text
    found = transduce("trace", model, "a b", "--target", "")
    assert next(line for line in found.lines if re.match(r"\d+ ", line)).split()[1] == "EOS"


def test_a_broken_invariant_is_status_1_and_is_shown(model, monkeypatch):
    def broken(*arguments, **options):
        one = trace(*arguments, **options)
        first = one.invariants[0]._replace(ok=False, worst=None)
        return dataclasses.replace(one, invariants=[first, *one.invariants[1:]])

    monkeypatch.setattr(command_module, "trace_one", broken)
    found = transduce("trace", model, "a b")
    assert found.status == 1
    (line,) = [line for line in found.lines if line.startswith("✗")]
    assert "not finite" in line


def test_what_it_refuses_is_one_line(model, tmp_path):
    assert "--target is the translation of one TEXT, and there are 2" in refused(
        "trace", model, *ASKED, "--target", "a"
    )
    assert "both name" in refused(
        "trace", model, "a", "--json", tmp_path / "x", "--html", tmp_path / "x"
    )
    (tmp_path / "link").symlink_to("x")
    assert "both name" in refused(
        "trace", model, "a", "--json", tmp_path / "x", "--html", tmp_path / "link"
    )
    (tmp_path / "link").unlink()
    for option in ("--html", "--json"):
        assert f"{option} - is no file" in refused("trace", model, "a", option, "-")
    assert "--json" in refused("trace", model, "a", "--json", tmp_path / "nowhere" / "x")
    assert "--html" in refused("trace", model, "a", "--html", tmp_path)
    assert "beam" in refused("trace", model, "a", "--beam", "0")
    assert "alpha" in refused("trace", model, "a", "--alpha", "-1")
    assert "no such model" in refused("trace", tmp_path / "none", "a")
    assert "Missing argument" in refused("trace", model)
    too_long = "a " * 2000
    assert "shorten it" in refused("trace", model, "a", "--target", too_long)
    assert list(tmp_path.iterdir()) == []  # nothing half written


def test_a_file_that_was_there_stays_until_the_new_one_is_whole(model, tmp_path, monkeypatch):
    out = tmp_path / "trace.json"
    out.write_text("old")

    def fails(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dumps", fails)
    assert "--json" in refused("trace", model, "a", "--json", out)
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]
