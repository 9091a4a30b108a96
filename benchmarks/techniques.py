"""What each technique brings: training steps with all of them, and with all but one.

    python benchmarks/techniques.py [--size small] [--precision bf16] [--rounds 5] [--threads 2]

Contestants, batches and rounds are those of train_speed.py; here all of them are transduce, each
with one fast path replaced by the plain one. The ratio is how much longer a step takes without it.
"""

import argparse
import statistics
from collections.abc import Callable
from contextlib import nullcontext

from train_speed import SHAPES, contest, measure, there


def main() -> None:
    """Measure, and print a table of Markdown."""
    parser = argparse.ArgumentParser(description="What each technique brings.")
    parser.add_argument("--size", choices=SHAPES, action="append")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.size, given.peers_keep_memory = given.size or ["small"], False
    if given.contestant:
        technique, _, precision = given.contestant.rpartition(":")
        TECHNIQUES[technique]()
        given.contestant = f"transduce-{precision}"
        contest(given)
        return
    isa = there()[0]
    skipped = "oneDNN's products" if given.precision == "bf16" else "bfloat16 between the layers"
    names = [f"{name}:{given.precision}" for name in TECHNIQUES if name != skipped]
    for size in given.size:
        rounds = measure(names, isa, size, given, given.rounds, script=__file__)
        medians = {name: statistics.median(each.rate for each in rounds[name]) for name in names}
        print(f"\n{size}, {given.precision}, {isa}, {given.threads} threads\n")
        print("| without | times as long | target tokens/s | peak GB |\n|---|---|---|---|")
        for name in names:
            ratio, peak = medians[names[0]] / medians[name], max(r.peak_gb for r in rounds[name])
            print(f"| {name.split(':')[0]} | {ratio:.2f} | {medians[name]:,.0f} | {peak:.2f} |")


def plain_loss() -> None:
    """PyTorch's cross-entropy of all logits at once."""
    import torch

    from transduce.model.loss import Loss
    from transduce.train import loop

    def loss(states, output, labels, smoothing):  # noqa: ANN001, ANN202
        logits = (states @ output.T.to(states.dtype)).flatten(0, 1)
        named = {"ignore_index": 0, "reduction": "sum", "label_smoothing": smoothing}
        smoothed = torch.nn.functional.cross_entropy(logits, labels.flatten(), **named)
        return Loss(smoothed, smoothed.detach())

    loop.projected_loss = loss


def plain_memory() -> None:
    """What is freed goes back to the system."""
    from transduce import device

    device.kept_memory = nullcontext


def plain_dropout() -> None:
    """PyTorch's dropout."""
    from torch import nn

    from transduce.model import transformer

    transformer.Dropout = nn.Dropout


def fused_attention() -> None:
    """PyTorch's fused attention, also for short sentences."""
    from transduce.model import transformer

    transformer.fused_attention_pays = lambda q, k: True


def plain_products() -> None:
    """PyTorch's own choice for products of float32."""
    from transduce.model import kernels

    kernels.onednn_pays = lambda: False


def autocast() -> None:
    """Weights and activations cast by each operation that wants them so."""
    import torch

    from transduce.model import working
    from transduce.model.transformer import Transformer

    working.working_copy = lambda model: model
    encode, decode = Transformer.encode, Transformer.decode
    cast = torch.autocast("cpu", torch.bfloat16)
    Transformer.encode = lambda *of: cast(encode)(*of)
    Transformer.decode = lambda *of: cast(decode)(*of).bfloat16()  # for the loss's products


TECHNIQUES: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "memory that is kept": plain_memory,
    "the loss in chunks": plain_loss,
    "our dropout": plain_dropout,
    "attention written out": fused_attention,
    "bfloat16 between the layers": autocast,
    "oneDNN's products": plain_products,
}


if __name__ == "__main__":
    main()
