"""The pictures of docs/guide.md: python docs/figures/make.py transduce-demo (after make demo).

Every number in them is computed here: by the model, or from the guide's own example.
"""

import sys
from pathlib import Path

from drawings import block, equation, heads, river, tokens, training

from transduce import Trace, Translator, trace
from transduce.trace.figures.attention import attention
from transduce.trace.figures.beam import beam
from transduce.trace.figures.masks import masks

HERE = Path(__file__).parent
SHORT = "The dog was tired."
LESSON = "I love maths."
SEARCHED = "She was tired."


def make(model: Path, folder: Path) -> None:
    """Draw all figures with a model into a folder."""
    translator = Translator.load(model)
    short = trace(translator, SHORT)
    document = short.to_json()
    (one,), (lesson,), (searched,) = (
        each["traces"]
        for each in (
            document,
            trace(translator, LESSON).to_json(),
            trace(translator, SEARCHED, beam=2).to_json(),
        )
    )
    pictures = {
        "river": river(document),
        "tokens": tokens(one),
        "equation": equation(),
        "heads": heads(document, "decoder.0.cross_attention"),
        "patterns": attention(one, [(name, None) for name in last_blocks(short)]),
        "masks": masks(one),
        "block": block(document["model"]),
        "training": training(lesson),
        "nextword": beam(searched),
    }
    for name, picture in pictures.items():
        (folder / f"{name}.svg").write_text(picture, encoding="utf-8")


def last_blocks(found: Trace) -> list[str]:
    """The last layer's three patterns of attention."""
    model = found.bundle.model
    encoder, decoder = len(model.encoder) - 1, len(model.decoder) - 1
    return [
        f"encoder.{encoder}.self_attention",
        f"decoder.{decoder}.self_attention",
        f"decoder.{decoder}.cross_attention",
    ]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/figures/make.py MODEL")
    make(Path(sys.argv[1]), HERE)
