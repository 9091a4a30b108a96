"""One step of training on one pair: what it does to the labels' probabilities, what it moves."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from transduce.ids import BOS
from transduce.model.transformer import Transformer
from transduce.trace.record import heads_off

LARGEST = 100_000_000
"""Parameters of a model that is stepped: four more numbers are kept of each."""


class Moved(NamedTuple):
    """Lengths (L2 norms) of one module's numbers, all of its parameters as one vector."""

    weights: float
    """Before the step."""
    gradient: float
    moved: float
    """Of the change: weights after the step minus weights before."""


class Training(NamedTuple):
    """What one step did."""

    learning_rate: float
    before: list[float]
    """Nats: -log p of each label."""
    after: list[float]
    """The same of the stepped copy."""
    modules: dict[str, Moved]
    """By module, in the order of the parameters."""


def module_of(parameter: str) -> str:
    """Name the module that a parameter is counted under: encoder.0.self_attention, output."""
    words = parameter.split(".")
    return ".".join(words[:3] if words[0] in ("encoder", "decoder") else words[:1])


def training_step(
    model: Transformer,
    source: Sequence[int],
    labels: Sequence[int],
    learning_rate: float = 1e-3,
    *,
    off: Sequence[tuple[str, int]] = (),
) -> Training:
    """Step a float32 copy of a model once on a pair; the model itself stays as it is.

    The loss is plain cross-entropy, mean over the labels, without dropout; the step is Adam's
    first, from rest, with the paper's constants (section 5.3: 0.9, 0.98, 1e-9).

    Args:
        model: is put into evaluation mode in the copy.
        source: ids, EOS last.
        labels: ids, EOS last; the decoder reads BOS and all of them but the last.
        learning_rate: how far a parameter moves at most in this step, nearly.
        off: heads to switch off, as for `heads_off`.

    Raises:
        AttentionError: over max_length.
        TraceError: no such head.
    """
    with torch.inference_mode(False), torch.enable_grad():  # whatever the caller runs under
        stepped = copy.deepcopy(model).float().eval().requires_grad_()
        device = next(stepped.parameters()).device
        pair = torch.tensor([list(source)], device=device)
        shifted = torch.tensor([[BOS, *labels[:-1]]], device=device)
        wanted = torch.tensor(list(labels), device=device)
        weights = {name: p.detach().clone() for name, p in stepped.named_parameters()}
        optimizer = torch.optim.Adam(
            stepped.parameters(), lr=learning_rate, betas=(0.9, 0.98), eps=1e-9
        )
        with heads_off(stepped, off):
            costs = _costs(stepped, pair, shifted, wanted)
            costs.mean().backward()
            optimizer.step()
            with torch.no_grad():
                after = _costs(stepped, pair, shifted, wanted)
        return Training(learning_rate, costs.tolist(), after.tolist(), _modules(stepped, weights))


def _costs(model: Transformer, source: Tensor, shifted: Tensor, labels: Tensor) -> Tensor:
    """-log p of each label, [t], in float64."""
    log_probs = model(source, shifted)[0].cpu().double().log_softmax(-1)
    return -log_probs.gather(-1, labels.cpu()[:, None])[:, 0]


def _modules(stepped: Transformer, weights: Mapping[str, Tensor]) -> dict[str, Moved]:
    """Sum squares by module; a parameter that the pair never met has gradient 0 and stays."""
    squares: dict[str, dict[str, float]] = {}
    for name, parameter in stepped.named_parameters():
        of_module = squares.setdefault(module_of(name), dict.fromkeys(Moved._fields, 0.0))
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        moved = parameter.detach() - weights[name]
        for what, tensor in zip(Moved._fields, (weights[name], gradient, moved), strict=True):
            of_module[what] += tensor.cpu().double().square().sum().item()
    return {
        module: Moved(*(math.sqrt(sums[what]) for what in Moved._fields))
        for module, sums in squares.items()
    }
