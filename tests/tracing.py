"""Models to trace: every setting of the architecture in some of them, each parameter random."""

import copy
from collections.abc import Iterable

import torch

from transduce.ids import BOS, EOS, PAD
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer

SMALL = {
    "source_vocab_size": 30,
    "target_vocab_size": 30,
    "d_model": 16,
    "heads": 4,
    "d_ff": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_length": 150,
}
SETTINGS = {
    "paper": {},
    "pre-norm": {"norm": "pre", "activation": "gelu", "tie": "decoder", "target_vocab_size": 40},
    "learned": {"positions": "learned", "activation": "silu", "tie": "none", "d_k": 3, "d_v": 5},
    "tensor2tensor": {
        "norm": "pre",
        "position_layout": "halves",
        "position_frequency": "tensor2tensor",
        "position_offset": 2,
        "encoder_layers": 1,
        "decoder_layers": 3,
        "heads": 1,
    },
}


def make(**changes: object) -> Transformer:
    """A small model in evaluation mode whose every parameter, norms and biases too, is random."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.model_validate(SMALL | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD]])
DECODER_INPUT = torch.tensor([[BOS, 4, 5, 6], [BOS, 7, 8, PAD]])


def without(model: Transformer, off: Iterable[tuple[str, int]]) -> Transformer:
    """The same model whose W_O has zeros where it would read the heads."""
    model = copy.deepcopy(model)
    width = model.config.d_v
    with torch.no_grad():
        for block, head in off:
            weight = model.get_submodule(block).output.weight
            weight[:, head * width : (head + 1) * width] = 0
    return model


def hooks(model: Transformer) -> int:
    """How many hooks anybody has on a model."""
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


def pair(s: int, t: int, seed: int = 0) -> tuple[list[int], list[int], list[int]]:
    """Random source, decoder input and labels of s and t positions, marks included."""
    random = torch.Generator().manual_seed(seed)
    source = torch.randint(4, 30, (s - 1,), generator=random).tolist()
    target = torch.randint(4, 30, (t - 1,), generator=random).tolist()
    return [*source, EOS], [BOS, *target], [*target, EOS]
