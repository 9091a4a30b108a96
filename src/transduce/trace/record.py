"""Hooks on a model: `record` keeps its named intermediates, `heads_off` silences heads.

Names are those of steps.py. What is kept is what the model really used: outputs and inputs of its
own modules, copied, so that nothing done later changes them. (But `positions` are no module's: they
are read where the embedding reads them, and the replay of its sum shows that it did.)
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from transduce.errors import TraceError
from transduce.model.transformer import Embedding, MultiHeadAttention, Residual, Transformer
from transduce.trace.steps import attentions, names

Keep = Callable[[Tensor], None]


class Tape(Mapping[str, Tensor]):
    """What was recorded: name -> tensor of the last call, in the order of computation.

    Tensors are copies without gradients, on the model's device, and have the batch dimension b.
    """

    def __init__(self, selected: Iterable[str]) -> None:
        self._calls: dict[str, list[Tensor]] = {name: [] for name in selected}

    def __getitem__(self, name: str) -> Tensor:
        calls = self._calls[name]
        if not calls:
            raise KeyError(name)
        return calls[-1]

    def __iter__(self) -> Iterator[str]:
        return (name for name, calls in self._calls.items() if calls)

    def __len__(self) -> int:
        return sum(map(bool, self._calls.values()))

    def calls(self, name: str) -> list[Tensor]:
        """Return the tensors of all calls, first to last: one a step when decoding by steps."""
        return list(self._calls[name])


@contextmanager
def record(model: Transformer, *patterns: str) -> Generator[Tape]:
    """Keep the intermediates whose names fit a pattern, from all calls made in this context.

    In training and evaluation, with gradients or without; recorders may be nested. What reads
    scores, weights or heads makes attention take the plain path, which equals the fused one.
    `Transformer.step` shows no masks; its `scores`, `weights` and `heads` of cross-attention have
    the rows of a sentence as queries: [sentences, h, width, s].
    What `torch.compile(model)` returns runs past hooks: call the model itself.

    Args:
        model: whose modules get hooks until the context ends, however it ends.
        patterns: with * ? and [] as in file names, `*` also across dots; none: everything.

    Raises:
        TraceError: a pattern fits no name, or the model is compiled or wrapped.
    """
    _check(model)
    known = names(model)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            near = get_close_matches(pattern, known, n=1, cutoff=0)[0]
            raise TraceError(
                f"nothing in this model is called {pattern!r:.80}; did you mean {near!r}?"
            )
    fits = [n for n in known if not patterns or any(fnmatchcase(n, p) for p in patterns)]
    tape = Tape(fits)
    with ExitStack() as stack:
        for name in fits:
            for handle in _watch(model, name, _keeper(tape._calls[name])):
                stack.callback(handle.remove)
        yield tape


def _check(model: nn.Module) -> None:
    """See that hooks would be called: compiled code, once made, goes past new ones in silence."""
    if not isinstance(model, Transformer):
        raise TraceError(f"hooks are put on a Transformer itself, not on {type(model).__name__}")
    if model._compiled_call_impl is not None:
        raise TraceError("a model that is compiled in place runs past hooks; use one that is not")


def _keeper(calls: list[Tensor]) -> Keep:
    return lambda tensor: calls.append(tensor.detach().clone())


def _watch(model: Transformer, name: str, keep: Keep) -> list[RemovableHandle]:
    """Give `keep` each value of a named intermediate."""
    path, _, leaf = name.rpartition(".")
    if name in ("source", "decoder_input"):
        embedding = model.source_embedding if name == "source" else model.target_embedding
        return [embedding.register_forward_pre_hook(lambda _, inputs: keep(inputs[0]))]
    if name == "source_mask":  # [b, 1, 1, s]: the same for all heads and queries
        return [
            model.encoder[0].register_forward_pre_hook(lambda _, inputs: keep(inputs[1][:, 0, 0]))
        ]
    if name == "target_mask":  # [b, 1, t, t]
        return [model.decoder[0].register_forward_pre_hook(lambda _, inputs: keep(inputs[2][:, 0]))]
    if leaf in ("table", "positions"):
        embedding = model.get_submodule(path)
        assert isinstance(embedding, Embedding)
        return _watch_embedding(embedding, leaf, keep)
    if leaf == "sum":
        residual = model.get_submodule(path)
        assert isinstance(residual, Residual)
        if not residual.pre:
            return [residual.norm.register_forward_pre_hook(lambda _, inputs: keep(inputs[0]))]
        return [residual.register_forward_hook(lambda _, inputs, output: keep(output))]
    module = model.get_submodule(name)
    return [module.register_forward_hook(lambda _, inputs, output: keep(output))]


def _watch_embedding(embedding: Embedding, leaf: str, keep: Keep) -> list[RemovableHandle]:
    """Both sides may share one table: the rows of this side are the last before it is done."""
    last: list[Tensor] = []

    def rows(_: nn.Module, inputs: tuple, output: Tensor) -> None:
        last[:] = [output]

    def done(_: nn.Module, inputs: tuple, options: dict, output: Tensor) -> None:
        if leaf == "table":
            keep(last.pop())
        else:
            start = inputs[1] if len(inputs) > 1 else options.get("start", 0)
            places = embedding.positions[start : start + output.shape[1]]
            keep(places.expand_as(output))

    whole = embedding.register_forward_hook(done, with_kwargs=True)
    return [whole, embedding.table.register_forward_hook(rows)] if leaf == "table" else [whole]


def check_head(model: Transformer, block: str, head: int = 0) -> None:
    """See that a model has an attention block, and the block a head.

    Raises:
        TraceError: no such block, no such head.
    """
    blocks = list(attentions(model))
    if block not in blocks:
        near = get_close_matches(block, blocks, n=1, cutoff=0)[0]
        raise TraceError(f"this model has no attention {block!r:.80}; did you mean {near!r}?")
    if not 0 <= head < model.config.heads:
        raise TraceError(f"{block} has no head {head}; its heads are 0 to {model.config.heads - 1}")


@contextmanager
def heads_off(model: Transformer, off: Iterable[tuple[str, int]]) -> Generator[None]:
    """Set the mixed values of heads to zero, in all calls made in this context.

    A recorder sees the zeros, inside this context or around it.

    Args:
        model: whose modules get hooks until the context ends, however it ends.
        off: attention blocks and the number of a head, from 0: ("decoder.0.cross_attention", 2).

    Raises:
        TraceError: no such block, no such head, or the model is compiled or wrapped.
    """
    _check(model)
    silent: dict[str, set[int]] = {}
    for block, head in off:
        check_head(model, block, head)
        silent.setdefault(block, set()).add(head)
    with ExitStack() as stack:
        for block, heads in silent.items():
            attention = model.get_submodule(block)
            assert isinstance(attention, MultiHeadAttention)
            # First of all hooks: the others see what is used.
            handle = attention.heads.register_forward_hook(_zero(sorted(heads)), prepend=True)
            stack.callback(handle.remove)
        yield


def _zero(heads: list[int]) -> Callable[[nn.Module, tuple, Tensor], Tensor]:
    def hook(_: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        return output.index_fill(1, torch.tensor(heads, device=output.device), 0)

    return hook
