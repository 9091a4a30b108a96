"""Models to trace: every setting of the architecture in some of them, each parameter random."""

import torch

from transduce.ids import BOS, EOS
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


def pair(s: int, t: int, seed: int = 0) -> tuple[list[int], list[int], list[int]]:
    """Random source, decoder input and labels of s and t positions, marks included."""
    random = torch.Generator().manual_seed(seed)
    source = torch.randint(4, 30, (s - 1,), generator=random).tolist()
    target = torch.randint(4, 30, (t - 1,), generator=random).tolist()
    return [*source, EOS], [BOS, *target], [*target, EOS]
