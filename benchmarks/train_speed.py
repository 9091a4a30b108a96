"""Training steps side by side: transduce, Hugging Face's MarianMT, and torch.nn.Transformer.

    make bench-train                 (small and base, all instruction sets there are)
    python benchmarks/train_speed.py [--size small] [--isa AVX2] [--rounds 5] [--batches 2]
        [--peers-keep-memory] [--device cuda --batch-tokens 25000 --size big]

All train the same shape on the same batches: ids drawn at random, lengths as of English and German
subwords of captions, sorted and cut by transduce (of 100 positions some 98 are real, which serves
the peers too), some 4096 positions a side. Label smoothing 0.1, dropout 0.1 on embeddings and
sub-layers alone, fused Adam. Each contestant is a process of its own that lives through the whole
measurement; a round goes once through all of them with the same batches, so that a busy moment of
the machine hits everyone, and the next round has others, as in a training. The figure is the median
of the rounds, of real target tokens a second. MarianMT is taken at the better of its attentions,
and the ratio is to the fastest peer in any precision. Ratios are to be compared, rates are not.
With --peers-keep-memory the peers' processes get from the environment what transduce sets itself
(`device.kept_memory`). On a GPU transduce is measured alone.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

SHAPES = {  # layers a side, d_model, d_ff, heads
    "tiny": (4, 128, 256, 4),
    "small": (3, 256, 1024, 4),
    "base": (6, 512, 2048, 8),
    "big": (6, 1024, 4096, 16),
}
VOCABULARY = 8_000
ATTENTIONS = ("marian-sdpa", "marian-eager")
ISAS = {  # what oneDNN and PyTorch may use, each by its own switch, and the precisions it has
    "AMX": ("DEFAULT", "avx512", ("fp32", "bf16")),
    "AVX512-BF16": ("AVX512_CORE_BF16", "avx512", ("fp32", "bf16")),
    "AVX2": ("AVX2", "avx2", ("fp32",)),
}
KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**62),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


class Round(NamedTuple):
    """A contestant's steps of one round: real target tokens a second, and its peak so far."""

    rate: float
    peak_gb: float


def main() -> None:
    """Run as the measurement, or as one of its contestants."""
    parser = argparse.ArgumentParser(description="Training speed beside two peers.")
    parser.add_argument("--size", choices=SHAPES, action="append")
    parser.add_argument("--isa", choices=ISAS, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peers-keep-memory", action="store_true")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.size = given.size or ["small", "base"]
    if given.contestant:
        contest(given)
        return
    for isa in given.isa or there():
        for size in given.size:
            report(isa, size, given)


def there() -> list[str]:
    """The instruction sets of this processor."""
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii").split()
    needs = {"AMX": "amx_bf16", "AVX512-BF16": "avx512_bf16", "AVX2": "avx2"}
    return [isa for isa in ISAS if needs[isa] in flags]


def report(isa: str, size: str, given: argparse.Namespace) -> None:
    """Measure all contestants and print their medians, ratios first, as a table of Markdown."""
    names = []
    for precision in ISAS[isa][2]:
        names.append(f"transduce-{precision}")
        if given.device == "cpu":
            tried = {
                name: measure([f"{name}-{precision}"], isa, size, given, 1) for name in ATTENTIONS
            }
            best = max(tried, key=lambda name: max(*tried[name].values()).rate)
            names += [f"{best}-{precision}", f"torch-{precision}"]
    rounds = measure(names, isa, size, given, given.rounds)
    medians = {name: statistics.median(each.rate for each in rounds[name]) for name in names}
    peers = [median for name, median in medians.items() if not name.startswith("transduce")]
    print(
        f"\n{size}, {isa}, {given.threads} threads, {given.rounds} rounds of {given.batches} steps"
    )
    if given.peers_keep_memory:
        print("the peers' processes keep memory, by the environment")
    print(
        "\n| | of the fastest peer | target tokens/s | lowest-highest | peak GB, imports included |"
    )
    print("|---|---|---|---|---|")
    for name in sorted(names, key=lambda name: -medians[name]):
        rates = [each.rate for each in rounds[name]]
        ratio = f"{medians[name] / max(peers):.2f}" if peers else "-"
        peak = max(each.peak_gb for each in rounds[name])
        spread = f"{min(rates):,.0f}-{max(rates):,.0f}"
        print(f"| {name} | {ratio} | {medians[name]:,.0f} | {spread} | {peak:.2f} |", flush=True)


def measure(
    names: list[str],
    isa: str,
    size: str,
    given: argparse.Namespace,
    rounds: int,
    script: str = __file__,
) -> dict[str, list[Round]]:
    """Let some contestants go round and round; the first round, which warms up, is left out."""
    with workers(names, isa, size, given, script) as processes:
        every = [
            {name: ask(process) for name, process in processes.items()} for _ in range(rounds + 1)
        ]
    return {name: [each[name] for each in every[1:]] for name in names}


@contextmanager
def workers(
    names: list[str], isa: str, size: str, given: argparse.Namespace, script: str
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Start a process for each contestant; all of them end with the measurement."""
    onednn, aten, _ = ISAS[isa]
    environment = os.environ | {
        "ONEDNN_MAX_CPU_ISA": onednn,
        "ATEN_CPU_CAPABILITY": aten,
        "OMP_NUM_THREADS": str(given.threads),
        "HF_HUB_OFFLINE": "1",
    }
    options = [f"--size={size}", f"--device={given.device}", f"--threads={given.threads}"]
    options += [f"--batches={given.batches}", f"--batch-tokens={given.batch_tokens}"]
    kept = KEEP_MEMORY if given.peers_keep_memory else {}
    processes = {
        name: subprocess.Popen(
            [sys.executable, script, "--contestant", name, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment | ({} if name.startswith("transduce") else kept),
            text=True,
        )
        for name in names
    }
    try:
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def ask(process: subprocess.Popen[str]) -> Round:
    """Let a contestant make one round.

    Raises:
        SystemExit: it has ended, of too little memory most likely.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    if not (line := process.stdout.readline()):
        raise SystemExit(f"{process.args} ended: see above, or free some memory")
    return Round(**json.loads(line))


# From here on: one contestant, in its own process.


def contest(given: argparse.Namespace) -> None:
    """Make a round of steps whenever a line comes in."""
    import torch

    from transduce import device as machine

    torch.set_num_threads(given.threads)
    torch.manual_seed(1)
    device = torch.device(given.device)
    kind, precision = given.contestant.rsplit("-", 1)
    drawn = iter(draw(given.batch_tokens))
    size, bf16 = given.size[0], precision == "bf16"
    if kind == "transduce":
        step = transduce(size, bf16, given.device)
    else:
        step = plain_torch(size, bf16) if kind == "torch" else marian(size, bf16, kind[7:])
    with machine.kept_memory() if kind == "transduce" else nullcontext():
        for _ in sys.stdin:
            batches = list(islice(drawn, given.batches))
            began = time.perf_counter()
            for batch in batches:
                step(batch)
            if device.type == "cuda":
                torch.cuda.synchronize()
            rate = sum(batch.tokens for batch in batches) / (time.perf_counter() - began)
            answer = Round(rate, machine.peak_memory(device) / 1e9)
            print(json.dumps(answer._asdict()), flush=True)


def draw(tokens: int) -> Iterator:
    """Batches of random ids whose lengths are those of a corpus of captions."""
    import numpy as np

    from transduce.data.batching import collate, plan

    random = np.random.default_rng(1)
    pairs = 20_000
    english = np.clip(random.lognormal(2.6, 0.3, pairs), 4, 60)
    german = np.clip(english * random.normal(1.08, 0.2, pairs), 4, 60)
    lengths = np.stack([english, german], axis=1).astype(np.int64)
    for epoch in count():
        for (rows,) in plan(lengths, tokens, seed=1, epoch=epoch):
            pairs = [[random.integers(4, VOCABULARY, n).tolist() for n in lengths[i]] for i in rows]
            yield collate(pairs)


def our_model(size: str, vocabulary: int = VOCABULARY):  # noqa: ANN201
    """Our model of this shape, to be trained."""
    from transduce.model.config import preset
    from transduce.model.transformer import Transformer

    layers, d_model, d_ff, heads = SHAPES[size]
    return Transformer(
        preset(
            "base",
            vocabulary,
            encoder_layers=layers,
            decoder_layers=layers,
            d_model=d_model,
            d_ff=d_ff,
            heads=heads,
            dropout=0.1,
        )
    ).train()


def transduce(size: str, bf16: bool, device: str = "cpu", vocabulary: int = VOCABULARY) -> Callable:
    """Our step, as `transduce train` makes it."""
    from transduce.model.working import working_copy
    from transduce.train.defaults import Chosen
    from transduce.train.loop import adam, train_step

    model = our_model(size, vocabulary).to(device)
    chosen = Chosen(
        max_steps=1000,
        batch_tokens=4096,
        learning_rate_scale=1.0,
        warmup=4000,
        validate_every=1000,
        save_every=1000,
    )
    optimizer = adam(model, chosen)
    working = working_copy(model) if bf16 else model
    return lambda batch: train_step(
        model, optimizer, [batch], chosen, working=working, learning_rate=1e-4, seed=1
    )


def marian(size: str, bf16: bool, attention: str) -> Callable:
    """Hugging Face's MarianMT in a plain loop."""
    from transformers import MarianConfig, MarianMTModel

    layers, d_model, d_ff, heads = SHAPES[size]
    config = MarianConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=512,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=d_ff,
        decoder_ffn_dim=d_ff,
        d_model=d_model,
        activation_function="relu",
        dropout=0.1,
        attention_dropout=0.0,
        activation_dropout=0.0,
        scale_embedding=True,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        share_encoder_decoder_embeddings=True,
        use_cache=False,
        attn_implementation=attention,
    )
    model = MarianMTModel(config).train()

    def logits(batch) -> object:  # noqa: ANN001
        return model(
            input_ids=batch.source,
            attention_mask=(batch.source != 0).long(),
            decoder_input_ids=batch.decoder_input,
            decoder_attention_mask=(batch.decoder_input != 0).long(),
        ).logits

    return plain_loop(model, logits, bf16)


def plain_torch(size: str, bf16: bool) -> Callable:
    """PyTorch's own Transformer module in a plain loop, its embeddings tied."""
    import math

    import torch
    from torch import nn

    layers, d_model, d_ff, heads = SHAPES[size]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(VOCABULARY, d_model)
            nn.init.normal_(self.table.weight, std=d_model**-0.5)
            self.body = nn.Transformer(d_model, heads, layers, layers, d_ff, 0.1, batch_first=True)
            self.body.encoder.norm = self.body.decoder.norm = None  # post-norm layers end in one
            self.dropout = nn.Dropout(0.1)
            position = torch.arange(512.0)[:, None]
            angle = position * 10_000.0 ** (-torch.arange(0, d_model, 2) / d_model)
            self.register_buffer("positions", torch.cat([angle.sin(), angle.cos()], dim=-1))
            for module in self.body.modules():
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = 0.0  # the paper's model has none there
                if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                    module.dropout.p = 0.0

        def embed(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.table(ids) * math.sqrt(d_model) + self.positions[: ids.shape[1]]
            return self.dropout(x)

        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
            x = self.body(
                self.embed(source),
                self.embed(target),
                tgt_mask=causal,
                src_key_padding_mask=source == 0,
                tgt_key_padding_mask=target == 0,
                memory_key_padding_mask=source == 0,
            )
            return nn.functional.linear(x, self.table.weight)

    model = Model().train()
    return plain_loop(model, lambda batch: model(batch.source, batch.decoder_input), bf16)


def plain_loop(model, logits: Callable, bf16: bool) -> Callable:  # noqa: ANN001
    """The step that everybody writes, with PyTorch's fused optimiser and autocast."""
    import torch

    optimizer = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), 1e-9, fused=True)

    def step(batch) -> None:  # noqa: ANN001
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            scores = logits(batch)
            loss = torch.nn.functional.cross_entropy(
                scores.flatten(0, 1), batch.labels.flatten(), ignore_index=0, label_smoothing=0.1
            )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    main()
