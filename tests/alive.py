"""Documents with the model inside, and random models for them: what the page computes with."""

from functools import cache
from typing import Any

import torch

from transduce.bundle import Bundle
from transduce.decode.translator import Translator
from transduce.ids import EOS
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer
from transduce.trace.document import document
from transduce.trace.trace import trace
from transduce.trace.weights import Precision, rounded, weights

LINES = ["the cat saw the dog", "the dog did not see it", "le chat a vu le chien", "un chien"] * 5


@cache
def subwords() -> Tokenizer:
    return train_tokenizer(LINES, TokenizerConfig(), vocab_size=290)


@cache
def random_model(seed: int, *, ends: float = 1.0) -> Bundle:
    """A small model; the larger `ends`, the more its prefixes differ in how likely EOS is."""
    tokenizer = subwords()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Transformer(
            TransformerConfig(
                source_vocab_size=tokenizer.size,
                target_vocab_size=tokenizer.size,
                d_model=16,
                heads=2,
                d_ff=32,
                encoder_layers=1,
                decoder_layers=2,
                max_length=18,
                tie="none",
                norm=("post", "pre")[seed % 2],  # type: ignore[arg-type]
            )
        )
    with torch.no_grad():  # initial weights are nearly indifferent to what they read
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2)
        model.output.weight[EOS] *= ends
    return Bundle(model.eval(), tokenizer, tokenizer, {"licence": ""})


def alive(bundle: Bundle, *texts: str, precision: Precision = "float32") -> Any:
    """A document whose page computes: what Python says of the texts, without tensors."""
    traced = rounded(bundle) if precision == "float16" else bundle
    found = document([trace(Translator(traced, names=["small"]), text) for text in texts])
    for one in found["traces"]:
        one["tensors"], one["padded"]["weights"], one["cached"]["weights"] = {}, {}, {}
    found["weights"] = weights(bundle, precision)
    return found
