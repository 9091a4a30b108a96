"""What is not said is chosen from the corpus, sensibly, and told; what is said stays."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from transduce.config import load
from transduce.errors import SettingsError
from transduce.train.config import TrainConfig
from transduce.train.defaults import Choices, choose, choose_vocab_size
from transduce.train.schedule import noam


def chosen(*overrides: str, pairs: int = 29_000, tokens: int | None = None) -> Choices:
    config = load(TrainConfig, None, ["tsv=text", *overrides])
    return choose(config, pairs=pairs, tokens=tokens or 15 * pairs, vocab_sizes=(300, 300))


def highest_rate(choices: Choices) -> float:
    settings, d_model = choices.chosen, choices.architecture.d_model
    steps = range(1, settings.max_steps + 1)
    return settings.learning_rate_scale * max(noam(s, d_model, settings.warmup) for s in steps)


@pytest.mark.parametrize("pairs", [50, 2_000, 5_000, 29_000, 55_000, 300_000])
@pytest.mark.parametrize("steps", [None, 20, 150, 5_000])
def test_no_corpus_and_no_length_makes_the_rate_too_high(pairs: int, steps: int | None):
    said = () if steps is None else (f"train.max_steps={steps}",)
    # 0.0094 and more taught a post-norm model of this size nothing; 0.0034 teaches it well. A
    # pre-norm one learns well at 0.0084.
    for_text = chosen(*said, pairs=pairs)
    pre = for_text.architecture.norm == "pre"
    assert pre == (20_000 < pairs <= 100_000)
    assert 0.0005 < highest_rate(for_text) <= (0.0086 if pre else 0.0036)
    for named in ("model.norm=post", "model.preset=tiny", "model.preset=base"):
        assert 0.0005 < highest_rate(chosen(*said, named, pairs=pairs)) <= 0.0036


@pytest.mark.parametrize(("name", "norm"), [("tiny", "pre"), ("tiny", "post"), ("base", "post")])
@pytest.mark.parametrize("pairs", [2_000, 29_000, 300_000])
def test_a_model_that_is_fine_tuned_soon_has_a_third_of_the_rate(
    tmp_path: Path, name: str, norm: str, pairs: int
):
    new = chosen(f"model.preset={name}", f"model.norm={norm}", pairs=pairs)
    start = {"format": 1, "architecture": new.architecture.model_dump(mode="json")}
    (tmp_path / "config.json").write_text(json.dumps(start))
    tuned = chosen(f"start_from={tmp_path}", pairs=pairs)
    assert tuned.chosen.warmup == 100
    assert tuned.architecture == new.architecture
    assert highest_rate(tuned) == pytest.approx(highest_rate(new) / 3, rel=0.01)
    given = chosen(f"start_from={tmp_path}", "train.learning_rate_scale=1", pairs=pairs)
    assert highest_rate(given) > highest_rate(tuned)


def test_who_names_a_model_gets_it_as_the_paper_has_it():
    for_text = chosen()
    assert (for_text.architecture.norm, for_text.chosen.ema_decay) == ("pre", 0.999)
    assert {"norm", "ema_decay"} <= {reason.split()[0] for reason in for_text.reasons}
    for name in ("tiny", "base"):
        named = chosen(f"model.preset={name}")
        assert (named.architecture.norm, named.chosen.ema_decay) == ("post", 0)
        assert not {"norm", "ema_decay"} & {reason.split()[0] for reason in named.reasons}
    assert chosen("train.ema_decay=0").chosen.ema_decay == 0
    said = chosen("model.norm=pre", pairs=500_000)
    assert "norm" not in {reason.split()[0] for reason in said.reasons}
    wide = chosen("model.norm=pre", "model.preset=small")
    assert highest_rate(wide) < 0.0036  # only a tiny one has been seen to bear more


def test_more_text_makes_a_larger_model_of_less_dropout():
    sizes = [chosen(pairs=n) for n in (1_000, 29_000, 500_000, 4_500_000, 36_000_000)]
    widths = [choices.architecture.d_model for choices in sizes]
    assert widths == sorted(widths)
    assert widths == [128, 128, 256, 512, 1024]
    dropouts = [choices.architecture.dropout for choices in sizes]
    assert dropouts == sorted(dropouts, reverse=True)


def test_little_text_is_read_more_often():
    def passes(choices: Choices, tokens: int) -> float:
        return choices.chosen.max_steps * choices.chosen.batch_tokens / tokens

    often = [passes(chosen(pairs=n), 15 * n) for n in (2_000, 29_000, 500_000, 4_500_000)]
    assert often == sorted(often, reverse=True)


def test_what_is_said_stays():
    said = {
        "max_steps": 77,
        "batch_tokens": 999,
        "warmup": 5,
        "learning_rate_scale": 9.0,
        "validate_every": 3,
        "save_every": 2,
    }
    choices = chosen(*(f"train.{name}={value}" for name, value in said.items()))
    assert choices.chosen.model_dump(include=set(said)) == said
    choices = chosen("model.preset=big", "model.d_ff=512", "model.norm=pre")
    assert choices.architecture.d_model == 1024
    assert choices.architecture.d_ff == 512
    assert choices.architecture.norm == "pre"
    assert choices.architecture.dropout == 0.3  # the preset's own


def test_each_choice_is_told_with_a_reason():
    reasons = " ".join(chosen().reasons)
    for name in ("vocabulary", "model", "dropout", "batch_tokens", "max_steps", "warmup"):
        assert f"{name} " in reasons
    assert "learning_rate_scale" in reasons
    assert "max_steps" not in " ".join(chosen("train.max_steps=9").reasons)


def test_the_vocabulary_has_room_for_the_characters():
    config = load(TrainConfig, None, ["tsv=text"])
    assert choose_vocab_size(config, pairs=29_000, characters=90) == 7_000
    assert choose_vocab_size(config, pairs=300, characters=90) == 4_000
    assert choose_vocab_size(config, pairs=300, characters=4_500) > 4_760
    said = load(TrainConfig, None, ["tsv=text", "tokenizer.vocab_size=555"])
    assert choose_vocab_size(said, pairs=300, characters=4_500) == 555


def test_two_tokenizers_are_not_tied():
    assert chosen("tokenizer.shared=false").architecture.tie == "decoder"


def test_lengths_that_do_not_fit_are_refused_or_made_to_fit():
    assert chosen("data.max_length=3000").architecture.max_length == 3001
    with pytest.raises(SettingsError, match=r"data\.max_length=250 does not fit"):
        chosen("model.max_length=100")


@pytest.mark.parametrize("setting", ["model.dropout=5", "model.heads=0", "train.adam_betas=[1, 2]"])
def test_fields_of_a_model_keep_their_limits_where_they_are_optional(setting: str):
    with pytest.raises((SettingsError, ValidationError)):
        chosen(setting)
