"""A run over its checkpoints: what is kept, what is looked at, and that it is the models' own."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import contract
import pages
import pytest
import torch
from command import refused, transduce
from rich.console import Console

from transduce import bundle
from transduce.config import validate
from transduce.decode.translator import Translator
from transduce.errors import RunError, TraceError
from transduce.ids import BOS
from transduce.trace import learning as learning_module
from transduce.trace.document import Trace, document
from transduce.trace.learning import MOST_SNAPSHOTS, Models, learning, models
from transduce.trace.record import heads_off
from transduce.trace.trace import trace
from transduce.train.config import TrainConfig
from transduce.train.run import check, locked, read
from transduce.train.start import train

TEXT = "a b c"
SETTINGS = {
    "model": {"preset": "tiny", "d_model": 16, "heads": 2, "d_ff": 32, "max_length": 40},
    "data": {"max_length": 30},
    "tokenizer": {"vocab_size": 300},
    "train": {
        "max_steps": 8,
        "batch_tokens": 128,
        "validate_every": 4,
        "save_every": 1,
        "log_every": 2,
        "average_last": 1,
        "snapshots": True,
    },
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    lines = [f"{a} {b} {c}" for a in "abc" for b in "abcd" for c in "abc"]
    for name in ("source", "target"):
        (folder / name).write_text("\n".join(lines) + "\n")
    settings = SETTINGS | {name: str(folder / name) for name in ("source", "target")}
    config = validate(TrainConfig, settings | {"out": str(folder / "out"), "threads": 1})
    train(config, console=Console(quiet=True))
    return folder / "out"


def test_a_run_keeps_the_model_of_every_checkpoint_where_it_is_told_to(trained: Path):
    assert list(models(trained)) == [1, 2, 3, 4, 5, 6, 7, 8]
    kept = sorted(folder.name for folder in (trained / "snapshots").iterdir())
    assert kept == [
        f"step-{n}" for n in range(1, 8) if not (trained / f"checkpoints/step-{n}").exists()
    ]
    assert not list((trained / "snapshots").rglob("training.*"))  # Adam's moments are not kept
    for folder in (trained / "snapshots").iterdir():
        bundle.load(folder)


def test_each_snapshot_is_what_that_model_does_with_the_sentence(trained: Path):
    whole = trace(Translator.load(trained), TEXT)
    found = learning(trained, whole)
    assert [one.step for one in found.snapshots] == list(range(1, 9))
    for one in found.snapshots:
        model = bundle.load(models(trained)[one.step]).model
        with torch.no_grad():
            given = torch.tensor([list(whole.source)]), torch.tensor([[BOS, *whole.labels[:-1]]])
            wanted = model(*given)[0].log_softmax(-1)[range(len(whole.labels)), list(whole.labels)]
        torch.testing.assert_close(torch.tensor(one.log_probs), wanted, atol=1e-5, rtol=0)
        text = Translator.load(models(trained)[one.step]).translate([TEXT])[0].text
        assert one.text == text
        again = trace(Translator.load(models(trained)[one.step]), TEXT, whole.target)
        if list(again.labels) == list(whole.labels):
            for block, weights in one.weights.items():
                torch.testing.assert_close(weights, again.tensors[f"{block}.weights"])


def test_the_losses_are_those_of_metrics(trained: Path):
    found = learning(trained, _trace(trained))
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [(p["step"], p["loss"]) for p in found.training] == [
        (line["step"], line["loss"]) for line in lines if "loss" in line
    ]
    assert [(p["step"], p["bleu"]) for p in found.validations] == [
        (line["step"], line["valid_bleu"]) for line in lines if "valid_bleu" in line
    ]
    assert found.finished


def test_lines_that_are_no_numbers_are_passed_over(trained: Path, tmp_path: Path):
    other = shutil.copytree(trained, tmp_path / "other", symlinks=True)
    (other / "metrics.jsonl").write_text(
        '{"step": 1, "loss": "x", "learning_rate": 1.0}\n{"step": null, "loss": 1.0}\n'
        '{"step": 2, "loss": 1, "learning_rate": 0.5}\n{"step": 3, "valid_loss": 2.0}\n'
        '{"step": -1, "loss": 1, "learning_rate": 0.5}\n'
        f'{{"step": 4, "loss": 1{"0" * 400}, "learning_rate": 0.5}}\n'
    )
    found = learning(other, _trace(trained))
    assert found.training == [{"step": 2, "loss": 1.0, "learning_rate": 0.5}]
    assert (found.validations, found.finished) == ([], False)


def test_of_many_models_the_first_the_last_and_some_between_are_taken(tmp_path: Path):
    for step in range(1, 101):
        folder = tmp_path / "checkpoints" / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
    chosen = list(models(tmp_path))
    assert (len(chosen), chosen[0], chosen[-1]) == (MOST_SNAPSHOTS, 1, 100)
    assert max(b - a for a, b in pairwise(chosen)) <= 5


def test_a_long_text_is_told_of_once_and_not_by_each_model(
    trained: Path, caplog: pytest.LogCaptureFixture
):
    whole = _trace(trained, "a b c " * 200)
    assert whole.source_cut
    caplog.clear()
    assert len(learning(trained, whole).snapshots) == 8
    assert not caplog.records


def test_of_a_long_sentence_fewer_models_are_taken(trained: Path, monkeypatch: pytest.MonkeyPatch):
    whole = _trace(trained)
    size = sum(x.numel() for x in learning(trained, whole).snapshots[0].weights.values())
    monkeypatch.setattr(learning_module, "MOST_NUMBERS", 3 * size)
    assert [one.step for one in learning(trained, whole).snapshots] == [1, 5, 8]
    monkeypatch.setattr(learning_module, "MOST_NUMBERS", 2 * size - 1)
    with pytest.raises(TraceError, match="shorten the text"):
        learning(trained, whole)


def test_heads_that_are_off_are_off_in_each_model(trained: Path):
    off = [("decoder.0.cross_attention", 0), ("decoder.0.cross_attention", 1)]
    found = learning(trained, trace(Translator.load(trained), TEXT, off=off))
    whole, last = found.trace, found.snapshots[-1]
    model = bundle.load(models(trained)[last.step]).model
    given = torch.tensor([list(whole.source)]), torch.tensor([[BOS, *whole.labels[:-1]]])
    with torch.no_grad(), heads_off(model, off):
        wanted = model(*given)[0].log_softmax(-1)[range(len(whole.labels)), list(whole.labels)]
    torch.testing.assert_close(torch.tensor(last.log_probs), wanted, atol=1e-5, rtol=0)


def test_each_model_begins_its_translation_as_the_trace_did(trained: Path):
    first = bundle.load(trained / "best").target_tokenizer.encode("c c")
    found = learning(trained, trace(Translator.load(trained), TEXT, prefix=first))
    assert list(found.trace.labels[: len(first)]) == first
    assert all(one.text.startswith("c c") for one in found.snapshots)


def test_models_of_another_tokenizer_are_told(trained: Path, tmp_path: Path):
    other = shutil.copytree(trained, tmp_path / "other", symlinks=True)
    with pytest.raises(TraceError, match="another tokenizer than the model that is traced"):
        learning(other, trace(pages.translator(), TEXT))


def test_metrics_that_cannot_be_read_are_told(trained: Path, tmp_path: Path):
    other = shutil.copytree(trained, tmp_path / "other", symlinks=True)
    (other / "metrics.jsonl").rename(tmp_path / "elsewhere")
    (other / "metrics.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TraceError, match=r"metrics\.jsonl: it is a link that leads out"):
        learning(other, _trace(trained))


def test_the_last_of_many_points_is_drawn(trained: Path, tmp_path: Path):
    other = shutil.copytree(trained, tmp_path / "other", symlinks=True)
    lines = [{"step": n, "loss": 1.0, "learning_rate": 0.5} for n in range(1, 2500)]
    (other / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    points = learning(other, _trace(trained)).training
    assert (len(points), points[-1]["step"]) == (833, 2499)
    assert {b["step"] - a["step"] for a, b in pairwise(points)} == {3}


def test_a_server_follows_the_run_with_the_model_that_is_the_best_now(
    trained: Path, tmp_path: Path
):
    run = shutil.copytree(trained, tmp_path / "run", symlinks=True)
    steps = {name: models(run)[name] for name in (1, 8)}
    (run / "best").unlink()
    (run / "best").symlink_to(steps[1].relative_to(run))
    then = trace(Translator.load(run), TEXT, beam=1)
    with pages.serving(run) as client:
        (run / "best").unlink()
        (run / "best").symlink_to(steps[8].relative_to(run))
        now = trace(Translator.load(run), TEXT, beam=1)
        assert list(now.labels) != list(then.labels)
        body = json.dumps({"text": TEXT, "beam": 1}).encode()
        asked = client.ask("POST", "/api/run", body, **{"Content-Type": "application/json"})
        found = asked.json()
    assert [each["id"] for each in found["labels"]] == list(now.labels)


def test_snapshots_go_to_no_folder_but_the_runs(trained: Path, tmp_path: Path):
    run = shutil.copytree(trained, tmp_path / "run", symlinks=True)
    (run / "snapshots").rename(tmp_path / "elsewhere")
    (run / "snapshots").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="snapshots is a link"), locked(run):
        pass


def test_a_run_goes_on_with_snapshots_or_without_them(trained: Path):
    record = read(trained)
    assert record is not None
    text = {name: str(trained.parent / name) for name in ("source", "target")}
    with_them = SETTINGS | text | {"out": str(trained), "threads": 1}
    without = with_them | {"train": SETTINGS["train"] | {"snapshots": False}}
    for settings in (with_them, without):
        check(record, validate(TrainConfig, settings), trained)


def test_what_is_no_folder_of_the_run_is_left_out(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    run = shutil.copytree(trained, tmp_path / "run", symlinks=True)
    (run / "snapshots" / "step-20").symlink_to(trained / "checkpoints" / "step-8")
    (run / "snapshots" / "step-21").write_text("")
    (run / "snapshots" / "step-22").mkdir()
    found = learning(run, _trace(trained))
    assert [one.step for one in found.snapshots] == list(range(1, 9))
    told = {record.getMessage().removeprefix(f"{run}/snapshots/") for record in caplog.records}
    assert told == {
        "step-20 is a link and is left out",
        "step-21 is no folder and is left out",
        "step-22 is empty and is left out",
    }
    (run / "snapshots").rename(tmp_path / "elsewhere")
    (run / "snapshots").symlink_to(tmp_path / "elsewhere")
    kept = {int(folder.name.removeprefix("step-")) for folder in (run / "checkpoints").iterdir()}
    assert models(run).keys() == kept != set(range(1, 9))


def _loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the folders that models are loaded from, as they are."""
    real, found = bundle.load, []

    def load(folder: Path, **options: object) -> bundle.Bundle:
        found.append(Path(folder).name)
        return real(folder, **options)

    monkeypatch.setattr(bundle, "load", load)
    return found


def test_models_are_loaded_once_while_their_files_stay(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = shutil.copytree(trained, tmp_path / "run", symlinks=True)
    whole, loads, kept = _trace(trained), _loads(monkeypatch), Models()
    first = learning(run, whole, kept.load)
    assert len(loads) == 8
    assert learning(run, whole, kept.load).to_json() == first.to_json()
    assert len(loads) == 8
    folder = models(run)[3]
    shutil.copyfile(models(run)[5] / "model.safetensors", tmp_path / "new")
    (tmp_path / "new").replace(folder / "model.safetensors")
    again = learning(run, whole, kept.load)
    assert loads[8:] == ["step-3"]
    assert again.snapshots[2].log_probs == first.snapshots[4].log_probs != again.snapshots[0]


def test_of_loaded_models_the_latest_are_kept(trained: Path, monkeypatch: pytest.MonkeyPatch):
    folders = models(trained)
    size = sum(each.numel() for each in bundle.load(folders[1]).model.parameters())
    loads, kept = _loads(monkeypatch), Models(2 * size)
    for step in (1, 2, 1, 3, 1, 2):  # 3 takes the place of 2
        kept.load(folders[step])
    assert loads == ["step-1", "step-2", "step-3", "step-2"]
    assert Models(size - 1).load(folders[1]).model.config == kept.load(folders[1]).model.config


def test_threads_share_what_is_loaded(trained: Path, monkeypatch: pytest.MonkeyPatch):
    folders, loads, kept = models(trained), _loads(monkeypatch), Models()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(kept.load, [folders[step] for step in (1, 2) * 8]))
    assert sorted(loads) == ["step-1", "step-2"]
    assert {id(one.model) for one in found[::2]} == {id(found[0].model)}


def test_a_server_that_is_asked_again_loads_no_model_again(
    trained: Path, monkeypatch: pytest.MonkeyPatch
):
    body = json.dumps({"text": TEXT, "beam": 1}).encode()
    with pages.serving(trained) as client:
        loads = _loads(monkeypatch)
        for wanted in (8, 8):
            asked = client.ask("POST", "/api/run", body, **{"Content-Type": "application/json"})
            assert len(asked.json()["snapshots"]) == 8
            assert len([name for name in loads if name.startswith("step-")]) == wanted


def test_what_is_no_run_is_told(tmp_path: Path):
    with pytest.raises(TraceError, match="is not a training run with checkpoints"):
        learning(pages.save(tmp_path / "model"), trace(pages.translator(), TEXT))


def test_the_document_is_what_the_page_expects(trained: Path):
    whole = _trace(trained)
    found = document([whole]) | {"run": learning(trained, whole).to_json()}
    read = contract.read(found)["run"]
    assert [token["id"] for token in read["labels"]] == list(whole.labels)


def test_the_verb_puts_a_run_into_the_page(trained: Path, tmp_path: Path):
    out = tmp_path / "run.json"
    done = transduce("trace", trained, TEXT, "--learning", "--json", out, "--threads", "1")
    assert done.status == 0, done
    found = contract.read(json.loads(out.read_text(encoding="utf-8")))
    assert [one["step"] for one in found["run"]["snapshots"]] == list(range(1, 9))


def test_the_verb_says_what_it_needs(trained: Path, tmp_path: Path):
    assert "add --html or --json" in refused("trace", trained, TEXT, "--learning")
    out, model = tmp_path / "x.json", pages.save(tmp_path / "model")
    assert "not a training run" in refused("trace", model, TEXT, "--learning", "--json", out)
    assert not out.exists()
    assert "blank" in refused("trace", trained, "", "--learning", "--json", out)


def _trace(trained: Path, text: str = TEXT) -> Trace:
    return trace(Translator.load(trained), text)
