"""The verbs info and average: what they tell and write, and what they refuse."""

import itertools
import json
import shutil
from pathlib import Path

import command
import pytest
import torch
from corpora import SMALL, reversals
from safetensors.torch import load_file

from transduce import bundle, train
from transduce.cli.models import table
from transduce.config import validate
from transduce.errors import BundleError, RunError, TokenizerError, TransduceError
from transduce.files import sha256
from transduce.train import checkpoint
from transduce.train.average import write_average
from transduce.train.checkpoint import State
from transduce.train.config import TrainConfig
from transduce.train.describe import describe


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    reversals(folder, seed=2)  # one that ends in `average`
    text = {"source": str(folder / "text.src"), "target": str(folder / "text.tgt")}
    about = {
        "source_language": "en",
        "target_language": "nl",
        "licence": "CC0-1.0",
        "note": "a test",
    }
    train(validate(TrainConfig, SMALL | text | about | {"out": str(folder / "run")}))
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A run with checkpoints 900, 1000, 9000 and 10000, each of weights of its own (R29)."""
    run = tmp_path / "run"
    shutil.copytree(finished, run, symlinks=True)
    found = checkpoint.path(run, checkpoint.steps(run)[-1])
    for number, step in enumerate((900, 1000, 9000, 10000)):
        folder = shutil.copytree(found, checkpoint.path(run, step))
        model = bundle.load(folder)
        torch.manual_seed(number)
        with torch.no_grad():
            for parameter in model.model.parameters():
                parameter.add_(torch.randn_like(parameter))
        bundle.save(folder, model, (folder / "model_card.md").read_text())
        names = [line.split()[1] for line in (folder / "SHA256SUMS").read_text().splitlines()]
        sums = "".join(f"{sha256(folder / name)}  {name}\n" for name in names)
        (folder / "SHA256SUMS").write_text(sums)
    for step in checkpoint.steps(finished):
        shutil.rmtree(checkpoint.path(run, step))
    return run


def transduce(*words: str | Path) -> str:
    """What the verbs do, in this process."""
    verb, *names = [word for word in words if not str(word).startswith("--")]
    options = {a: b for a, b in itertools.pairwise(words) if a in ("--last", "--out")}
    if verb == "info":
        facts = describe(Path(names[0]))
        return json.dumps(facts) if "--json" in words else table(facts)
    models = [Path(name) for name in names if name not in options.values()]
    last = options.get("--last")
    write_average(models, Path(options["--out"]), int(last) if last else None)
    return ""


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_the_last_checkpoints_are_those_of_the_highest_numbers(run: Path, tmp_path: Path):
    out = tmp_path / "mean"
    transduce("average", run, "--last", "3", "--out", out)
    sources = [weights(checkpoint.path(run, step)) for step in (1000, 9000, 10000)]
    for name, tensor in weights(out).items():
        expected = sum(source[name].double() for source in sources) / 3
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-6, atol=1e-7)
    assert json.loads((out / "config.json").read_text())["average_of"] == [
        {
            "name": f"step-{step}",
            "step": step,
            "sha256": sha256(checkpoint.path(run, step) / "model.safetensors"),
        }
        for step in (1000, 9000, 10000)
    ]
    card = (out / "model_card.md").read_text()
    for step in (1000, 9000, 10000):
        digest = sha256(checkpoint.path(run, step) / "model.safetensors")
        assert f"step-{step}: model.safetensors sha256 {digest}" in card
    assert "step-900:" not in card
    assert bundle.load(out).about["target_language"] == "nl"


def test_the_mean_of_the_validated_ones_is_the_runs_own(finished: Path, tmp_path: Path):
    """This run ended in `average`, the mean of steps 15 and 20: two ways to the same bytes."""
    assert (finished / "best").resolve().name == "average"
    transduce("average", finished, "--last", "2", "--out", tmp_path / "mean")
    mean, own = (
        (folder / "model.safetensors").read_bytes()
        for folder in (tmp_path / "mean", finished / "best")
    )
    assert mean == own


def test_models_are_averaged_by_name_too(run: Path, tmp_path: Path):
    names = [checkpoint.path(run, step) for step in (10000, 900)]
    transduce("average", *names, "--out", tmp_path / "mean")
    found = json.loads((tmp_path / "mean" / "config.json").read_text())["average_of"]
    assert [source["step"] for source in found] == [10000, 900]
    transduce("average", tmp_path / "mean", names[0], "--out", tmp_path / "again")  # of a mean


def test_what_cannot_be_averaged_is_refused_and_nothing_is_written(run: Path, tmp_path: Path):
    out = tmp_path / "mean"

    def refused(match: str, *words: str | Path, kind: type[TransduceError] = BundleError) -> None:
        before = out.exists()
        with pytest.raises(kind, match=match):
            transduce("average", *words, "--out", out)
        assert out.exists() == before
        assert not list(tmp_path.glob(".*.part"))

    has = r"has 4 checkpoints \(steps 900, 1,000, 9,000, 10,000\), --last asks for 5"
    refused(has, run, "--last", "5")
    refused("not a training run", tmp_path)
    refused("one run; several models", run, run, "--last", "2")
    newest = checkpoint.path(run, 10000)
    (newest / "model.safetensors").rename(tmp_path / "weights")
    refused(rf"^{newest}/model.safetensors: No such file or directory$", run, "--last", "2")
    (tmp_path / "weights").rename(newest / "model.safetensors")
    config = json.loads((newest / "config.json").read_text())
    config["architecture"]["activation"] = "gelu"
    (newest / "config.json").write_text(json.dumps(config))
    refused(r"their config\.json differ in architecture", run, "--last", "2")
    shutil.copy(newest.parent / "step-9000" / "config.json", newest)
    (newest / "tokenizer.model").write_bytes(b"no model")
    refused(rf"{newest}/tokenizer.model", run, "--last", "2", kind=TokenizerError)
    out.mkdir()
    refused("exists; remove it, or name another folder", run, "--last", "1")


def test_numbers_that_are_not_finite_are_not_averaged(run: Path, tmp_path: Path):
    from safetensors.torch import save_file

    path = checkpoint.path(run, 9000) / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in weights(path.parent).items()}
    tensors[min(tensors)][0] = float("inf")
    save_file(tensors, path)
    (path.parent / "SHA256SUMS").unlink()  # as in a model from elsewhere
    with pytest.raises(BundleError, match=rf"^{path}: .* not finite"):
        transduce("average", run, "--last", "3", "--out", tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_two_at_once_do_not_take_each_others_result(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def meanwhile(*arguments: object, **named: object) -> None:
        original(*arguments, **named)
        monkeypatch.setattr(bundle, "save", original)
        transduce("average", run, "--last", "1", "--out", tmp_path / "mean")

    original = bundle.save
    monkeypatch.setattr(bundle, "save", meanwhile)
    with pytest.raises(BundleError, match="something has just taken its name"):
        transduce("average", run, "--last", "2", "--out", tmp_path / "mean")
    config = json.loads((tmp_path / "mean" / "config.json").read_text())
    assert len(config["average_of"]) == 1
    assert not list(tmp_path.glob(".*"))


def test_a_checkpoint_with_a_flipped_bit_is_not_averaged(run: Path, tmp_path: Path):
    path = checkpoint.path(run, 9000) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleError, match=r"step-9000 is damaged: its model\.safetensors is"):
        transduce("average", run, "--last", "3", "--out", tmp_path / "mean")
    transduce("average", run, "--last", "1", "--out", tmp_path / "mean")


def test_all_checkpoints_but_at_most_five_are_averaged_where_no_number_is_said(
    run: Path, tmp_path: Path
):
    def steps(out: Path) -> list[int]:
        transduce("average", run, "--out", out)
        sources = json.loads((out / "config.json").read_text())["average_of"]
        return [source["step"] for source in sources]

    assert steps(tmp_path / "four") == [900, 1000, 9000, 10000]
    for step in (90, 20000):
        shutil.copytree(checkpoint.path(run, 900), checkpoint.path(run, step))
    assert steps(tmp_path / "five") == [900, 1000, 9000, 10000, 20000]
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    with pytest.raises(BundleError, match="has no checkpoint yet"):
        steps(tmp_path / "none")


def test_the_last_record_of_a_run_is_found_at_the_end_of_its_metrics(run: Path):
    metrics = run / "metrics.jsonl"
    metrics.write_text('{"step": 3}\n' * 100_000 + '{"step": 7, "loss": 1.5}\n[7]\n{"step": 8, "lo')
    shutil.copytree(checkpoint.path(run, 900), run / "checkpoints" / "average", dirs_exist_ok=True)
    facts = describe(run / "checkpoints" / "average")["run"]
    assert (facts["step"], facts["last_step"], facts["finished"]) == (None, 7, False)
    metrics.write_text("")
    assert describe(checkpoint.path(run, 900))["run"]["last_step"] == 0


def test_a_checkpoint_that_goes_while_it_is_read_is_told(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def pruned(folders: list[Path]) -> None:
        checkpoint.prune(run, State(step=10000, best_step=10000, validated=[]))
        return original(folders)

    original = bundle.average
    monkeypatch.setattr(bundle, "average", pruned)
    with pytest.raises(RunError, match=r"step-1000 was removed while it was read.*try again"):
        transduce("average", run, "--last", "3", "--out", tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_a_run_resumes_at_its_highest_number(run: Path):
    assert checkpoint.steps(run) == [900, 1000, 9000, 10000]


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        # Keep-best with scores 2, 6, 4 at 900, 1000, 9000, and the newest: the best stays.
        (State(step=10000, best_step=1000, validated=[9000]), [1000, 9000, 10000]),
        (State(step=10000, best_step=9000, validated=[1000, 9000, 10000]), [1000, 9000, 10000]),
        (State(step=10000, best_step=900, validated=[10000]), [900, 10000]),
        (State(step=10000, best_step=10000, validated=[9000, 10000]), [9000, 10000]),
    ],
)
def test_the_newest_the_best_and_those_to_average_are_kept(run: Path, state: State, kept: list):
    checkpoint.prune(run, state)
    assert checkpoint.steps(run) == kept
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == sorted(
        ["average", *(f"step-{step}" for step in kept)]
    )


def test_info_tells_what_a_model_is(finished: Path):
    facts = json.loads(transduce("info", finished, "--json"))
    model = bundle.load(finished)
    count = {"embedding": 0, "encoder": 0, "decoder": 0}
    for part, module in (("encoder", model.model.encoder), ("decoder", model.model.decoder)):
        count[part] = sum(p.numel() for p in module.parameters())
    every = sum(p.numel() for p in model.model.parameters())
    count["embedding"] = every - count["encoder"] - count["decoder"]
    assert facts["parameters"] == {**count, "all": every}
    assert facts["vocabulary"]["source"] == model.source_tokenizer.size
    assert facts["weights"]["sha256"] == sha256(finished / "best" / "model.safetensors")
    assert facts["run"]["finished"]
    assert facts["run"]["best"]
    assert facts["run"]["last_step"] == 20
    assert (facts["licence"], facts["note"]) == ("CC0-1.0", "a test")
    assert any(line.startswith("BLEU") for line in facts["scores"])
    assert any("300 pairs read" in line for line in facts["text"])


def test_the_verbs_are_on_the_command_line(finished: Path, tmp_path: Path):
    mean = command.transduce("average", finished, "--last", "2", "--out", tmp_path / "mean")
    assert (mean.status, mean.text) == (0, "")
    assert mean.errors == f"the mean of step-15, step-20 is in {tmp_path / 'mean'}\n"
    again = command.transduce("average", finished, "--last", "2", "--out", tmp_path / "mean")
    assert again.status == 2
    assert again.errors.startswith("error: --out ")
    assert json.loads(command.transduce("info", tmp_path / "mean", "--json").text)["run"] is None
    assert command.transduce("info", tmp_path / "mean").text.startswith("model ")


def test_info_is_a_table_to_read(finished: Path):
    text = transduce("info", finished / "checkpoints" / "step-20")
    for words in ("en to nl", "CC0-1.0", "1 encoder and 1 decoder", "step 20", "277 subwords"):
        assert words in text
    assert "its best" not in text
    named = str(finished.parent)
    assert max(len(line) for line in text.splitlines() if named not in line) <= 80
    assert sum(" sha256 " in line for line in text.splitlines()) == 2


def test_a_copy_and_a_mean_have_no_run_and_no_score_of_their_own(finished: Path, tmp_path: Path):
    shutil.copytree(finished / "best", tmp_path / "copy")
    facts = json.loads(transduce("info", tmp_path / "copy", "--json"))
    assert facts["run"] is None
    assert facts["scores"]
    transduce("average", finished, "--last", "2", "--out", tmp_path / "mean")
    facts = json.loads(transduce("info", tmp_path / "mean", "--json"))
    assert facts["scores"] == []
    assert [source["name"] for source in facts["average_of"]] == ["step-15", "step-20"]


def test_info_of_a_strangers_words_moves_no_cursor(finished: Path, tmp_path: Path):
    model = tmp_path / "model"
    shutil.copytree(finished / "best", model)
    config = json.loads((model / "config.json").read_text())
    config["licence"] = "\x1b[2Jfree\nerror: no"
    config["average_of"] = [{"name": "\x1b[31m" * 100}, 3, None]
    (model / "config.json").write_text(json.dumps(config))
    (model / "model_card.md").write_text("## Text\n\x1b]0;title\x07\n" * 1000)
    text = transduce("info", model)
    assert all(line.isprintable() for line in text.split("\n"))
    assert "\nerror: no" not in text
