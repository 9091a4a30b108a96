"""The paper's section 3 in reading order: attention, heads, feed-forward, embedding, layers, all.

Letters of the shapes: b sentences, s source positions, t target positions, q queries, k keys,
h heads, d d_model, f d_ff, r rows of a search (sentences x width), V the target vocabulary.

A mask is boolean and True means "may attend". Masks are made here, from the ids.
"""

import math
from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from transduce.errors import AttentionError
from transduce.ids import PAD
from transduce.model.cache import Cache
from transduce.model.config import TransformerConfig
from transduce.model.initialise import glorot, normal
from transduce.model.kernels import Dropout, LayerNorm, Linear, fused_attention_pays, hooked


def attention(
    q: Float[Tensor, "*batch q d_k"],
    k: Float[Tensor, "*batch k d_k"],
    v: Float[Tensor, "*batch k d_v"],
    allowed: Tensor | None = None,
) -> tuple[Float[Tensor, "*batch q d_v"], Float[Tensor, "*batch q k"]]:
    """Equation (1): softmax(q kᵀ / √d_k) v, and the softmax itself.

    Args:
        q: one query a row.
        k: one key a row.
        v: one value for each key.
        allowed: True where the query of the row may attend to the key of the column; broadcast over
            the leading dimensions. None: everywhere.

    Returns:
        The mixed values, one row a query, and the weights: each row sums to 1, a blocked key has 0.

    Raises:
        AttentionError: a mask that is not boolean or does not fit, or a query without any key: no
            distribution over nothing exists.
    """
    if allowed is not None:
        shape = (*q.shape[:-1], k.shape[-2])
        if allowed.dtype != torch.bool:
            raise AttentionError(
                f"the mask is {allowed.dtype}; it must be boolean, True = may attend"
            )
        try:
            rows = allowed.expand(shape).any(-1)
        except RuntimeError:
            raise AttentionError(
                f"the mask's shape {tuple(allowed.shape)} does not fit the scores' {shape}"
            ) from None
        if not rows.all():
            *batch, query = (~rows).nonzero()[0].tolist()
            raise AttentionError(
                f"batch {batch[0] if batch else 0}, query {query}: no key is allowed"
            )
    return attend(q, k, v, allowed)


def attend(
    q: Float[Tensor, "*batch q d_k"],
    k: Float[Tensor, "*batch k d_k"],
    v: Float[Tensor, "*batch k d_v"],
    allowed: Bool[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "*batch q d_v"], Float[Tensor, "*batch q k"]]:
    """Equation (1) without its checks: for callers whose data guarantees a key to every query."""
    weights = distribution(scaled_products(q, k), allowed).to(v.dtype)
    return weights @ v, weights


def scaled_products(
    q: Float[Tensor, "*batch q d_k"], k: Float[Tensor, "*batch k d_k"]
) -> Float[Tensor, "*batch q k"]:
    """The scores: how well each key answers each query, q kᵀ / √d_k."""
    return (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)


def distribution(
    scores: Float[Tensor, "*batch q k"], allowed: Bool[Tensor, "..."] | None
) -> Float[Tensor, "*batch q k"]:
    """The weights: each row of scores as shares of 1, a blocked key getting none."""
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    # Of bfloat16 in float32: more exact, and many times faster where rows are short.
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return weights.to(scores.dtype)


class MultiHeadAttention(nn.Module):
    """Section 3.2.2: several attentions side by side, each on its own projection.

    `cross` says that keys and values come from elsewhere; it matters to the first weights alone.
    """

    def __init__(self, config: TransformerConfig, *, cross: bool = False) -> None:
        super().__init__()
        self.count = config.heads
        self.query = Linear(config.d_model, config.heads * config.d_k)
        self.key = Linear(config.d_model, config.heads * config.d_k)
        self.value = Linear(config.d_model, config.heads * config.d_v)
        self.output = Linear(config.heads * config.d_v, config.d_model)
        # Names on the way of the values: a hook sees what is used, and what it returns is used.
        self.scores, self.weights, self.heads = nn.Identity(), nn.Identity(), nn.Identity()
        if cross:
            glorot(self.query)
            glorot(self.key, self.value)
        else:
            glorot(self.query, self.key, self.value)
        glorot(self.output)

    def split(self, x: Float[Tensor, "b n hd"]) -> Float[Tensor, "b h n dk"]:
        """Give each head its part of the features."""
        return x.unflatten(-1, (self.count, -1)).transpose(1, 2)

    def join(self, x: Float[Tensor, "b h n dv"]) -> Float[Tensor, "b n hd"]:
        """Put the heads' results beside each other: the inverse of split."""
        return x.transpose(1, 2).flatten(-2)

    def keys_values(
        self, memory: Float[Tensor, "b k d"]
    ) -> tuple[Float[Tensor, "b h k dk"], Float[Tensor, "b h k dv"]]:
        """Project what is attended to; keys in one piece, which the product takes best."""
        return self.split(self.key(memory)).contiguous(), self.split(self.value(memory))

    def mix(
        self,
        x: Float[Tensor, "b q d"],
        k: Float[Tensor, "b h k dk"],
        v: Float[Tensor, "b h k dv"],
        allowed: Bool[Tensor, "..."] | None,
    ) -> Float[Tensor, "b q d"]:
        """Attend from x to projected keys and values."""
        q = self.split(self.query(x))
        if fused_attention_pays(q, k) and not hooked(self.scores, self.weights, self.heads):
            heads = functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        else:
            scores = self.scores(scaled_products(q, k))
            weights = self.weights(distribution(scores, allowed))
            heads = self.heads(weights @ v)
        return self.output(self.join(heads))

    def forward(
        self,
        x: Float[Tensor, "b q d"],
        memory: Float[Tensor, "b k d"],
        allowed: Bool[Tensor, "..."] | None,
    ) -> Float[Tensor, "b q d"]:
        """Attend from x to memory; self-attention is memory = x."""
        return self.mix(x, *self.keys_values(memory), allowed)


class FeedForward(nn.Module):
    """Section 3.3: max(0, x W1 + b1) W2 + b2, at each position alone."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.inner = Linear(config.d_model, config.d_ff)
        self.activation = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}[config.activation]()
        self.outer = Linear(config.d_ff, config.d_model)
        glorot(self.inner)
        glorot(self.outer)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Transform the features of each position."""
        return self.outer(self.activation(self.inner(x)))


class Residual(nn.Module):
    """Sections 3.1 and 5.4: LayerNorm(x + Dropout(Sublayer(x))); pre-norm moves the norm inside."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "b n d"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "b n d"]:
        """Apply a sub-layer and keep a direct path beside it."""
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


def sinusoids(config: TransformerConfig) -> Float[Tensor, "n d"]:
    """Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same.

    Other formats put the sines before the cosines ("halves"), take 10000^(i / (d/2 - 1)) as
    tensor2tensor does, or count positions from another number.
    """
    pairs = config.d_model // 2
    steps = pairs if config.position_frequency == "paper" else max(pairs - 1, 1)
    i = torch.arange(pairs, dtype=torch.float64)
    position = torch.arange(config.max_length, dtype=torch.float64) + config.position_offset
    angle = position[:, None] * 10_000.0 ** (-i / steps)
    waves = torch.stack([angle.sin(), angle.cos()], dim=-1)
    if config.position_layout == "halves":
        waves = waves.transpose(-2, -1)
    return waves.flatten(-2).float()


class Embedding(nn.Module):
    """Sections 3.4 and 3.5: rows of the table x √d_model, plus positions, then dropout."""

    def __init__(self, config: TransformerConfig, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table
        normal(table.weight)
        self.scale = math.sqrt(config.d_model)
        self.dropout = Dropout(config.dropout)
        if config.positions == "learned":
            self.positions = nn.Parameter(torch.empty(config.max_length, config.d_model))
            normal(self.positions)
        else:
            self.register_buffer("positions", sinusoids(config), persistent=False)

    def forward(self, ids: Int[Tensor, "b n"], start: int = 0) -> Float[Tensor, "b n d"]:
        """Look up ids whose first stands at position `start`."""
        if start + ids.shape[1] > len(self.positions):
            raise AttentionError(
                f"{start + ids.shape[1]} positions are over max_length = {len(self.positions)}"
            )
        positions = self.positions[start : start + ids.shape[1]]
        # The layers of a working copy compute in bfloat16, as positions do, but not the table.
        x = (self.table(ids) * self.scale + positions).to(positions.dtype)
        return self.dropout(x)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self, x: Float[Tensor, "b s d"], source_mask: Bool[Tensor, "b 1 1 s"]
    ) -> Float[Tensor, "b s d"]:
        """Let source positions exchange information."""
        x = self.self_attention_residual(x, lambda x: self.self_attention(x, x, source_mask))
        return self.feed_forward_residual(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention to the memory, then feed-forward."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_residual = Residual(config)
        self.cross_attention = MultiHeadAttention(config, cross=True)
        self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        memory: Float[Tensor, "b s d"],
        target_mask: Bool[Tensor, "b 1 t t"],
        memory_mask: Bool[Tensor, "b 1 1 s"],
    ) -> Float[Tensor, "b t d"]:
        """Read the prefix, then consult the source: all target positions at once."""
        x = self.self_attention_residual(x, lambda x: self.self_attention(x, x, target_mask))
        x = self.cross_attention_residual(x, lambda x: self.cross_attention(x, memory, memory_mask))
        return self.feed_forward_residual(x, self.feed_forward)

    def step(self, x: Float[Tensor, "r 1 d"], cache: Cache, layer: int) -> Float[Tensor, "r 1 d"]:
        """Do the same for one more position, with what came before taken from the cache."""
        x = self.self_attention_residual(x, lambda x: self._look_back(x, cache, layer))
        x = self.cross_attention_residual(x, lambda x: self._consult(x, cache, layer))
        return self.feed_forward_residual(x, self.feed_forward)

    def _look_back(self, x: Float[Tensor, "r 1 d"], cache: Cache, layer: int) -> Tensor:
        """Attend to what came before, and to x itself."""
        keys, values = cache.append(layer, *self.self_attention.keys_values(x))
        return self.self_attention.mix(x, keys, values, None)

    def _consult(self, x: Float[Tensor, "r 1 d"], cache: Cache, layer: int) -> Tensor:
        """Attend to the memory: the rows of a sentence are queries to one, which is not copied."""
        queries = x.unflatten(0, (-1, cache.width)).squeeze(2)
        return self.cross_attention.mix(queries, *cache.cross[layer], cache.memory_mask).view_as(x)


class Transformer(nn.Module):
    """The encoder-decoder of Figure 1: b sentences of s source, t target ids to logits over V."""

    def __init__(self, config: TransformerConfig) -> None:
        """Make a model whose first weights are drawn as in the paper's own code."""
        super().__init__()
        self.config = config
        source_table = nn.Embedding(config.source_vocab_size, config.d_model)
        target_table = source_table
        if config.tie != "all":
            target_table = nn.Embedding(config.target_vocab_size, config.d_model)
        self.source_embedding = Embedding(config, source_table)
        self.target_embedding = Embedding(config, target_table)
        encoder = [EncoderLayer(config) for _ in range(config.encoder_layers)]
        decoder = [DecoderLayer(config) for _ in range(config.decoder_layers)]
        # A ModuleList does not say what it holds; these do.
        self.encoder = cast(list[EncoderLayer], nn.ModuleList(encoder))
        self.decoder = cast(list[DecoderLayer], nn.ModuleList(decoder))
        if config.norm == "pre":  # post-norm ends each layer with a norm, and needs none here
            self.encoder_norm = LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
            self.decoder_norm = LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        else:
            self.encoder_norm = nn.Identity()  # two, so that each is one intermediate
            self.decoder_norm = nn.Identity()
        self.output = nn.Linear(config.d_model, config.target_vocab_size, bias=False)
        if config.tie == "none":
            glorot(self.output)
        else:
            self.output.weight = target_table.weight

    def encode(
        self, source: Int[Tensor, "b s"]
    ) -> tuple[Float[Tensor, "b s d"], Bool[Tensor, "b 1 1 s"]]:
        """Make the memory of source ids (EOS last, then PAD), and the mask of real positions."""
        source_mask = (source != PAD)[:, None, None, :]  # the same for all heads and queries
        x = self.source_embedding(source)
        for layer in self.encoder:
            x = layer(x, source_mask)
        return self.encoder_norm(x), source_mask

    def decode(
        self,
        decoder_input: Int[Tensor, "b t"],
        memory: Float[Tensor, "b s d"],
        memory_mask: Bool[Tensor, "b 1 1 s"],
    ) -> Float[Tensor, "b t d"]:
        """Make the states that `output` scores the next tokens by, at all positions of a target.

        The target begins with BOS and may end in PAD.
        """
        length = decoder_input.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=memory.device).tril()
        target_mask = causal & (decoder_input != PAD)[:, None, None, :]
        x = self.target_embedding(decoder_input)
        for layer in self.decoder:
            x = layer(x, memory, target_mask, memory_mask)
        return self.decoder_norm(x)

    def forward(
        self, source: Int[Tensor, "b s"], decoder_input: Int[Tensor, "b t"]
    ) -> Float[Tensor, "b t V"]:
        """Score the next token at each target position, given the source and the tokens before.

        Raises:
            AttentionError: a source of nothing but padding, a target that starts with padding, or a
                sentence over max_length.
        """
        first_keys = {"source": source != PAD, "decoder input": decoder_input[:, :1] != PAD}
        for name, found in first_keys.items():
            if not found.any(-1).all():
                row = int((~found.any(-1)).nonzero()[0])
                raise AttentionError(
                    f"batch {row}, query 0: no key is allowed, its {name} is all padding"
                )
        return self.output(self.decode(decoder_input, *self.encode(source)))

    # From here on the same again, token by token, for search: not a part of section 3.

    def start(
        self,
        memory: Float[Tensor, "b s d"],
        memory_mask: Bool[Tensor, "b 1 1 s"],
        *,
        width: int,
        capacity: int,
    ) -> Cache:
        """Prepare decoding token by token: `width` rows for each sentence, `capacity` positions."""
        cross = [layer.cross_attention.keys_values(memory) for layer in self.decoder]
        return Cache(cross, memory_mask, self.config, width=width, capacity=capacity)

    def step(self, tokens: Int[Tensor, " r"], cache: Cache) -> Float[Tensor, "r V"]:
        """Append one token to each row of the search and score the next."""
        x = self.target_embedding(tokens[:, None], start=cache.length)
        for index, layer in enumerate(self.decoder):
            x = layer.step(x, cache, index)
        cache.length += 1
        return self.output(self.decoder_norm(x)).squeeze(1)
