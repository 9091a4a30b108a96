"""What a training shows and records: progress on a terminal or plain lines, metrics.jsonl."""

import json
import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from transduce.errors import RunError
from transduce.evaluate import Score
from transduce.files import last_json_line, printable, read_json_lines, whole_file
from transduce.progress import Board, duration, say
from transduce.tensorboard import EventWriter
from transduce.train import checkpoint
from transduce.train.config import TrainConfig
from transduce.train.defaults import Chosen
from transduce.train.prepare import Example
from transduce.train.validate import Validation

_SAMPLES = 2


class Monitor:
    """Shows and records a training from a step on; use it as a context.

    `metrics.jsonl` has a line every `log_every` steps and one a validation; lines past the step
    that training goes on from are cut off first. The first line after a kill may stand for fewer
    steps than the others.
    """

    def __init__(self, console: Console, config: TrainConfig, *, step: int, chosen: Chosen) -> None:
        self._console, self._run = console, config.out
        metrics = config.out / "metrics.jsonl"
        self._log_every, self._max_steps = chosen.log_every, chosen.max_steps
        # A validation at step 0 may be there without the checkpoint that it was for.
        last = step if checkpoint.steps(config.out) else -1
        _cut(metrics, last)
        self._events: EventWriter | None = None
        if config.tensorboard:
            self._events = EventWriter(config.out / "tensorboard", after=last)
        self._metrics = metrics.open("a", encoding="utf-8", newline="\n")
        self._board = Board(console, "training", total=chosen.max_steps, step=step)
        self._bleu = ""
        self._began_step, self._began = step, time.monotonic()
        self._loss, self._tokens, self._since = 0.0, 0, self._began

    def __enter__(self) -> "Monitor":
        self._board.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._board.__exit__()
        self._metrics.close()
        if self._events:
            self._events.close()

    def say(self, line: str) -> None:
        """Print lines that stay."""
        say(self._console, line)

    def step(
        self, step: int, applied: bool, loss: float, tokens: int, *, learning_rate: float
    ) -> None:
        """Take in one step: its summed plain loss in nats and the number of real target tokens."""
        if applied:  # else its loss may not be finite
            self._loss, self._tokens = self._loss + loss, self._tokens + tokens
        seconds = time.monotonic() - self._since
        mean = self._loss / max(1, self._tokens)
        rate = self._tokens / seconds if seconds > 0 else 0.0  # no clock is trusted
        perplexity = math.exp(min(mean, 700))
        numbers = f"loss {mean:.3f}  perplexity {perplexity:.1f}  {rate:,.0f} tokens/s"
        self._board.step, self._board.numbers = step, f"{numbers}  {self._bleu}"
        if step % self._log_every and step != self._max_steps:
            return
        self._record(
            step=step,
            loss=round(mean, 6),
            perplexity=round(perplexity, 4),
            learning_rate=learning_rate,
            tokens_per_second=round(rate),
        )
        if not self._console.is_terminal:
            a_step = max(0, time.monotonic() - self._began) / max(1, step - self._began_step)
            left = duration((self._max_steps - step) * a_step)
            self.say(f"step {step:,}/{self._max_steps:,}  {numbers}  {left} left")
        self._loss, self._tokens, self._since = 0.0, 0, time.monotonic()

    def validation(
        self, step: int, result: Validation, examples: Sequence[Example], *, best: bool
    ) -> None:
        """Show and record a validation, with two sample translations."""
        self._bleu = f"BLEU {result.bleu.value:.1f}"
        mark = "  (best so far)" if best and result.bleu.value else ""
        self.say(
            f"step {step:,}  validation: loss {result.loss:.3f}  "
            f"perplexity {result.perplexity:.2f}  BLEU {result.bleu.value:.2f}{mark}"
        )
        self._record(
            step=step,
            valid_loss=round(result.loss, 6),
            valid_perplexity=round(result.perplexity, 4),
            valid_bleu=round(result.bleu.value, 4),
            signature=result.bleu.signature,
        )
        self._board.samples = "\n".join(
            f"  source      {printable(example.source)}\n"
            f"  translation {printable(text)}\n"
            f"  reference   {printable(example.references[0])}\n"
            for example, text in zip(examples[:_SAMPLES], result.translations, strict=False)
        )
        if not self._console.is_terminal:
            self.say(self._board.samples)

    @contextmanager
    def validating(self) -> Generator[None]:
        """Show what takes so long, and leave it out of the rates."""
        began, self._board.doing = time.monotonic(), "validating"
        yield
        self._board.doing = "training"
        self._since += time.monotonic() - began

    def finished(self, step: int, best: str, score: Score) -> None:
        """Show and record the end: which model is the best, and its score."""
        self._record(step=step, finished=True, best=best, **score._asdict())
        self.say(f"done: BLEU {score.value:.2f} ± {score.interval:.1f} on validation ({best})")
        self.say(f"translate with:  transduce translate {self._run} < some-text")

    def _record(self, **facts: Any) -> None:  # noqa: ANN401 - plain JSON values
        self._metrics.write(json.dumps(facts, allow_nan=False) + "\n")
        self._metrics.flush()
        if self._events and "finished" not in facts:
            self._events.write(**facts)


def last_record(path: Path) -> dict[str, Any]:
    """Return the last record of a metrics.jsonl; empty if it has none near its end."""
    return last_json_line(path, "step") if path.exists() else {}


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a metrics.jsonl; lines that are none are left out, with a warning."""
    try:
        for record in read_json_lines(path) if path.exists() else ():
            if type(step := record.get("step")) is int and step <= 10**9:
                yield record
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}; remove it, or name another --out") from None


def _cut(path: Path, step: int) -> None:
    with whole_file(path, follow=False) as file:
        for record in read_metrics(path):
            if record["step"] <= step:
                file.write(json.dumps(record) + "\n")
