"""A page with the model inside: what it computes is what PyTorch computes, also with edits."""

import base64
import copy
import random
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import contract
import numpy as np
import pytest
import sentencepiece
import torch
from command import refused, transduce
from looker import Looker
from pages import serving, stored
from pages import translator as served
from test_page import at, badges

from transduce import Translator
from transduce.bundle import Bundle, put_weights, save
from transduce.bundle import weights as parameters
from transduce.errors import TraceError
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.serve import view
from transduce.text.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer
from transduce.trace import alive as alive_module
from transduce.trace import trace as trace_module
from transduce.trace import weights as weights_module
from transduce.trace.alive import alive
from transduce.trace.page import html
from transduce.trace.record import heads_off, record
from transduce.trace.trace import trace
from transduce.trace.weights import rounded, vocabulary, weights

SOURCE, TARGET = "the old dog was tired", "le vieux chien est fatigué"
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm, gelu": {"norm": "pre", "activation": "gelu", "tie": "none"},
    "learned, silu": {"positions": "learned", "activation": "silu", "tie": "decoder"},
    "halves": {"position_layout": "halves", "position_offset": 2, "norm": "pre"},
    "tensor2tensor": {"position_frequency": "tensor2tensor", "position_layout": "halves"},
    "other widths": {"d_k": 3, "d_v": 5, "heads": 2, "tie": "none"},
    "two vocabularies": {"tie": "decoder", "encoder_layers": 1, "decoder_layers": 3},
    "two vocabularies, untied": {"tie": "none", "norm": "pre", "positions": "learned"},
}
CELLS = [
    ("encoder.0.self_attention", None, 1, 2),
    ("decoder.1.self_attention", 1, 3, 0),
    ("decoder.0.cross_attention", None, 2, 1),
]
UNCHANGED: dict[str, Any] = {"blocked": [], "causal": True, "positions": True, "scale": True}
EDITS: dict[str, dict[str, Any]] = {
    "none": {},
    "heads off": {"off": [("decoder.1.cross_attention", 0), ("encoder.0.self_attention", 1)]},
    "blocked": {"blocked": CELLS},
    "not causal": {"causal": False},
    "no positions": {"positions": False},
    "no scale": {"scale": False},
    "all of it": {"off": [("decoder.0.self_attention", 1)], "blocked": CELLS, "positions": False},
}


@cache
def tokenizer(kind: str = "bpe", extra: str = "") -> Tokenizer:
    lines = [SOURCE, TARGET, "a cat and a bird", "un chat et un oiseau", extra] * 5
    return train_tokenizer(lines, TokenizerConfig(kind=kind), vocab_size=300)


@cache
def bundle(name: str = "paper") -> Bundle:
    """Every parameter is random, those of norms and biases too."""
    two = name.startswith("two")
    source, target = tokenizer(), tokenizer("unigram", "quelle surprise") if two else tokenizer()
    settings = {"d_model": 16, "heads": 4, "d_ff": 24, "encoder_layers": 2, "decoder_layers": 2}
    config = TransformerConfig(
        source_vocab_size=source.size,
        target_vocab_size=target.size,
        **({"max_length": 64} | settings | SETTINGS[name]),
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = Transformer(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.15 * torch.randn_like(parameter))
    return Bundle(model, source, target, {})


@cache
def document(name: str = "paper") -> Any:
    return alive([trace(Translator(bundle(name), names=[name]), SOURCE, TARGET)])


def asked(page: Any, **request: Any) -> Any:
    """What the page's own model answers."""
    payload = page.evaluate("request => transduce.trace(request)", request)
    contract.read(payload)
    return payload["traces"][0]


def request(edits: dict[str, Any]) -> dict[str, Any]:
    changes = {key: value for key, value in edits.items() if key != "off"}
    keys = ("block", "head", "query", "key")
    if "blocked" in changes:
        changes["blocked"] = [dict(zip(keys, cell, strict=True)) for cell in changes["blocked"]]
    return {"off": edits.get("off", []), **({"changes": changes} if changes else {})}


def numbers(tensor: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(tensor["f32"]), "<f4").reshape(tensor["shape"])


def blocker(cells: list[tuple]) -> Callable[..., torch.Tensor]:
    def hook(_: Any, inputs: tuple, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for _, head, query, key in cells:
            scores[:, slice(None) if head is None else head, query, key] = -torch.inf
        return scores

    return hook


@torch.inference_mode()
def by_pytorch(
    model: Transformer, source: list[int], decoder_input: list[int], edits: dict[str, Any]
) -> dict[str, np.ndarray]:
    """A forced pass of the model's own modules, changed where they stand."""
    model = copy.deepcopy(model)
    edits = UNCHANGED | {"off": []} | edits
    for embedding in (model.source_embedding, model.target_embedding):
        if not edits["positions"]:
            embedding.positions.data.zero_()
        if not edits["scale"]:
            embedding.scale = 1.0
    length = len(decoder_input)
    mask = torch.ones(length, length, dtype=torch.bool)
    mask = mask.tril() if edits["causal"] else mask
    with ExitStack() as stack:
        for block in {cell[0] for cell in edits["blocked"]}:
            cells = [cell for cell in edits["blocked"] if cell[0] == block]
            model.get_submodule(block).scores.register_forward_hook(blocker(cells))
        stack.enter_context(heads_off(model, edits["off"]))
        tape = stack.enter_context(record(model))
        memory, memory_mask = model.encode(torch.tensor([source]))
        x = model.target_embedding(torch.tensor([decoder_input]))
        for layer in model.decoder:
            x = layer(x, memory, mask[None, None], memory_mask)
        model.output(model.decoder_norm(x))
    return {name: tensor[0].numpy() for name, tensor in tape.items()}


def ids(tokens: list[dict[str, Any]]) -> list[int]:
    return [token["id"] for token in tokens]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_number_is_that_of_pytorch(look: Looker, name: str):
    page = look.open(document(name))
    model = rounded(bundle(name)).model
    source = [*bundle(name).source_tokenizer.encode(SOURCE), 2]
    labels = [*bundle(name).target_tokenizer.encode(TARGET), 2]
    for edits in EDITS.values():
        one = asked(page, text=SOURCE, target=TARGET, beam=1, **request(edits))
        assert ids(one["source"]["tokens"]) == source
        assert ids(one["target"]["labels"]) == labels
        wanted = by_pytorch(model, source, ids(one["target"]["input"]), edits)
        assert [step["name"] for step in one["steps"]] == list(one["tensors"])
        for step in one["steps"]:
            found = numbers(one["tensors"][step["name"]])
            assert found.shape == wanted[step["name"]].shape == tuple(step["shape"])
            compared = np.isfinite(wanted[step["name"]])  # what is blocked is no score
            assert compared.mean() > 0.9
            gap = np.abs(found - wanted[step["name"]])[compared].max()
            assert gap <= 1e-4, (step["name"], edits, gap)
        assert one["masks"]["source"] == wanted["source_mask"].tolist()
        assert one["masks"]["target"] == wanted["target_mask"].tolist()
    assert look.problems == []


@pytest.mark.parametrize("name", ["paper", "other widths", "two vocabularies, untied"])
@pytest.mark.parametrize("edits", ["none", "all of it", "no scale"])
def test_token_by_token_and_beside_padding_it_is_the_same(look: Looker, name: str, edits: str):
    one = asked(look.open(document(name)), text=SOURCE, target=TARGET, **request(EDITS[edits]))
    found = {name: numbers(tensor) for name, tensor in one["cached"]["weights"].items()}
    assert found.keys() == {
        name for name in one["tensors"] if name.startswith("decoder") and name.endswith(".weights")
    }
    for name, maps in found.items():
        assert np.abs(maps - numbers(one["tensors"][name])).max() <= 1e-5
    assert one["padded"]["columns"] == 3
    for name, tensor in one["padded"]["weights"].items():
        beside = numbers(tensor)
        assert not beside[..., -3:].any()
        assert np.abs(beside[..., :-3] - numbers(one["tensors"][name])).max() <= 1e-5


@pytest.mark.parametrize("name", ["paper", "two vocabularies", "two vocabularies, untied"])
def test_a_whole_trace_is_that_of_python(look: Looker, name: str):
    one = asked(look.open(document(name)), text=SOURCE, beam=3, alpha=0.2, prefix=[270, 265])
    whole = Translator(rounded(bundle(name)))
    wanted = trace(whole, SOURCE, beam=3, alpha=0.2, prefix=[270, 265]).to_json()
    wanted = contract.read(wanted)["traces"][0]
    for key in ("source", "target", "masks", "steps", "off", "changes", "left_out", "answers"):
        assert one[key] == wanted[key], key
    for key in ("log_probs", "entropy", "log_prob"):
        assert one["output"][key] == pytest.approx(wanted["output"][key], abs=1e-4)
    assert one["output"]["rank"] == wanted["output"]["rank"]
    for mine, its in zip(one["output"]["top"], wanted["output"]["top"], strict=True):
        assert ids(mine) == ids(its)
        assert [each["p"] for each in mine] == pytest.approx([each["p"] for each in its], abs=1e-5)
    for kind in ("greedy", "beam"):
        mine, its = one["searches"][kind], wanted["searches"][kind]
        for key in ("id", "parent", "step", "token", "state"):
            assert [node[key] for node in mine["nodes"]] == [node[key] for node in its["nodes"]]
    for key in ("padded", "cached"):
        assert one[key]["weights"].keys() == wanted[key]["weights"].keys()
        for each, tensor in wanted[key]["weights"].items():
            assert np.abs(numbers(one[key]["weights"][each]) - numbers(tensor)).max() <= 1e-5


def test_it_opens_from_a_file_with_all_checks_green(look: Looker):
    page = look.open(document())
    told = badges(page)
    assert told["badge-page_equals_pytorch"] == "true"
    assert set(told.values()) == {"true"}
    page.goto(f"{page.url.split('#')[0]}#open=decoder.1.cross_attention&tab=heads")
    at(page, "tab-heads").wait_for()
    assert len(look.requests) == 1
    assert look.problems == []


def test_a_damaged_file_and_an_old_browser_are_told(look: Looker):
    text = html(document())
    path = look.folder / "damaged.html"
    path.write_text(text.replace('id="payload">(', 'id="payload">)'), encoding="utf-8")
    assert "This file is damaged" in look.at(f"file://{path}").locator("body").inner_text()
    old = look.browser.new_context(offline=True)
    look.contexts.append(old)
    page = old.new_page()
    page.add_init_script("delete globalThis.DecompressionStream")
    path.write_text(text, encoding="utf-8")
    page.goto(f"file://{path}")
    assert "needs a browser of 2024" in page.locator("body").inner_text()


@pytest.mark.parametrize("which", [0, -1])
def test_a_broken_weight_is_red(look: Looker, which: int):
    broken = copy.deepcopy(document())
    stored = list(broken["weights"]["parameters"].values())[which]
    half = np.frombuffer(base64.b64decode(stored["f16"]), "<f2").copy()
    half += np.float16(0.05) * np.arange(half.size, dtype="<f2") % np.float16(1)
    stored["f16"] = base64.b64encode(half.tobytes()).decode()
    assert badges(look.open(broken))["badge-page_equals_pytorch"] == "false"


def test_what_cannot_be_asked_is_told(look: Looker):
    page = look.open(document())
    block = "decoder.0.cross_attention"
    cells = [(block, None, 2, key) for key in range(40)]
    for told, question in {
        f"{block}, head 0: query 2 has no key left": request({"blocked": cells}),
        "no attention decoder.7": request({"off": [("decoder.7", 0)]}),
        "has no head 9": request({"off": [(block, 9)]}),
        "cannot be forced": {"prefix": [1]},
        "leave one of them out": {"prefix": [270], "target": "a"},
        "beam must be": {"beam": 99},
        "Shorten it": {"target": "le chien " * 60},
    }.items():
        ask = "request => transduce.trace(request).then(() => '', (error) => error.message)"
        assert told in page.evaluate(ask, {"text": SOURCE} | question)
    assert asked(page, text="  ")["target"]["labels"] == []
    assert asked(page, text="the old dog " * 60, beam=1)["source"]["cut"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_vocabulary_is_that_of_sentencepiece(kind: str):
    found, wanted = vocabulary(tokenizer(kind)), sentencepiece.SentencePieceProcessor()
    wanted.LoadFromSerializedProto(tokenizer(kind).model)
    every = range(wanted.get_piece_size())
    assert found["kind"] == kind
    assert found["pieces"] == [wanted.id_to_piece(i) for i in every]
    assert found["scores"] == [wanted.get_score(i) for i in every]


def stranger(tmp_path: Path, **other: Any) -> Tokenizer:
    """A tokenizer as train_tokenizer makes it, but for some options."""
    rest = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([SOURCE, TARGET] * 9),
        model_prefix=str(tmp_path / "other"),
        vocab_size=290,
        model_type="bpe",
        byte_fallback=True,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=4,
        hard_vocab_limit=False,
        **(rest | other),
    )
    return Tokenizer.load(tmp_path / "other.model")


@pytest.mark.parametrize(
    "other",
    [
        {"normalization_rule_name": "nmt_nfkc"},
        {"add_dummy_prefix": False},
        {"remove_extra_whitespaces": True},
        {"user_defined_symbols": ["dog"]},
        {"treat_whitespace_as_suffix": True},
    ],
    ids=str,
)
def test_a_strangers_tokenizer_is_refused(tmp_path: Path, other: dict[str, Any]):
    with pytest.raises(TraceError, match="cannot cut text"):
        vocabulary(stranger(tmp_path, **other))


def test_a_small_model_that_a_page_cannot_have_stays_out_of_it_unless_asked_for(tmp_path: Path):
    pieces = stranger(tmp_path, user_defined_symbols=["dog"])
    sizes = {"source_vocab_size": pieces.size, "target_vocab_size": pieces.size, "max_length": 32}
    torch.manual_seed(1)
    model = Transformer(TransformerConfig(**sizes, d_model=16, heads=2, d_ff=24)).eval()
    one = trace(Translator(Bundle(model, pieces, pieces, {})), SOURCE, TARGET)
    one.save_html(tmp_path / "page.html")
    assert '"weights":null' in stored((tmp_path / "page.html").read_text(), "payload")
    with pytest.raises(TraceError, match="cannot cut text"):
        one.save_html(tmp_path / "page.html", model_inside=True)


def test_a_page_is_made_under_inference_mode_too(tmp_path: Path):
    with torch.inference_mode():
        loaded = Bundle(Transformer(bundle().model.config), tokenizer(), tokenizer(), {})
        put_weights(loaded.model, parameters(bundle().model), tmp_path)
        one = trace(Translator(loaded), SOURCE, TARGET, answers=True)
        one.save_html(tmp_path / "page.html", model_inside=True)
    wanted = trace(Translator(bundle()), SOURCE, TARGET, answers=True)
    assert one.attribution is not None
    assert wanted.attribution is not None
    torch.testing.assert_close(one.attribution.gradient, wanted.attribution.gradient)
    assert one.training == wanted.training


def test_of_a_long_text_one_warning_is_enough(caplog: pytest.LogCaptureFixture):
    long = trace(Translator(bundle()), "the bird " * 90)
    (told,) = caplog.records
    assert "more than the model reads" in told.message
    found = alive([long])["traces"][0]
    assert len(caplog.records) == 1
    assert found["source"]["cut"]
    assert len(found["source"]["tokens"]) == bundle().model.config.max_length


def test_what_is_not_measured_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trace_module, "MOST_PIECES", 3)
    found = alive([trace(Translator(bundle()), SOURCE)])["traces"][0]
    assert found["attribution"] is None
    assert found["left_out"] == "what each piece matters: a side has more than 3 pieces"


def test_beside_the_model_stand_traces_of_the_rounded_one():
    found = contract.read(document())
    (one,) = found["traces"]
    wanted = trace(Translator(rounded(bundle())), SOURCE, TARGET)
    exact = trace(Translator(bundle()), SOURCE, TARGET)
    assert one["output"]["log_probs"] == wanted.output.log_probs != exact.output.log_probs
    assert one["invariants"] == [each._asdict() for each in wanted.invariants]
    assert one["tensors"] == one["padded"]["weights"] == one["cached"]["weights"] == {}
    assert found["weights"]["precision"] == "float16"
    assert found["weights"]["tokenizers"]["target"] is None


def test_rounding_keeps_ties_and_refuses_what_float16_has_not():
    one = rounded(bundle("learned, silu"))
    assert one.model.output.weight is one.model.target_embedding.table.weight
    for parameter, before in zip(
        one.model.parameters(), bundle("learned, silu").model.parameters(), strict=True
    ):
        assert torch.equal(parameter, before.half().float())
        assert not torch.equal(parameter, before)
    large = bundle()._replace(model=copy.deepcopy(bundle().model))
    with torch.no_grad():
        large.model.decoder[1].feed_forward.outer.bias[3] = 7e4
    assert weights(large, "float32")["precision"] == "float32"
    with pytest.raises(TraceError, match=r"decoder\.1\.feed_forward\.outer\.bias holds 70000"):
        alive([trace(Translator(large), SOURCE)])


def test_a_page_with_a_model_of_the_demos_size_is_2_mb(tmp_path: Path):
    random.seed(1)
    words = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(3000)]
    pieces = train_tokenizer([" ".join(words)] * 2, TokenizerConfig(), vocab_size=1300)
    assert pieces.size == 1300
    torch.manual_seed(1)
    sides = {"source_vocab_size": 1300, "target_vocab_size": 1300, "max_length": 256}
    size = {"d_model": 96, "heads": 4, "d_ff": 384, "encoder_layers": 2, "decoder_layers": 2}
    model = Transformer(TransformerConfig(**sides, **size)).eval()
    one = trace(Translator(Bundle(model, pieces, pieces, {})), " ".join(words[:8]))
    one.save_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size <= 2_000_000
    one.save_html(tmp_path / "page.html", model_inside=False)
    assert len(html(None).encode()) <= 300_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "small"
    path.mkdir()
    save(path, bundle(), "# A model with random weights\n")
    return path


def test_the_command_puts_a_small_model_into_the_page(folder: Path, tmp_path: Path):
    page = tmp_path / "page.html"
    found = transduce("trace", folder, SOURCE, "--html", page)
    assert found.status == 0, found.errors
    assert "the model is inside the page (0.0 MB, rounded to float16)" in found.errors
    without = transduce("trace", folder, SOURCE, "--html", page, "--no-model-inside")
    assert without.status == 0
    assert "inside the page" not in without.errors
    assert without.text == found.text
    assert "add --html" in refused("trace", folder, SOURCE, "--model-inside")


def test_a_large_model_stays_out_of_it(folder: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(alive_module, "MOST_UNASKED", 1000)
    page = tmp_path / "page.html"
    assert "inside the page" not in transduce("trace", folder, SOURCE, "--html", page).errors
    asked_for = ("trace", folder, SOURCE, "--html", page, "--model-inside")
    assert "inside the page" in transduce(*asked_for).errors
    monkeypatch.setattr(weights_module, "MOST_PARAMETERS", 1000)
    assert "a page holds 1,000 at most" in refused(*asked_for)


def test_a_server_gives_its_weights_to_the_page(look: Looker, monkeypatch):
    with serving() as client:
        found = client.get("/api/weights").json()
        assert found == weights(served().bundles[0], "float32")
        page = look.at(f"http://{client.host}/", offline=False)
        for _ in range(2):
            one = asked(page, text=SOURCE, beam=1, changes={"positions": False})
            assert one["changes"] == UNCHANGED | {"positions": False}
            assert not numbers(one["tensors"]["source_embedding.positions"]).any()
        assert [url for url in look.requests if url.endswith("weights")] == [
            f"http://{client.host}/api/weights"
        ]
        monkeypatch.setattr(view, "_MOST_PARAMETERS", 1000)
        answer = client.get("/api/weights")
        assert answer.status == 404
        assert "more than the 1,000 that a page takes" in answer.json()["error"]["message"]
