"""Alignments as the verb trace prints them: a line of links a sentence, and how they were found."""

from collections.abc import Iterable

from transduce.bundle import Bundle
from transduce.errors import TraceError
from transduce.trace.alignment import Units, align
from transduce.trace.document import Trace
from transduce.trace.record import check_head
from transduce.trace.steps import last_cross_attention


def aligned(
    traces: Iterable[Trace],
    bundle: Bundle,
    block: str | None,
    head: int | None,
    units: Units | None,
) -> tuple[str, str, bool]:
    """Return a line of i-j for each sentence, one that says how, and whether all checks hold.

    Raises:
        TraceError: no such block or head, or no cross-attention.
    """
    block = block or last_cross_attention(bundle.model)
    check_head(bundle.model, block, head or 0)
    if not block.endswith("cross_attention"):
        raise TraceError(f"--block {block}: only a cross-attention links target and source")
    units = units or "words"
    found, ok = [], True
    for one in traces:  # each is large, and needed no longer
        found.append(align(one, block, head, units=units))
        ok = ok and one.ok
    full = [one for one in found if one.units]
    end, marks = (
        100 * sum(shares) / max(1, len(full))
        for shares in ([one.end for one in full], [one.punctuation for one in full])
    )
    told = (
        f"alignments: {block}, {'mean of heads' if head is None else f'head {head}'}, at the "
        f"position that predicts; {sum(len(one.links) for one in full)} of "
        f"{sum(one.units for one in full)} target {units} linked, EOS has the others; "
        f"of the weight {end:.1f} % is on EOS, {marks:.1f} % on punctuation, BOS is no key"
    )
    lines = (" ".join(f"{i}-{j}" for i, j in one.links) + "\n" for one in found)
    return "".join(lines), told, ok
