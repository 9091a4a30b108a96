"""A trace holds what the model did with a sentence, and its document what the page reads."""

import base64
import copy
import itertools
import json
import logging
import math
import random

import contract
import jaxtyping
import numpy as np
import pytest
import torch
from pages import stored
from tracing import hooks, without

from transduce import Translator, trace
from transduce.bundle import Bundle
from transduce.data.batching import collate
from transduce.decode.scorer import score_lines
from transduce.decode.search import SearchOptions
from transduce.errors import DataError, SettingsError, TraceError
from transduce.ids import BOS, EOS, PAD, UNK
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import TokenizerConfig, train_tokenizer
from transduce.trace import answers as answers_module
from transduce.trace import document as document_module
from transduce.trace.record import record

R53 = """\
one
item 0401 this old dog likes every boat
item 0402 every quiet bird paints the tree item 0403 the old child sees a dog

a a a a a a
"""
"""The lines of R53, with an empty one."""

TARGET = "le chien dort ."
STEPS = 40
WORDS = [
    *("one", "item", "this", "old", "dog", "likes", "every", "boat", "quiet", "bird", "paints"),
    *("the", "tree", "child", "sees", "a", "0401", "le", "chien", "dort", "."),
    *("هذا", "كلب", "犬が走る", "猫", "дом"),
]


def texts(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 8))) + " ." for _ in range(count)]


def make_tokenizer(seed: int):
    return train_tokenizer(texts(seed, 200), TokenizerConfig(), vocab_size=420)


def make(seed: int, source, target, *, max_length: int = 64, **changes) -> Bundle:
    """A model that has learnt a little: its outputs depend on the source, and come to an end."""
    torch.manual_seed(seed)
    settings = {"d_model": 32, "heads": 2, "d_ff": 64, "encoder_layers": 1, "decoder_layers": 2}
    config = TransformerConfig(
        source_vocab_size=source.size, target_vocab_size=target.size,
        max_length=max_length, **(settings | {"tie": "none", "dropout": 0.0} | changes),
    )  # fmt: skip
    model = Transformer(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        some = [(source.encode(t)[:14], target.encode(t)[:14]) for t in texts(step, 16)]
        batch = collate(some)
        logits = model(batch.source, batch.decoder_input).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, batch.labels.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    about = {"source_language": "en", "target_language": "", "licence": ""}
    return Bundle(model.eval(), source, target, about)


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(1)


@pytest.fixture(scope="module")
def bundles(tokenizer):
    """Post- and pre-norm, tied and not, one vocabulary and two."""
    return [
        make(1, tokenizer, tokenizer),
        make(2, tokenizer, tokenizer, tie="all", norm="pre", heads=4),
        make(3, tokenizer, make_tokenizer(2), norm="pre", d_k=5, d_v=7),
        make(4, tokenizer, make_tokenizer(2), tie="decoder", positions="learned"),
    ]


@pytest.fixture(scope="module")
def translator(bundles):
    return Translator(bundles[0])


def decoded(tensor: dict) -> np.ndarray:
    return np.frombuffer(base64.b64decode(tensor["f32"]), "<f4").reshape(tensor["shape"])


@pytest.mark.parametrize("beam", [1, 5])
def test_r53_maps_have_a_row_for_each_output_and_a_column_for_each_source_token(bundles, beam):
    lines = R53.splitlines()
    for bundle in bundles[beam // 2 : beam // 2 + 2]:
        translator = Translator(bundle)
        together = translator.translate(lines, beam=beam, max_length=None)
        found = [trace(translator, line, beam=beam) for line in lines]
        pairs = [(list(one.source[:-1]), list(one.labels[:-1])) for one in found if one.source]
        batch = collate(pairs)
        with torch.no_grad(), record(bundle.model, "*.weights") as tape:
            bundle.model(batch.source, batch.decoder_input)
        row = 0
        for line, one, translation in zip(lines, found, together, strict=True):
            assert one.text == line
            assert one.target == translation.text
            if not line:
                assert not one.source
                assert not one.labels
                assert not one.tensors
                continue
            assert translation.tokens == tuple(
                bundle.target_tokenizer.pieces(one.labels[:-1])
            )  # alone and in a batch
            source = [*bundle.source_tokenizer.encode(line), EOS]
            assert list(one.source) == source
            assert list(one.decoder_input) == [BOS, *one.labels[:-1]]
            assert one.labels[-1] == EOS
            axes = {"encoder": (source, source), "decoder": (one.labels, one.labels)}
            for name, weights in tape.items():
                queries, keys = axes[name.split(".")[0]]
                keys = source if "cross" in name else keys
                mine = one.tensors[name]
                assert mine.shape == (bundle.model.config.heads, len(queries), len(keys))
                assert torch.allclose(mine.sum(-1), torch.ones(1), atol=1e-5)
                whole = weights[row]
                # The forced pass over all lines, padded to the longest.
                assert torch.allclose(mine, whole[:, : len(queries), : len(keys)], atol=1e-5)
                assert not whole[:, : len(queries), len(keys) :].any()
            assert one.ok
            assert {each.id for each in one.invariants if each.checked} >= {
                *("axes", "rows_sum_1", "causal_zero", "pad_zero", "replay"),
                *("batched_equals_single", "incremental_equals_teacher", "search_equals_forced"),
            }
            row += 1


def test_the_document_is_what_the_page_reads(bundles):
    for bundle, target in itertools.product(bundles, (None, TARGET)):
        asked = bundle is bundles[2] and target is None
        one = trace(Translator(bundle), "this old dog likes é犬", target, answers=asked)
        payload = contract.read(one.to_json())
        (found,) = payload["traces"]
        names = [step["name"] for step in found["steps"]]
        assert set(found["tensors"]) == set(names)
        for step in found["steps"]:
            numbers = decoded(found["tensors"][step["name"]])
            assert list(numbers.shape) == step["shape"]
            assert np.array_equal(numbers, one.tensors[step["name"]].numpy())
            for name in step["inputs"]:
                known = {"source", "decoder_input", "source_mask", "target_mask"}
                assert name in known or names.index(name) < names.index(step["name"])
        told = (found["source"]["tokens"], found["target"]["input"], found["target"]["labels"])
        assert [[token["id"] for token in tokens] for tokens in told] == [
            *(list(ids) for ids in (one.source, one.decoder_input, one.labels))
        ]
        s, t = len(one.source), len(one.labels)
        assert np.array_equal(found["masks"]["source"], np.ones(s, dtype=bool))
        assert np.array_equal(found["masks"]["target"], np.tri(t, dtype=bool))
        columns = found["padded"]["columns"]
        assert columns > 0
        for name, weights in found["padded"]["weights"].items():
            rows, keys = step_shape(found, name)[1:]
            assert weights["shape"][1:] == [rows, keys + columns]
            assert not decoded(weights)[:, :, keys:].any()
        assert set(found["padded"]["weights"]) == {n for n in names if n.endswith(".weights")}
        for name, weights in found["cached"]["weights"].items():
            assert name.startswith("decoder.")
            again = decoded(found["tensors"][name])
            assert decoded(weights) == pytest.approx(again, abs=1e-4)
        assert len(found["cached"]["weights"]) == 2 * len(bundle.model.decoder)
        counted = sum(parameter.numel() for parameter in bundle.model.parameters())
        parameters = payload["model"]["parameters"]
        assert parameters["total"] == counted == sum(parameters["by_module"].values())
        assert payload["model"]["source_language"] == "en"
        assert payload["model"]["target_language"] is None


def step_shape(found, name):
    return next(step["shape"] for step in found["steps"] if step["name"] == name)


def test_the_contract_is_that_of_the_pages_own_types():
    for kind in (
        *("Tensor", "Token", "Step", "Invariant", "ModelInfo", "Search", "SearchNode"),
        *("Hypothesis", "Continuation", "Answer", "Trace", "Payload"),
    ):
        fields = getattr(contract, kind).__annotations__.keys()
        assert contract.fields_of_the_page(kind) == set(fields), kind


def test_distributions_are_those_of_a_forced_pass(bundles):
    for bundle in bundles:
        source, target = "every quiet bird paints the tree", "le chien dort . 犬"
        one = trace(Translator(bundle), source, target)
        with torch.no_grad():
            logits = bundle.model(torch.tensor([one.source]), torch.tensor([one.decoder_input]))
        z = logits[0].double().numpy()
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        places = np.arange(len(one.labels))
        assert one.output.log_probs == pytest.approx(np.log(p[places, one.labels]), abs=1e-6)
        assert one.output.entropy == pytest.approx(-(p * np.log(p)).sum(1), abs=1e-6)
        for place, label in enumerate(one.labels):
            order = sorted(range(z.shape[1]), key=lambda i: (-z[place, i], i))
            assert [token for token, _, _ in one.output.top[place]] == order[:10]
            assert one.output.rank[place] == order.index(label) + 1
            for token, logit, share in one.output.top[place]:
                assert logit == pytest.approx(z[place, token])
                assert share == pytest.approx(p[place, token])
        (scored,) = score_lines(bundle, [source], [target])
        assert math.fsum(one.output.log_probs) == pytest.approx(scored.log_prob, abs=1e-5)


def test_without_a_target_it_is_the_translation(bundles):
    text = "this old dog likes every boat"
    searches = [(1, 0.6), (2, 0.0), (4, 0.6), (5, 1.5)]
    for bundle, (beam, alpha) in zip(bundles, searches, strict=True):
        translator = Translator(bundle)
        one = trace(translator, text, beam=beam, alpha=alpha)
        wanted = translator.translate(text, beam=beam, alpha=alpha)
        best = one.beam.finished[0][1]
        assert (one.target, best.score, best.log_prob) == (
            wanted.text, wanted.score, wanted.log_prob,
        )  # fmt: skip
        assert one.greedy.finished[0][1].log_prob == translator.translate(text, beam=1).log_prob
        assert not one.given
        (checked,) = [each for each in one.invariants if each.id == "search_equals_forced"]
        assert checked.checked == 1
        assert math.fsum(one.output.log_probs) == pytest.approx(wanted.log_prob, abs=1e-4)
        found = contract.read(one.to_json())["traces"][0]["searches"]
        assert found["greedy"]["beam"] == 1
        assert found["beam"]["beam"] == beam
        hypothesis = found["beam"]["hypotheses"][0]
        assert hypothesis["penalty"] == ((5 + hypothesis["length"]) / 6) ** alpha
        assert hypothesis["score"] == hypothesis["sum"] / hypothesis["penalty"]
        assert found["beam"]["nodes"][hypothesis["node"]]["token"]["piece"] == "EOS"


def test_a_given_target_is_traced_and_searched_beside(translator):
    one = trace(translator, "this old dog", TARGET)
    assert one.given
    assert one.target == TARGET
    assert translator.bundles[0].target_tokenizer.decode(one.labels) == TARGET
    assert one.beam.finished[0][1] == trace(translator, "this old dog").beam.finished[0][1]
    best = trace(translator, "this old dog").target
    again = trace(translator, "this old dog", best)
    assert {each.checked for each in again.invariants if "search" in each.id} <= {0, 1}
    empty = trace(translator, "this old dog", "")
    assert list(empty.labels) == [EOS]
    assert empty.ok


@pytest.mark.parametrize("text", ["", " ", "\t\n", "\u2028\u2581"])
def test_a_blank_text_has_an_empty_trace(translator, text):
    for target in (None, "", "  "):
        one = trace(translator, text, target, answers=True)
        (found,) = contract.read(one.to_json())["traces"]
        assert found["source"]["tokens"] == found["target"]["labels"] == found["steps"] == []
        assert found["tensors"] == found["cached"]["weights"] == {}
        assert found["output"]["log_prob"] == 0
        assert found["searches"]["beam"]["nodes"] == []
        assert one.ok
    assert trace(translator, text, "le").labels  # of nothing comes something


@pytest.mark.parametrize(
    "text",
    ["هذا كلب", "犬が走る 猫", "ä🦊\u200f", "a\u0301b", "\ud800x", "<s> </s> <0x41>", "x" * 50],
)
def test_pieces_of_all_writings(bundles, text):
    for bundle in bundles[::2]:
        one = trace(Translator(bundle), text, text)
        (found,) = contract.read(one.to_json())["traces"]
        json.dumps(found, ensure_ascii=False).encode("utf-8")  # no half of a pair is left
        tokens = found["source"]["tokens"]
        assert [token["piece"] for token in tokens if token["special"]] == ["EOS"]
        assert found["target"]["input"][0] == {"id": BOS, "piece": "BOS", "special": True}
        assert found["target"]["labels"][-1] == {"id": EOS, "piece": "EOS", "special": True}
        ids = [token["id"] for token in tokens[:-1]]
        assert bundle.source_tokenizer.decode(ids) == one.text
        assert one.ok
    if "🦊" in text:
        assert "<0xF0>" in [token["piece"] for token in tokens]


def test_the_marks_have_names(tokenizer):
    shown = document_module.pieces(tokenizer, [PAD, BOS, EOS, UNK])
    assert shown == ["PAD", "BOS", "EOS", "UNK"]


def test_a_long_source_is_cut_and_a_long_target_refused(tokenizer, caplog):
    bundle = make(5, tokenizer, tokenizer, max_length=16)
    with caplog.at_level(logging.WARNING):
        one = trace(Translator(bundle), "dog " * 40)
    assert "more than the model reads; cut after 15" in caplog.text
    assert one.source_cut
    assert contract.read(one.to_json())["traces"][0]["source"]["cut"]
    assert len(one.source) == 16
    assert len(one.labels) <= 16
    assert one.ok
    assert one.target == Translator(bundle).translate("dog " * 40).text
    fits = bundle.target_tokenizer.decode(bundle.target_tokenizer.encode("dog " * 40)[:15])
    assert len(trace(Translator(bundle), "dog", fits, answers=True).labels) == 16
    with pytest.raises(DataError, match="more than the 15 that the model can write; shorten it"):
        trace(Translator(bundle), "dog", "dog " * 40)


def test_what_is_forced_stands_first(translator):
    tokenizer = translator.bundles[0].target_tokenizer
    prefix = tokenizer.encode("le chien")
    one = trace(translator, "this old dog", prefix=prefix)
    assert list(one.labels[: len(prefix)]) == prefix
    assert one.prefix == len(prefix)
    assert one.target == translator.translate("this old dog", prefix="le chien").text
    assert one.ok
    ended = trace(translator, "this old dog", prefix=[*prefix, EOS])
    assert list(ended.labels) == [*prefix, EOS]


def test_continuations_are_greedy_search_after_a_forced_token(bundles):
    for bundle in bundles[2:3]:
        model = bundle.model
        one = trace(Translator(bundle), "this old dog", "le chien dort", answers=True)
        assert one.continuations is not None
        assert len(one.continuations) == answers_module.FORCED * len(one.labels)

        def scores(prefix, model=model, one=one):
            with torch.no_grad():
                logits = model(torch.tensor([one.source]), torch.tensor([[BOS, *prefix]]))[0, -1]
            return logits.log_softmax(-1)

        limit = SearchOptions().limit(len(one.source) - 1)
        for position, group in itertools.groupby(one.continuations, lambda each: each.position):
            before, label = list(one.labels[:position]), one.labels[position]
            row = scores(before).tolist()
            ways = [i for i in range(len(row)) if i not in (PAD, BOS, UNK, label)]
            ways.sort(key=lambda i: (-row[i], i))
            some = list(group)
            assert [each.token for each in some] == ways[: answers_module.FORCED]
            for each in some[:2]:
                tokens, total = [*before, each.token], 0.0
                for place, token in enumerate(tokens):
                    total += scores(tokens[:place])[token].item()
                while tokens[-1] != EOS:
                    row = scores(tokens)
                    row[[PAD, BOS, UNK]] = -math.inf
                    best = int(row.argmax()) if len(tokens) + 1 < limit else EOS
                    total += row[best].item()
                    tokens.append(best)
                assert [*each.found.tokens, EOS] == tokens
                assert each.found.log_prob == pytest.approx(total, abs=1e-3)


def test_answers_are_those_of_the_model_without_the_heads(bundles):
    for bundle in bundles[2:3]:
        one = trace(Translator(bundle), "this old dog", "le chien dort", answers=True)
        heads, blocks = bundle.model.config.heads, 1 + 2 * 2
        assert one.answers is not None
        assert sorted(len(each.off) for each in one.answers) == sorted(
            # The pattern of the encoder is its one block.
            [1] * heads * blocks + [heads] * blocks + [2 * heads] * 2
        )
        assert len({tuple(each.off) for each in one.answers}) == len(one.answers)
        for each in one.answers:
            other = bundle._replace(model=without(bundle.model, each.off))
            wanted = Translator(other).translate("this old dog", beam=1)
            assert bundle.target_tokenizer.decode(each.found.tokens) == wanted.text
            assert each.found.log_prob == pytest.approx(wanted.log_prob, abs=1e-3)
            (scored,) = score_lines(other, ["this old dog"], ["le chien dort"])
            assert each.log_probs == pytest.approx(scored.token_log_probs, abs=1e-4)


def test_a_trace_with_heads_off_is_that_of_the_model_without_them(bundles):
    off = [("decoder.0.cross_attention", 1), ("encoder.0.self_attention", 0)]
    for bundle in bundles[1:3]:
        one = trace(Translator(bundle), "this old dog", beam=3, off=[*off, off[0]])
        other = trace(
            Translator(bundle._replace(model=without(bundle.model, off))), "this old dog", beam=3
        )
        assert one.ok
        assert one.target == other.target
        assert torch.allclose(one.tensors["output"], other.tensors["output"], atol=1e-4)
        assert not one.tensors["decoder.0.cross_attention.heads"][1].any()
        assert contract.read(one.to_json())["traces"][0]["off"] == [list(each) for each in off]
        again = trace(Translator(bundle), "this old dog", beam=3)
        assert again.tensors["encoder.0.self_attention.heads"][0].any()  # it is over


def test_too_many_answers_are_left_out_and_it_is_said(translator, monkeypatch):
    monkeypatch.setattr(answers_module, "MOST_ANSWERS", 9)
    monkeypatch.setattr(answers_module, "MOST_FORCED", 1)
    one = trace(translator, "dog", "le", answers=True)
    assert one.answers is not None
    assert max(len(each.off) for each in one.answers) == 4
    assert all(len(each.off) > 1 for each in one.answers)
    assert {each.position for each in one.continuations or ()} == {0}
    (found,) = contract.read(one.to_json())["traces"]
    assert "answers with heads switched off: 10 are too many" in found["left_out"]
    assert "continuations after the first 1 pieces: there are 2" in found["left_out"]


def test_what_would_be_too_large_is_left_out_and_it_is_said(translator, monkeypatch):
    one = trace(translator, "dog", "le")
    names = {name for name in one.tensors if name.endswith(".weights")}
    monkeypatch.setattr(document_module, "MOST_NUMBERS", 2000)
    (found,) = contract.read(one.to_json())["traces"]
    assert set(found["tensors"]) == set(found["padded"]["weights"]) == names
    assert "all tensors but attention weights: " in found["left_out"]
    monkeypatch.setattr(document_module, "MOST_NUMBERS", 20)
    (found,) = contract.read(one.to_json())["traces"]
    assert found["tensors"] == found["cached"]["weights"] == {}
    assert found["left_out"].startswith("all tensors: ")


def test_what_cannot_be_traced_is_refused(bundles, translator):
    with pytest.raises(TraceError, match="an ensemble of 2"):
        trace(Translator(bundles[0], bundles[1]), "dog")
    half = bundles[0]._replace(model=copy.deepcopy(bundles[0].model).bfloat16())
    with pytest.raises(TraceError, match="trace them as float32"):
        trace(Translator(half), "dog")
    with pytest.raises(TraceError, match="leave one of them out"):
        trace(translator, "dog", "le", prefix=[300])
    for prefix in ([0], [3], [EOS, 300], [10_000], [-1]):
        with pytest.raises(TraceError, match="cannot be forced"):
            trace(translator, "dog", prefix=prefix)
    with pytest.raises(TraceError, match="no head 7"):
        trace(translator, "dog", off=[("decoder.0.cross_attention", 7)])
    with pytest.raises(TraceError, match="did you mean"):
        trace(translator, "dog", off=[("decoder.0.cros_attention", 0)])
    for options in ({"beam": 0}, {"alpha": -1.0}):
        with pytest.raises(SettingsError):
            trace(translator, "dog", **options)


def test_it_leaves_nothing_behind(translator):
    model = translator.bundles[0].model
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    trace(translator, "dog", answers=True, off=[("encoder.0.self_attention", 0)])
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
    assert hooks(model) == 0
    first = trace(translator, "dog").to_json()["traces"][0]
    second = trace(translator, "dog").to_json()["traces"][0]
    del first["seconds"], second["seconds"]
    assert first == second


def test_a_notebook_and_a_file_show_the_page(translator, tmp_path):
    one = trace(translator, "this old dog", "le chien")
    shown = one._repr_mimebundle_()
    assert set(shown) == {"text/html", "image/svg+xml", "text/plain"}
    one.save_html(tmp_path / "trace.html", model_inside=False)
    text = (tmp_path / "trace.html").read_text(encoding="utf-8")
    assert json.loads(stored(text, "payload")) == json.loads(json.dumps(one.to_json()))
    with pytest.raises(DataError, match="No such file"):
        one.save_html(tmp_path / "nowhere" / "trace.html")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.html"]


def test_a_model_in_training_is_traced_as_in_evaluation(tokenizer):
    bundle = make(6, tokenizer, tokenizer, dropout=0.5)
    expected = trace(Translator(bundle), "this old dog", answers=True).to_json()["traces"][0]
    bundle.model.train()
    found = trace(Translator(bundle), "this old dog", answers=True)
    assert bundle.model.training
    assert found.ok
    assert found.to_json()["traces"][0] | {"seconds": 0} == expected | {"seconds": 0}


def test_all_of_a_long_prefix_is_forced(translator):
    """Longer than a search of such a short text goes by itself, as continuations are."""
    bundle = translator.bundles[0]
    piece = bundle.target_tokenizer.encode("chien")[0]
    for count in (60, bundle.model.config.max_length - 1):
        found = trace(translator, "dog", prefix=[piece] * count)
        assert list(found.labels[:count]) == [piece] * count
        assert found.prefix == count
    ended = trace(translator, "dog", prefix=[piece] * count + [EOS])
    assert ended.prefix == len(ended.labels) == count + 1
    with pytest.raises(TraceError, match="more than the 63 the model can write"):
        trace(translator, "dog", prefix=[piece] * (count + 1))


def test_what_python_does_not_check_is_taken_or_told(translator, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for given in ((["dog"],), (None,), ("dog", b"le")):
        with pytest.raises(DataError, match="must be a string, not"):
            trace(translator, *given)
    block = "decoder.0.cross_attention"
    found = trace(
        translator, "dog", off=[[block, np.int64(1)], (block, 1)], prefix=np.array([300, 301])
    )
    assert found.off == ((block, 1),)
    assert list(found.labels[:2]) == [300, 301]
    json.dumps(found.to_json())
