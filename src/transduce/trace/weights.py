"""A whole model as the page takes it: parameters, vocabularies, what is computed in which order."""

import copy
import struct
from collections.abc import Iterator
from typing import Any

import torch

from transduce.bundle import Bundle, count_parameters
from transduce.bundle import weights as parameters
from transduce.errors import TraceError
from transduce.ids import UNK
from transduce.text.tokenizer import Tokenizer
from transduce.trace.document import Precision, stored
from transduce.trace.steps import steps

MOST_PARAMETERS = 20_000_000
"""Of a model that a page can have inside: 40 MB of float16."""

# Of SentencePiece's file format, sentencepiece_model.proto: numbers of fields.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_KINDS = {1: "unigram", 2: "bpe"}
_NORMAL, _BYTE = 1, 6  # of a piece


def weights(bundle: Bundle, precision: Precision) -> dict[str, Any]:
    """Return the `weights` of a document: with them the page computes what PyTorch does.

    Each parameter stands once, by its name in model.safetensors, as base64 of little-endian
    numbers, row by row. For "float16" give the `rounded` model.

    Raises:
        TraceError: a larger model than a page can hold, or a tokenizer of another kind.
    """
    size = count_parameters(bundle.model)
    if size > MOST_PARAMETERS:
        raise TraceError(
            f"the model has {size:,} parameters, and a page holds {MOST_PARAMETERS:,} at most; "
            "leave it out (--no-model-inside, model_inside=False)"
        )
    source, target = bundle.source_tokenizer, bundle.target_tokenizer
    return {
        "precision": precision,
        "parameters": {
            name: stored(tensor, precision) for name, tensor in parameters(bundle.model).items()
        },
        "tokenizers": {
            "source": vocabulary(source),
            "target": None if source.model == target.model else vocabulary(target),
        },
        "steps": [
            {
                "name": step.name,
                "formula": step.formula,
                "inputs": list(step.inputs),
                "code": step.code,
            }
            for step in steps(bundle.model)
        ],
    }


@torch.inference_mode(False)  # gradients are asked of the copy, wherever it is made
@torch.no_grad()
def rounded(bundle: Bundle) -> Bundle:
    """Return a copy whose parameters have gone through float16 and back, tied ones still tied.

    Raises:
        TraceError: a number that is beyond float16, whose largest is 65,504.
    """
    model = copy.deepcopy(bundle.model)
    for name, parameter in model.named_parameters():
        half = parameter.half()
        if not half.isfinite().all():
            raise TraceError(
                f"{name} holds {parameter.abs().max():.6g}, more than float16 can; "
                "leave the model out (--no-model-inside, model_inside=False)"
            )
        parameter.copy_(half)
    return bundle._replace(model=model)


def vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    """Read a SentencePiece model: its kind, and pieces and scores by id.

    Raises:
        TraceError: it cuts text in another way than those of transduce, the only one of the page.
    """
    parts = list(_fields(tokenizer.model))
    trainer, normalizer = (
        {number: value for part, spec in parts if part == kind for number, value in _fields(spec)}
        for kind in (_TRAINER, _NORMALIZER)
    )
    kind = _KINDS.get(trainer.get(3, 1))
    identity = normalizer.get(1, b"") in (b"", b"identity") and not normalizer.get(2)
    spaces = [normalizer.get(n, 1) for n in (3, 4, 5)]  # added before, many as one, as U+2581
    pieces = [dict(_fields(piece)) for part, piece in parts if part == _PIECES]
    others = {piece.get(3, _NORMAL) for piece in pieces[UNK + 1 :]} - {_NORMAL, _BYTE}
    plain = identity and spaces == [1, 0, 1] and not trainer.get(24) and not others
    if kind is None or not plain or not trainer.get(35):
        raise TraceError(
            "the page cannot cut text as this model's tokenizer does, which transduce has not made;"
            " leave the model out (--no-model-inside, model_inside=False)"
        )
    assert len(pieces) == tokenizer.size
    return {
        "kind": kind,
        "pieces": [piece[1].decode() for piece in pieces],
        "scores": [struct.unpack("<f", piece.get(2, b"\0" * 4))[0] for piece in pieces],
    }


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Read a message of protocol buffers: numbers as int, text and messages as bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(key & 7)
        if size is None:
            size, at = _varint(message, at)
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at a place, seven bits a byte, the lowest first; and where it ends."""
    value = shift = 0
    while True:
        value |= (message[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if message[at - 1] < 128:
            return value, at
