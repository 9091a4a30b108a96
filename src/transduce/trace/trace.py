"""One sentence through one model: what it does, what else it could have said, and the checks."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import index
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.bundle import Bundle, count_parameters
from transduce.config import validate
from transduce.decode.search import SearchOptions
from transduce.decode.translator import Translator
from transduce.errors import DataError, TraceError
from transduce.ids import BOS, EOS, UNK
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import normalize
from transduce.trace.answers import continuations, switched_off
from transduce.trace.attribution import MOST_PIECES, attribution, cost
from transduce.trace.document import Output, Trace
from transduce.trace.invariants import check
from transduce.trace.observe import observe
from transduce.trace.record import heads_off
from transduce.trace.search import Tree, search_limit, search_tree
from transduce.trace.steps import steps
from transduce.trace.training import LARGEST, training_step

log = logging.getLogger(__name__)

TOP = 10
"""Likeliest tokens that are shown at each position."""


@torch.inference_mode()
def trace(
    translator: Translator,
    text: str,
    target: str | None = None,
    *,
    beam: int = 4,
    alpha: float = 0.6,
    prefix: Sequence[int] = (),
    off: Sequence[tuple[str, int]] = (),
    answers: bool = False,
) -> Trace:
    """Record all that a model does with one sentence, and check it.

    The intermediates are those of a forced pass over `target`, or over what a search finds; the
    searches are recorded in any case.

    Args:
        translator: of one model.
        text: what is translated; one that is too long is cut, with a warning. Of a blank text, with
            no target or a blank one, the trace is empty.
        target: whose probability is looked at; None: what beam search finds best.
        beam: prefixes that beam search keeps; 1 is greedy search.
        alpha: exponent of the length penalty.
        prefix: target ids that the searches have to begin with; the last may be EOS.
        off: heads that are switched off, as attention block and head:
            ("decoder.1.cross_attention", 2).
        answers: also record what the model says where each of the likeliest tokens is forced at
            each position, and with each head, block and pattern switched off; what each piece
            matters to each label; and what one training step on this pair does to a copy.

    Raises:
        TraceError: an ensemble, a head that does not exist, a prefix that cannot be forced, a model
            in half precision.
        SettingsError: beam or alpha out of range.
        DataError: the target is longer than the model can write, or what is given is no text.
    """
    bundle = _one(translator)
    options = validate(SearchOptions, {"beam": beam, "alpha": alpha})
    greedy, wide = (Tree(width, options.alpha, [], []) for width in (1, options.beam))
    name = Path(translator.names[0]).absolute().name
    empty = Trace(bundle=bundle, name=name, greedy=greedy, beam=wide)
    text, given = _normal(text, "text"), None if target is None else _normal(target, "target")
    if not (text + (given or "")).strip():
        return empty
    prefix = list(prefix)
    _check_prefix(bundle, prefix, given)
    source, cut = _source(bundle, text)
    off = tuple(dict.fromkeys((block, index(head)) for block, head in off))
    one = replace(empty, text=text, source=source, source_cut=cut, off=off, prefix=len(prefix))
    return _made(one, options, prefix, given, answers=answers)


@torch.inference_mode()
def again(one: Trace, bundle: Bundle) -> Trace:
    """Make a trace anew, without answers, with another model that has the same tokenizers."""
    if not one.source:
        return replace(one, bundle=bundle)
    options = SearchOptions(beam=one.beam.beam, alpha=one.beam.alpha)
    prefix, given = ([], one.target) if one.given else (one.labels[: one.prefix], None)
    return _made(replace(one, bundle=bundle), options, prefix, given, answers=False)


def _made(
    one: Trace, options: SearchOptions, prefix: Sequence[int], given: str | None, *, answers: bool
) -> Trace:
    """Search, and look: of `one` the source and what is switched off are known."""
    began, model = time.perf_counter(), one.bundle.model
    training = model.training
    model.eval()  # dropout would make each pass another
    try:
        with heads_off(model, one.off):
            greedy, wide = _searches(model, one.source, options, prefix)
        one = _with_target(replace(one, greedy=greedy, beam=wide), given)
        one = _observed(attributed(_answered(one, options)) if answers else one)
    finally:
        model.train(training)
    return replace(one, seconds=time.perf_counter() - began)


def _searches(
    model: Transformer, source: Sequence[int], options: SearchOptions, prefix: Sequence[int]
) -> tuple[Tree, Tree]:
    """Search greedily and with beams; a beam of 1 is the former."""
    limit = search_limit(model, source, prefix)
    search = partial(search_tree, model, source, alpha=options.alpha, limit=limit, prefix=prefix)
    greedy = search(beam=1)
    return greedy, greedy if options.beam == 1 else search(beam=options.beam)


def _with_target(one: Trace, given: str | None) -> Trace:
    """Add what is traced: a target that is given, or what the search has found."""
    tokenizer = one.bundle.target_tokenizer
    found = [*one.beam.finished[0][1].tokens, EOS]
    labels = found if given is None else _target(one.bundle, given)
    return replace(
        one,
        target=tokenizer.decode(labels) if given is None else given,
        decoder_input=[BOS, *labels[:-1]],
        labels=labels,
        given=given is not None,
        prefix=min(one.prefix, len(labels)),
    )


def _answered(one: Trace, options: SearchOptions) -> Trace:
    """Add what else the model would say."""
    model, given = one.bundle.model, (one.source, one.labels)
    limit = search_limit(model, one.source)
    with heads_off(model, one.off):
        others, fewer = continuations(model, *given, limit)
        switched, left_out = switched_off(model, *given, limit, one.off)
    one = replace(one, continuations=others, answers=switched, left_out=[*fewer, *left_out])
    if (size := count_parameters(model)) > LARGEST:
        why = f"a training step: the model's {size:,} parameters are more than {LARGEST:,}"
        return replace(one, left_out=[*one.left_out, why])
    return replace(one, training=training_step(model, *given, off=one.off))


def attributed(one: Trace, most: int | None = None) -> Trace:
    """Add what each piece matters to each label, if the work is at most `most` (of `cost`)."""
    model, pair = one.bundle.model, (one.source, one.labels)
    if max(map(len, pair)) > MOST_PIECES:
        why = f"what each piece matters: a side has more than {MOST_PIECES} pieces"
    elif most is not None and cost(model, *pair) > most:
        why = "what each piece matters: it takes long with this model; transduce trace measures it"
    elif one.source:
        with heads_off(model, one.off):
            return replace(one, attribution=attribution(model, *pair))
    else:
        return one
    return replace(one, left_out=[*one.left_out, why])


def _observed(one: Trace) -> Trace:
    """Add what the model computes, and the checks."""
    model, found = one.bundle.model, one.beam.finished[0][1]
    traced = list(one.labels) == [*found.tokens, EOS]
    seen = observe(
        model,
        one.source,
        one.decoder_input,
        one.labels,
        search_log_prob=found.log_prob if traced else None,
        off=one.off,
    )
    return replace(
        one,
        tensors=_alone(seen.tape),
        steps=steps(model, one.off),
        output=predictions(seen.tape["output"][0], one.labels),
        padding=seen.padding,
        # The rows of padding mean nothing.
        padded={
            name: weights[:, : weights.shape[1] - seen.padding]
            for name, weights in _weights(_alone(seen.padded)).items()
        },
        cached=_weights(_alone(seen.cached)),
        invariants=check(model, seen),
    )


def predictions(logits: Float[Tensor, "t V"], labels: Sequence[int]) -> Output:
    """Read distributions off their logits, one for each label; in float64."""
    logits = logits.cpu().double()  # in this order: Apple's GPUs have no float64
    log_probs = logits.log_softmax(-1)
    probabilities = log_probs.exp()
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    wanted = torch.tensor(labels)[:, None]
    return Output(
        log_probs=log_probs.gather(1, wanted)[:, 0].tolist(),
        entropy=(-(probabilities * log_probs).sum(-1)).tolist(),
        top=[
            list(zip(ids, values, shares, strict=True))
            for ids, values, shares in zip(
                order[:, :TOP].tolist(),
                logits.gather(1, order[:, :TOP]).tolist(),
                probabilities.gather(1, order[:, :TOP]).tolist(),
                strict=True,
            )
        ],
        rank=((order == wanted).nonzero()[:, 1] + 1).tolist(),
    )


def _one(translator: Translator) -> Bundle:
    if len(translator.bundles) > 1:
        raise TraceError(
            f"a trace is of one model, and this is an ensemble of {len(translator.bundles)}; "
            "load each by itself"
        )
    bundle = translator.bundles[0]
    if (kind := bundle.model.output.weight.dtype) in (torch.bfloat16, torch.float16):
        raise TraceError(
            f"the weights are {kind}, too coarse for the checks; trace them as float32"
        )
    return bundle


def _source(bundle: Bundle, text: str) -> tuple[list[int], bool]:
    """Return what the model can read of a text, EOS last, and whether it is less than all."""
    ids, longest = bundle.source_tokenizer.encode(text), bundle.model.config.max_length - 1
    if len(ids) > longest:
        log.warning(
            "the text's %d pieces are more than the model reads; cut after %d", len(ids), longest
        )
    return [*ids[:longest], EOS], len(ids) > longest


def _target(bundle: Bundle, text: str) -> list[int]:
    ids, longest = bundle.target_tokenizer.encode(text), bundle.model.config.max_length - 1
    if len(ids) > longest:
        raise DataError(
            f"the target's {len(ids)} pieces are more than the {longest} that the model can write; "
            "shorten it"
        )
    return [*ids, EOS]


def _normal(text: str, what: str) -> str:
    if not isinstance(text, str):
        raise DataError(f"{what} must be a string, not {type(text).__name__}")
    return normalize(text)


def _check_prefix(bundle: Bundle, prefix: Sequence[int], given: str | None) -> None:
    if prefix and given is not None:
        raise TraceError("a prefix is for searches, and the target is given; leave one of them out")
    longest = bundle.model.config.max_length - 1
    if len(prefix) - (prefix[-1:] == [EOS]) > longest:
        raise TraceError(
            f"a prefix of {len(prefix):,} pieces is more than the {longest} the model can write"
        )
    vocabulary = range(UNK + 1, bundle.model.config.target_vocab_size)
    for place, token in enumerate(prefix, start=1):
        if token not in vocabulary and not (token == EOS and place == len(prefix)):
            raise TraceError(
                f"prefix: {token!r:.40} cannot be forced; "
                f"ids are {vocabulary[0]} to {vocabulary[-1]}, and {EOS} ends it"
            )


def _alone(tape: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor[0].cpu() for name, tensor in tape.items()}


def _weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.endswith(".weights")}
