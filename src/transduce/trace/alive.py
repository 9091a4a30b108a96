"""A document with the model inside: the page computes its numbers, and those of other sentences."""

from collections.abc import Sequence
from typing import Any

from transduce.bundle import Bundle, count_parameters
from transduce.errors import TraceError
from transduce.trace.document import Trace, document
from transduce.trace.trace import again, attributed
from transduce.trace.weights import rounded, weights

MOST_UNASKED = 1_000_000
"""Parameters of a model that goes into a page by itself: 2 MB of float16."""


def goes_inside(bundle: Bundle, wanted: bool | None) -> bool:
    """Whether a page gets the model: as is `wanted`, or, of None, where it is small and fits."""
    if wanted is not None:
        return wanted
    if count_parameters(bundle.model) > MOST_UNASKED:
        return False
    try:
        weights(rounded(bundle), "float16")
    except TraceError:  # another's tokenizer, or numbers beyond float16
        return False
    return True


def alive(traces: Sequence[Trace], beside: Sequence[Sequence[Trace]] = ()) -> dict[str, Any]:
    """Return the document of the same sentences with their model inside, rounded to float16.

    The traces are made again, by PyTorch and the rounded model. Their tensors are left out: the
    page computes them, and checks that its log-probabilities are PyTorch's. What each piece matters
    stays. `beside` is as for `document`.

    Raises:
        TraceError: a model that the page cannot have inside (weights.py).
    """
    bundle = rounded(traces[0].bundle)
    inside = weights(bundle, "float16")
    made = [attributed(again(one, bundle)) for one in traces]
    payload = document(made, beside)
    for one, its in zip(payload["traces"], made, strict=True):
        one["tensors"], one["padded"]["weights"], one["cached"]["weights"] = {}, {}, {}
        one["left_out"] = "; ".join(its.left_out) or None
    return payload | {"weights": inside}
