"""The model: equal to PyTorch's own, of the paper's sizes, blind to padding and to the future."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from transduce.errors import AttentionError
from transduce.ids import BOS, EOS, PAD
from transduce.model import transformer
from transduce.model.config import TransformerConfig, preset
from transduce.model.loss import smoothed_loss
from transduce.model.transformer import (
    EncoderLayer,
    MultiHeadAttention,
    Transformer,
    attention,
    sinusoids,
)

SMALL = {
    "source_vocab_size": 20,
    "target_vocab_size": 20,
    "d_model": 16,
    "heads": 4,
    "d_ff": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.0,
}
SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD], [11, 12, 13, EOS, PAD]])
DECODER_INPUT = torch.tensor([[BOS, 4, 5, 6], [BOS, 7, 8, PAD], [BOS, 9, PAD, PAD]])
LABELS = torch.tensor([[4, 5, 6, EOS], [7, 8, EOS, PAD], [9, EOS, PAD, PAD]])


def make(**changes: object) -> Transformer:
    """A small model in evaluation mode whose every parameter, norms and biases too, is random."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.model_validate(SMALL | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


# (a) the same model as torch.nn.Transformer


def reference(model: Transformer) -> tuple[nn.Transformer, dict[str, nn.Parameter]]:
    """PyTorch's model with our weights, and its parameters by our names (q, k, v as one)."""
    config = model.config
    width, ff, heads = config.d_model, config.d_ff, config.heads
    options = {
        "dropout": 0.0,
        "activation": config.activation,
        "layer_norm_eps": config.layer_norm_epsilon,
        "batch_first": True,
        "norm_first": config.norm == "pre",
    }

    def end() -> nn.LayerNorm | None:
        return nn.LayerNorm(width, config.layer_norm_epsilon) if config.norm == "pre" else None

    encoder_layer = nn.TransformerEncoderLayer(width, heads, ff, **options)
    decoder_layer = nn.TransformerDecoderLayer(width, heads, ff, **options)
    theirs = nn.Transformer(
        width,
        heads,
        custom_encoder=nn.TransformerEncoder(encoder_layer, 2, end(), enable_nested_tensor=False),
        custom_decoder=nn.TransformerDecoder(decoder_layer, 2, end()),
        batch_first=True,
    ).double()
    named = {}
    for side in ("encoder", "decoder"):
        for i, layer in enumerate(getattr(theirs, side).layers):
            prefix = f"{side}.{i}."
            named |= of_attention(f"{prefix}self_attention", layer.self_attn)
            named |= of(f"{prefix}self_attention_residual.norm", layer.norm1)
            if side == "decoder":
                named |= of_attention(f"{prefix}cross_attention", layer.multihead_attn)
                named |= of(f"{prefix}cross_attention_residual.norm", layer.norm2)
            last = layer.norm3 if side == "decoder" else layer.norm2
            named |= of(f"{prefix}feed_forward_residual.norm", last)
            named |= of(f"{prefix}feed_forward.inner", layer.linear1)
            named |= of(f"{prefix}feed_forward.outer", layer.linear2)
        if config.norm == "pre":
            named |= of(f"{side}_norm", getattr(theirs, side).norm)
    ours = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(our_tensor(ours, name))
    return theirs, named


def of(name: str, module: nn.Module) -> dict[str, nn.Parameter]:
    return {f"{name}.weight": module.weight, f"{name}.bias": module.bias}


def of_attention(name: str, module: nn.MultiheadAttention) -> dict[str, nn.Parameter]:
    projections = {f"{name}.qkv.weight": module.in_proj_weight}
    projections[f"{name}.qkv.bias"] = module.in_proj_bias
    return projections | of(f"{name}.output", module.out_proj)


def our_tensor(tensors: dict[str, Tensor], name: str) -> Tensor:
    if ".qkv." not in name:
        return tensors[name]
    return torch.cat([tensors[name.replace("qkv", part)] for part in ("query", "key", "value")])


def embedded(ids: Tensor, table: Tensor) -> Tensor:
    """Sections 3.4 and 3.5 by their formulas, an element at a time."""
    width = table.shape[1]
    positions = torch.empty(ids.shape[1], width, dtype=table.dtype)
    for position in range(ids.shape[1]):
        for i in range(width // 2):
            angle = position / 10_000 ** (2 * i / width)
            positions[position, 2 * i] = math.sin(angle)
            positions[position, 2 * i + 1] = math.cos(angle)
    return functional.embedding(ids, table) * math.sqrt(width) + positions


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("fused", [False, True])
def test_equal_to_pytorchs_transformer_in_output_and_gradients(
    norm, activation, fused, monkeypatch
):
    monkeypatch.setattr(transformer, "fused_attention_pays", lambda q, k: fused)
    model = make(norm=norm, activation=activation, tie="none").double()
    theirs, named = reference(model)
    tables = {
        "source_embedding.table.weight": model.source_embedding.table.weight,
        "target_embedding.table.weight": model.target_embedding.table.weight,
        "output.weight": model.output.weight,
    }
    tables = {name: t.detach().clone().requires_grad_() for name, t in tables.items()}
    source_table, target_table, output = tables.values()
    inputs = [embedded(SOURCE, source_table), embedded(DECODER_INPUT, target_table)]
    hidden = theirs(
        *inputs,
        tgt_mask=torch.ones(4, 4, dtype=torch.bool).triu(1),
        src_key_padding_mask=SOURCE == PAD,
        tgt_key_padding_mask=DECODER_INPUT == PAD,
        memory_key_padding_mask=SOURCE == PAD,
    )
    logits = hidden @ output.T
    our_inputs: list[Tensor] = []
    for embedding in (model.source_embedding, model.target_embedding):
        embedding.register_forward_hook(lambda module, ids, x: our_inputs.append(x))
    our_logits = model(SOURCE, DECODER_INPUT)
    # Not closer: our positions are kept in single precision.
    torch.testing.assert_close(our_logits, logits, atol=1e-5, rtol=1e-5)

    direction = torch.randn(logits.shape, dtype=torch.float64)
    for tensor in inputs + our_inputs:
        tensor.retain_grad()
    (logits * direction).sum().backward()
    (our_logits * direction).sum().backward()
    for ours, its in zip(our_inputs, inputs, strict=True):
        torch.testing.assert_close(ours.grad, its.grad, atol=1e-5, rtol=1e-5)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    compared = 0
    for name, parameter in (named | tables).items():
        ours = our_tensor(gradients, name)
        torch.testing.assert_close(ours, parameter.grad, atol=1e-5, rtol=1e-5, msg=name)
        assert ours.abs().max() > 1e-3 or ".bias" in name  # the key's bias changes no softmax
        compared += ours.numel()
    assert compared == sum(p.numel() for p in model.parameters())


# (b) the paper's sizes


def parameters(name: str, vocab_size: int) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in Transformer(preset(name, vocab_size)).parameters())


TABLE_3 = [
    ("base", 65),
    ("B-dk-16", 58),
    ("B-dk-32", 60),
    ("C-layers-2", 36),
    ("C-layers-4", 50),
    ("C-layers-8", 80),
    ("C-d-256", 28),
    ("C-d-1024", 168),
    ("C-ff-1024", 53),
    ("C-ff-4096", 90),
]


@pytest.mark.parametrize(("row", "millions"), TABLE_3)
def test_parameters_of_table_3(row, millions):
    # 40 960 is the vocabulary of the publication's code for what the paper calls 37 000 tokens.
    assert round(parameters(row, 40_960) / 1e6) == millions


@pytest.mark.parametrize("row", ["A-heads-1", "A-heads-4", "A-heads-16", "A-heads-32"])
def test_the_number_of_heads_changes_no_parameter(row):
    assert parameters(row, 40_960) == parameters("base", 40_960)


@pytest.mark.parametrize(
    ("name", "vocab_size", "millions"),
    [
        ("base", 40_960, 65.11),
        ("base", 37_000, 63.08),
        ("base", 32_768, 60.92),
        ("big", 36_000, 213.2),
        ("big", 37_000, 214.2),
        ("tiny", 9_709, 2.57),
    ],
)
def test_parameters_by_vocabulary(name, vocab_size, millions):
    digits = len(str(millions).split(".")[1])
    assert round(parameters(name, vocab_size) / 1e6, digits) == millions


# (c) what no input may change


def log_probs_of_labels(model: Transformer, source: Tensor, tokens: Tensor) -> Tensor:
    log_probs = model(source, tokens[:, :-1]).log_softmax(-1)
    return log_probs.gather(-1, tokens[:, 1:, None])[..., 0]


@pytest.mark.parametrize("length", [8, 64, 512])
@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_padding_never_changes_a_result(length, norm):
    model = make(norm=norm)
    source, target = torch.tensor([[5, 6, 7, EOS]]), torch.tensor([[BOS, 8, 9, 10, EOS]])
    long = torch.randint(4, 20, (1, length))
    padded_source = functional.pad(source, (0, length - 4), value=PAD)
    padded_target = functional.pad(target, (0, length - 5), value=PAD)
    batch = torch.cat([padded_source, long])
    alone, _ = model.encode(source)
    beside, _ = model.encode(batch)
    torch.testing.assert_close(beside[:1, :4], alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        log_probs_of_labels(model, batch, torch.cat([padded_target, long]))[:1, :4],
        log_probs_of_labels(model, source, target),
        atol=1e-5,
        rtol=0,
    )


def test_no_gradient_reaches_padding():
    model = make()
    inputs: list[Tensor] = []
    for embedding in (model.source_embedding, model.target_embedding):
        embedding.register_forward_hook(lambda module, ids, x: inputs.append(x))
    logits = model(SOURCE, DECODER_INPUT)
    for x in inputs:
        x.retain_grad()
    smoothed_loss(logits, LABELS, 0.1).smoothed.backward()
    for x, ids in zip(inputs, (SOURCE, DECODER_INPUT), strict=True):
        assert (x.grad[ids == PAD] == 0).all()
        assert (x.grad[ids != PAD].abs().amax(-1) > 0).all()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_logits_depend_on_their_prefix_and_on_nothing_later(norm):
    model = make(norm=norm)
    inputs: list[Tensor] = []
    model.target_embedding.register_forward_hook(lambda module, ids, x: inputs.append(x))
    logits = model(SOURCE[:1], DECODER_INPUT[:1])
    for t in range(4):
        (gradient,) = torch.autograd.grad(logits[0, t].logsumexp(0), inputs, retain_graph=True)
        reached = gradient[0].abs().amax(-1)
        assert (reached[: t + 1] > 0).all()
        assert (reached[t + 1 :] == 0).all()


def test_a_changed_token_changes_its_own_position_and_later_ones_only():
    model = make()
    before = model(SOURCE, DECODER_INPUT)
    changed = DECODER_INPUT.clone()
    changed[0, 2] = 15
    difference = (model(SOURCE, changed) - before).abs().amax(-1)
    assert (difference[0] > 1e-6).tolist() == [False, False, True, True]
    assert (difference[1:] == 0).all()


def test_a_blocked_key_and_its_value_change_nothing():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 5, 4).unbind()
    allowed = torch.tensor([True, True, False, True, False])
    other_k, other_v = k.clone(), v.clone()
    other_k[:, ~allowed], other_v[:, ~allowed] = 1e3, -1e3
    for one, other in zip(
        attention(q, k, v, allowed), attention(q, other_k, other_v, allowed), strict=True
    ):
        assert torch.equal(one, other)


def test_a_blocked_key_loses_to_the_lowest_of_scores():
    q, k, v = torch.tensor([[1.0]]), torch.tensor([[-1e30], [0.0]]), torch.tensor([[1.0], [2.0]])
    output, weights = attention(q, k, v, torch.tensor([True, False]))
    assert weights.tolist() == [[1.0, 0.0]]
    assert output.tolist() == [[1.0]]


def test_attention_is_pytorchs_under_every_shape_of_mask():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 5)
    full = torch.rand(2, 3, 4, 6) > 0.4
    full[..., 0] = True
    for allowed in (full, full[:, :1], full[:, :1, :1], full[0, 0], full[0, 0, :1], None):
        theirs = functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        torch.testing.assert_close(attention(q, k, v, allowed)[0], theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_a_mask_that_is_not_boolean_is_refused(dtype):
    x = torch.randn(2, 3, 4)
    with pytest.raises(AttentionError, match=r"must be boolean, True = may attend"):
        attention(x, x, x, torch.ones(3, 3, dtype=dtype))


@pytest.mark.parametrize("shape", [(3, 4), (4, 5), (3, 3, 5), (1, 2, 3, 5)])
def test_a_mask_that_does_not_fit_is_refused(shape):
    q, k = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    with pytest.raises(AttentionError, match=r"does not fit the scores' \(2, 3, 5\)"):
        attention(q, k, k, torch.ones(shape, dtype=torch.bool))


def test_the_first_query_without_a_key_is_named():
    x = torch.randn(3, 2, 4, 8)
    allowed = torch.ones(3, 1, 4, 4, dtype=torch.bool)
    allowed[1, 0, 2] = allowed[2, 0, 0] = False
    with pytest.raises(AttentionError, match="batch 1, query 2: no key is allowed"):
        attention(x, x, x, allowed)
    with pytest.raises(AttentionError, match="batch 0, query 3: no key"):
        attention(x[0, 0], x[0, 0], x[0, 0], torch.tensor([[True], [True], [True], [False]]))


def test_a_sentence_of_padding_is_refused_by_its_row():
    model, source, tokens = make(), SOURCE.clone(), DECODER_INPUT.clone()
    source[2] = PAD
    with pytest.raises(AttentionError, match=r"batch 2, query 0: .* source is all padding"):
        model(source, DECODER_INPUT)
    tokens[1] = PAD
    with pytest.raises(AttentionError, match=r"batch 1, query 0: .* decoder input is all padding"):
        model(SOURCE, tokens)


def test_a_sentence_over_the_longest_is_refused():
    model = make(max_length=4)
    with pytest.raises(AttentionError, match="5 positions are over max_length = 4"):
        model(SOURCE, DECODER_INPUT)


@pytest.mark.parametrize(
    ("tie", "matrices"),
    [("all", 1), ("decoder", 2), ("none", 3)],
)
def test_which_tables_are_one(tie, matrices):
    model = make(tie=tie)
    tables = [
        model.source_embedding.table.weight,
        model.target_embedding.table.weight,
        model.output.weight,
    ]
    assert len({table.data_ptr() for table in tables}) == matrices
    inside = make(tie="none")
    total = sum(p.numel() for p in model.parameters())
    assert total == sum(p.numel() for p in inside.parameters()) - (3 - matrices) * 20 * 16


def test_sides_with_vocabularies_of_their_own():
    model = make(tie="decoder", target_vocab_size=33)
    assert model(SOURCE, DECODER_INPUT + 0).shape == (3, 4, 33)
    assert model.source_embedding.table.weight.shape == (20, 16)
    assert model.output.weight is model.target_embedding.table.weight


def test_widths_of_a_head_are_free():
    model = make(d_k=3, d_v=5)
    inside = model.decoder[0].cross_attention
    assert inside.query.weight.shape == inside.key.weight.shape == (12, 16)
    assert inside.value.weight.shape == (20, 16)
    assert inside.output.weight.shape == (16, 20)
    # The scaling is by d_k, not by d_model / heads.
    x = torch.randn(1, 4, 16)
    maps: list[Tensor] = []
    inside.weights.register_forward_hook(lambda module, inputs, weights: maps.append(weights))
    inside(x, x, None)
    scores = inside.split(inside.query(x)) @ inside.split(inside.key(x)).mT / math.sqrt(3)
    torch.testing.assert_close(maps[0], scores.softmax(-1), atol=1e-6, rtol=1e-5)


def test_learned_positions_are_parameters_and_take_their_place():
    model = make(positions="learned", max_length=9)
    table, positions = model.source_embedding.table.weight, model.source_embedding.positions
    assert isinstance(positions, nn.Parameter)
    assert positions.shape == (9, 16)
    assert positions is not model.target_embedding.positions
    x = model.source_embedding(SOURCE[:, :2], start=3)
    torch.testing.assert_close(x, table[SOURCE[:, :2]] * 4 + positions[3:5])
    assert "positions" not in dict(make().source_embedding.named_parameters())


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("frequency", ["paper", "tensor2tensor"])
@pytest.mark.parametrize("offset", [0, 2])
def test_positions_by_their_formulas(layout, frequency, offset):
    width, length = 12, 200
    config = TransformerConfig(
        d_model=width,
        heads=1,
        max_length=length,
        position_layout=layout,
        position_frequency=frequency,
        position_offset=offset,
    )
    waves = sinusoids(config)
    assert waves.shape == (length, width)
    for position in range(length):
        for i in range(width // 2):
            if frequency == "paper":
                rate = 10_000 ** (-2 * i / width)
            else:
                rate = math.exp(-i * math.log(10_000) / (width / 2 - 1))
            sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, width // 2 + i)
            angle = (position + offset) * rate
            assert abs(waves[position, sine] - math.sin(angle)) < 1e-6
            assert abs(waves[position, cosine] - math.cos(angle)) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_model_runs_in_half_precision(dtype):
    model = make()
    exact = model(SOURCE, DECODER_INPUT)
    rounded = model.to(dtype)(SOURCE, DECODER_INPUT)
    assert rounded.dtype == dtype
    torch.testing.assert_close(rounded.float(), exact, atol=0.25, rtol=0)


# (d) the first weights


def test_weights_are_drawn_as_in_the_publications_code():
    torch.manual_seed(0)
    d, ff, vocab = 64, 128, 500
    model = Transformer(
        TransformerConfig(
            source_vocab_size=vocab,
            target_vocab_size=vocab,
            d_model=d,
            heads=4,
            d_ff=ff,
            encoder_layers=1,
            decoder_layers=1,
            tie="none",
            positions="learned",
        )
    )
    encoder, decoder = model.encoder[0], model.decoder[0]
    bounds: list[tuple[nn.Linear, int]] = [
        (encoder.feed_forward.inner, d + ff),
        (decoder.feed_forward.outer, ff + d),
        (decoder.cross_attention.query, d + d),
        (decoder.cross_attention.key, d + 2 * d),
        (decoder.cross_attention.value, d + 2 * d),
        (decoder.cross_attention.output, d + d),
        (model.output, d + vocab),
    ]
    for inside in (encoder.self_attention, decoder.self_attention):
        bounds += [(part, d + 3 * d) for part in (inside.query, inside.key, inside.value)]
        bounds += [(inside.output, d + d)]
    for linear, both_sides in bounds:
        bound = math.sqrt(6 / both_sides)
        assert 0.99 * bound < linear.weight.abs().max() <= bound
        assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
        assert abs(linear.weight.mean()) < 0.05 * bound
        assert linear.bias is None or (linear.bias == 0).all()
    for side in (model.source_embedding, model.target_embedding):
        for normal in (side.table.weight, side.positions):
            assert normal.std().item() == pytest.approx(d**-0.5, rel=0.03)
            assert abs(normal.mean()) < 0.03 * d**-0.5
            assert normal.abs().max() > 3 * d**-0.5
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


def test_a_seed_gives_the_same_weights():
    assert all(
        torch.equal(one, other)
        for one, other in zip(make().parameters(), make().parameters(), strict=True)
    )


def test_layers_are_layers_of_their_own():
    model = make()
    layers = [m for m in model.modules() if isinstance(m, EncoderLayer | MultiHeadAttention)]
    assert len({id(layer) for layer in layers}) == 2 + 6
    assert model.encoder_norm is not model.decoder_norm
