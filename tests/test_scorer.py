"""The scorer: equal to step-by-step decoding, to the loss, and to itself in any company."""

import json
import logging
import math
import random

import pytest
import torch

from transduce.bundle import Bundle
from transduce.data.batching import collate
from transduce.decode import scorer
from transduce.decode.scorer import Scored, force, perplexity, score_lines
from transduce.decode.stepper import ModelStepper
from transduce.decode.translator import Translator
from transduce.errors import DataError
from transduce.ids import BOS, EOS
from transduce.model.config import TransformerConfig
from transduce.model.loss import smoothed_loss
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import TokenizerConfig, train_tokenizer

WORDS = "this old dog likes every quiet bird paints the tree boat horse child sees a red small cat"
PAIRS = [
    ("this old dog likes every boat", "a red cat"),
    ("every quiet bird " * 3 + "paints the tree", "the tree"),
    (".", ""),
    ("", ""),
    ("the old child sees a dog", "the old child sees a dog and a horse"),
    ("a", "every quiet bird paints"),
    (" \t ", "\u2028"),
    ("this red cat " * 4, "ß"),
    ("", "the boat"),
    ("the red horse paints a boat", "a  boat "),
]


@pytest.fixture(scope="module")
def loaded() -> Bundle:
    words = WORDS.split()
    texts = [" ".join(words[i % 18 :: 1 + i % 4]) for i in range(90)]
    tokenizer = train_tokenizer(texts, TokenizerConfig(), vocab_size=320)
    torch.manual_seed(13)
    config = TransformerConfig(
        source_vocab_size=tokenizer.size, target_vocab_size=tokenizer.size, d_model=32, heads=2,
        d_ff=64, encoder_layers=2, decoder_layers=2, max_length=64, tie="none",
    )  # fmt: skip
    model = Transformer(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so that the output depends on the source
            parameter.mul_(1.7)
        model.output.weight[4:260] = 0  # the bytes are unlikely, an end now and then likely
        model.output.weight[EOS] *= 4
    return Bundle(model, tokenizer, tokenizer, {})


def by_steps(loaded: Bundle, source: list[int], target: list[int]) -> list[float]:
    """What search would add up on its way along the target."""
    stepper = ModelStepper(
        loaded.model, torch.tensor([[*source, EOS]]), width=1, capacity=len(target) + 1
    )
    found = []
    for last, following in zip([BOS, *target], [*target, EOS], strict=True):
        found.append(float(stepper.score(torch.tensor([last]))[0, following]))
    return found


def test_a_given_translation_costs_what_it_costs_step_by_step(loaded: Bundle):
    encode = loaded.source_tokenizer.encode
    found = score_lines(loaded, *map(list, zip(*PAIRS, strict=True)))
    seen = set()
    for (source, target), scored in zip(PAIRS, found, strict=True):
        if not (source + target).strip():
            assert scored == Scored()
            continue
        expected = by_steps(loaded, encode(source), encode(target))
        assert scored.token_log_probs == pytest.approx(expected, abs=1e-4)
        assert scored.log_prob == pytest.approx(sum(expected), abs=1e-4)
        assert len(scored.tokens) == len(expected) - 1
        assert scored.perplexity == pytest.approx(
            math.exp(-sum(expected) / len(expected)), rel=1e-4
        )
        seen.add(round(scored.log_prob, 3))
    assert len(seen) == 8
    empty = found[2]
    assert empty.tokens == ()
    assert len(empty.token_log_probs) == 1  # P(end)


@pytest.mark.parametrize("beam", [1, 4])
def test_what_search_found_has_the_log_prob_that_search_gave_it(loaded: Bundle, beam: int):
    """Claim 80, where the text goes back into the same pieces."""
    draw = random.Random(2)
    sources = [" ".join(draw.choices(WORDS.split(), k=draw.randint(1, 9))) for _ in range(60)]
    translations = Translator(loaded).translate(sources, beam=beam, max_length=25)
    found = score_lines(loaded, sources, [one.text for one in translations])
    same = 0
    for translation, scored in zip(translations, found, strict=True):
        if translation.tokens == scored.tokens:
            assert scored.log_prob == pytest.approx(translation.log_prob, abs=1e-4)
            assert scored.token_log_probs == pytest.approx(translation.token_log_probs, abs=1e-4)
            same += 1
    assert same > 5


def test_a_score_depends_on_its_pair_alone(loaded: Bundle):
    sources, targets = map(list, zip(*PAIRS, strict=True))

    def log_probs(order: list[int], **options: int) -> list[float]:
        found = score_lines(
            loaded, [sources[i] for i in order], [targets[i] for i in order], **options
        )
        return [one.log_prob for _, one in sorted(zip(order, found, strict=True))]

    together = log_probs(list(range(len(PAIRS))))
    alone = [score_lines(loaded, [s], [t])[0].log_prob for s, t in PAIRS]
    assert together == pytest.approx(alone, abs=1e-4)
    for seed in range(3):
        order = random.Random(seed).sample(range(len(PAIRS)), len(PAIRS))
        assert log_probs(order) == pytest.approx(together, abs=1e-4)
    for tokens in (1, 40, 100):
        assert log_probs(list(range(len(PAIRS))), batch_tokens=tokens) == pytest.approx(
            together, abs=1e-4
        )


def test_batches_hold_what_they_may(loaded: Bundle, monkeypatch: pytest.MonkeyPatch):
    shapes = []
    decode = loaded.model.decode

    def watch(
        decoder_input: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        shapes.append((*memory.shape[:2], decoder_input.shape[1]))
        return decode(decoder_input, memory, mask)

    monkeypatch.setattr(loaded.model, "decode", watch)
    sources, targets = map(list, zip(*PAIRS, strict=True))
    score_lines(loaded, sources * 5, targets * 5, batch_tokens=60)
    assert sum(rows for rows, _, _ in shapes) == 5 * 8
    assert all(rows * max(s, t) <= 60 or rows == 1 for rows, s, t in shapes)
    assert max(rows for rows, _, _ in shapes) > 1


def test_logits_exist_a_few_at_a_time(loaded: Bundle, monkeypatch: pytest.MonkeyPatch):
    sources, targets = map(list, zip(*PAIRS, strict=True))
    whole = score_lines(loaded, sources, targets)
    sizes = []
    handle = loaded.model.output.register_forward_hook(lambda *of: sizes.append(of[2].numel()))
    monkeypatch.setattr(scorer, "_LOGITS", 10_000)
    parts = score_lines(loaded, sources, targets)
    handle.remove()
    assert len(sizes) > 3
    assert max(sizes) <= 10_000
    for one, other in zip(whole, parts, strict=True):
        assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-5)


def test_the_sum_is_the_loss_that_training_knows(loaded: Bundle):
    encode = loaded.source_tokenizer.encode
    pairs = [(encode(source), encode(target)) for source, target in PAIRS]
    batch = collate(pairs)
    loss = smoothed_loss(loaded.model(batch.source, batch.decoder_input), batch.labels, 0.0)
    found = force(loaded.model, pairs, 100)
    assert sum(len(each) for each in found) == batch.tokens
    assert -sum(map(sum, found)) == pytest.approx(float(loss.plain), rel=1e-5)


def test_nothing_to_score(loaded: Bundle):
    assert score_lines(loaded, [], []) == []
    assert score_lines(loaded, ["", " "], ["", ""]) == [Scored()] * 2
    assert force(loaded.model, [], 10) == []
    assert Scored().perplexity == 1
    assert Scored().log_prob == 0


def test_a_target_that_does_not_fit_is_refused_and_the_longest_fits(loaded: Bundle):
    encode = loaded.target_tokenizer.encode
    longest = "ß" * 29 + "a b"
    while len(encode(longest)) > 63:
        longest = longest[1:]
    while len(encode(longest)) < 63:
        longest += "ß"[: 63 - len(encode(longest))]
    assert len(encode(longest)) == 63
    [found] = score_lines(loaded, ["a"], [longest])
    assert len(found.token_log_probs) == 64
    with pytest.raises(DataError, match=r"line 12: the target's .* more than the 63"):
        score_lines(loaded, ["a", "b"], ["a", longest + " a"], numbers=[11, 12])


def test_a_source_that_is_too_long_is_cut_as_translate_cuts_it(
    loaded: Bundle, caplog: pytest.LogCaptureFixture
):
    long = "this old dog likes every boat " * 40
    with caplog.at_level(logging.WARNING):
        one, other = score_lines(loaded, ["a", long], ["a cat", "a cat"])
        Translator(loaded).translate(["a", long], beam=1, max_length=5)
    first, second = [record.getMessage() for record in caplog.records]
    assert first == second
    assert "line 2" in first
    assert [one.source_cut, other.source_cut] == [False, True]
    encode = loaded.source_tokenizer.encode
    expected = by_steps(loaded, encode(long)[:63], encode("a cat"))
    assert other.token_log_probs == pytest.approx(expected, abs=1e-4)


def test_a_perplexity_is_always_a_number():
    assert perplexity(0.0, 0) == 1
    assert perplexity(-2 * math.log(8), 2) == pytest.approx(8)
    assert json.loads(json.dumps(perplexity(-1e9, 1), allow_nan=False)) > 1e300
