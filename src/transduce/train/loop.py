"""Training: `train_step` on one screen, and the loop around it in the order things happen."""

import copy
import logging
import math
import resource
import signal
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch.optim import Adam

from transduce import bundle
from transduce import config as settings
from transduce.bundle import Bundle
from transduce.data.batching import Batch, collate, plan
from transduce.errors import RunError, Stopped
from transduce.evaluate import Score
from transduce.model.config import TransformerConfig
from transduce.model.device import bf16_pays, choose_device, set_threads
from transduce.model.loss import smoothed_loss
from transduce.model.transformer import Transformer
from transduce.train import checkpoint, run
from transduce.train.card import model_card
from transduce.train.checkpoint import State
from transduce.train.config import TrainConfig
from transduce.train.defaults import Loop, choose
from transduce.train.monitor import Monitor, read_metrics
from transduce.train.prepare import Data, open_data, prepare
from transduce.train.schedule import noam
from transduce.train.validate import Validation, validate

log = logging.getLogger(__name__)

_SKIPPED_AT_MOST = 10
"""Updates in a row that may fail to be finite before training stops."""
_REMEDY = (
    "the last checkpoint is sound. Lower train.learning_rate_scale, or set train.clip_norm, "
    "in another folder"
)


class Step(NamedTuple):
    """What one step did: its summed plain loss (nats), its real target tokens, if it counted."""

    loss: float
    tokens: int
    applied: bool


def train_step(
    model: Transformer,
    optimizer: Adam,
    batches: Sequence[Batch],
    *,
    loop: Loop,
    learning_rate: float,
    seed: int,
    bf16: bool,
) -> Step:
    """One update from the summed gradient of some micro-batches, divided by all their real tokens.

    Dropout follows from `seed` alone. A loss or gradient that is not finite is not applied.
    """
    torch.manual_seed(seed)
    device = next(model.parameters()).device
    tokens = sum(batch.tokens for batch in batches)
    total = torch.zeros((), device=device)
    for batch in batches:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            logits = model.decode(
                batch.decoder_input.to(device), *model.encode(batch.source.to(device))
            )
        loss = smoothed_loss(logits, batch.labels.to(device), loop.label_smoothing)
        (loss.smoothed / tokens).backward()
        total += loss.plain.detach()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    finite = bool(torch.isfinite(norm + total))
    if finite:
        if loop.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(model.parameters(), loop.clip_norm, norm)
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()
    optimizer.zero_grad()
    return Step(float(total), tokens, finite)


class Result(NamedTuple):
    """Where the best model is, and its validation score."""

    folder: Path
    bleu: Score


def train(config: TrainConfig, *, console: Console | None = None) -> Result:
    """Train a translator in `config.out`, or go on with the training that is there.

    Args:
        config: the settings; what they leave open is chosen from the corpus and told.
        console: where progress is shown; None shows nothing.

    Raises:
        DataError, TokenizerError, SettingsError, RunError, DeviceError: see errors.py.
        Stopped: SIGINT or SIGTERM came; all is saved, and the same call goes on.
    """
    console = console or Console(quiet=True)
    folder = config.out
    with run.locked(folder):
        threads = set_threads(config.threads)
        record = run.read(folder)
        if record:
            run.check(record, config, folder)
            if (done := _finished(folder)) is not None:
                console.print(f"{folder}: this training is finished, {done.bleu}", soft_wrap=True)
                return done
            data = open_data(folder / "data")
        else:
            console.print("reading and encoding the text", highlight=False)
            data = prepare(config, folder / "data")
        training = _set_up(config, data, record, threads, console)
        with _stop_signals() as stop:
            return _run(config, data, training, stop, console)


class _Training(NamedTuple):
    """Everything a training moves, and where it stands."""

    model: Bundle
    optimizer: Adam
    loop: Loop
    bf16: bool
    state: State


def _set_up(
    config: TrainConfig, data: Data, record: dict[str, Any], threads: int, console: Console
) -> _Training:
    """Choose and record what is not decided yet, make the model, and load the newest checkpoint."""
    device = choose_device(config.device)
    reasons = []
    if record:
        architecture = settings.validate(TransformerConfig, record["architecture"])
        loop = settings.validate(Loop, record["loop"])
        if (was := record["threads"]) != threads:
            log.warning("%d threads, the run had %d: not the same to the last bit", threads, was)
    else:
        sizes = (data.source_tokenizer.size, data.target_tokenizer.size)
        tokens = max(data.report["training_tokens"].values()) + len(data.train)
        architecture, loop, reasons = choose(
            config, pairs=len(data.train), tokens=tokens, vocab_sizes=sizes
        )
    torch.manual_seed(config.seed)
    about = {
        "source_language": config.source_language,
        "target_language": config.target_language,
        "licence": config.licence,
    }
    model = Bundle(
        Transformer(architecture).to(device), data.source_tokenizer, data.target_tokenizer, about
    )
    optimizer = Adam(
        model.model.parameters(),
        betas=loop.adam_betas,
        eps=loop.adam_epsilon,
        fused=device.type in ("cpu", "cuda"),
    )
    for line in data.report["lines"] + reasons if not record else []:
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    bf16 = record["bf16"] if record else _measure(config, data, model, loop, console)
    if not record:
        facts = {
            "settings": config.identity(),
            "files": data.report["files"],
            "architecture": architecture.model_dump(mode="json"),
            "loop": loop.model_dump(mode="json"),
            "bf16": bf16,
            "threads": threads,
        }
        run.write(config.out, facts)
    state = checkpoint.restore(config.out, model, optimizer)
    if record:
        console.print(f"going on from step {state.step:,}", highlight=False)
    return _Training(model, optimizer, loop, bf16, state)


def _measure(config: TrainConfig, data: Data, model: Bundle, loop: Loop, console: Console) -> bool:
    """Decide the precision by timing real steps on a copy of the model; tell time and memory."""
    device = next(model.model.parameters()).device
    copied = copy.deepcopy(model.model).train()
    optimizer = Adam(copied.parameters(), fused=device.type in ("cpu", "cuda"))
    rows = plan(data.train.lengths, loop.batch_tokens, seed=config.seed, epoch=0)[0][0]
    batch = collate([data.train[row] for row in rows])

    def step(bf16: bool) -> None:
        train_step(copied, optimizer, [batch], loop=loop, learning_rate=1e-6, seed=0, bf16=bf16)

    if config.precision == "auto":
        bf16 = bf16_pays(device, step)
    else:
        bf16 = config.precision == "bf16"
        step(bf16)
    began = time.perf_counter()
    step(bf16)
    seconds = (time.perf_counter() - began) * loop.accumulate * loop.max_steps
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    parameters = sum(p.numel() for p in model.model.parameters())
    console.print(
        f"  {parameters:,} parameters, {'bf16' if bf16 else 'fp32'} on {device} with "
        f"{torch.get_num_threads()} threads: about {max(1, round(seconds / 60))} min, "
        f"{memory:.1f} GB so far",
        highlight=False,
        soft_wrap=True,
    )
    return bf16


def _run(
    config: TrainConfig, data: Data, training: _Training, stop: threading.Event, console: Console
) -> Result:
    """Go from the state to the end; each line of this loop happens once a step, in this order."""
    model, optimizer, loop, bf16, state = training
    d_model = model.model.config.d_model
    if state.best_step:
        checkpoint.point_best(config.out, checkpoint.path(config.out, state.best_step))
    monitor = Monitor(
        console,
        config.out / "metrics.jsonl",
        step=state.step,
        max_steps=loop.max_steps,
        log_every=loop.log_every,
    )
    with monitor:
        steps = _epoch(config, data, loop, state.epoch)
        model.model.train()
        while state.step < loop.max_steps and not state.stopped_early:
            if state.position == len(steps):
                state.epoch, state.position = state.epoch + 1, 0
                steps = _epoch(config, data, loop, state.epoch)
            batches = [collate([data.train[row] for row in rows]) for rows in steps[state.position]]
            state.step, state.position = state.step + 1, state.position + 1
            rate = loop.learning_rate_scale * noam(state.step, d_model, loop.warmup)
            result = train_step(
                model.model,
                optimizer,
                batches,
                loop=loop,
                learning_rate=rate,
                seed=_seed(config.seed, state.step),
                bf16=bf16,
            )
            _count_skipped(state, result)
            monitor.step(state.step, loss=result.loss, tokens=result.tokens, learning_rate=rate)
            due = state.step % loop.validate_every == 0 or state.step == loop.max_steps
            # After an update that was not finite the weights are suspect: nothing is built on them.
            sound = state.skipped == 0
            score = _validate(data, training, monitor) if due and sound else None
            if sound and (due or state.step % loop.save_every == 0 or stop.is_set()):
                _save(config, data, training, score)
            if stop.is_set():
                raise Stopped(f"stopped at step {state.step:,}, saved; the same command goes on")
        return _finish(config, data, training, monitor)


def _epoch(config: TrainConfig, data: Data, loop: Loop, epoch: int) -> list:
    """The steps of one pass over the corpus: a pure function of seed and epoch."""
    return plan(
        data.train.lengths,
        loop.batch_tokens,
        seed=config.seed,
        epoch=epoch,
        accumulate=loop.accumulate,
    )


def _seed(seed: int, step: int) -> int:
    """What dropout of a step is drawn from."""
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> 1)


def _count_skipped(state: State, result: Step) -> None:
    state.skipped = 0 if result.applied else state.skipped + 1
    if state.skipped:
        log.warning("step %d: loss or gradient is not finite, not applied", state.step)
    if state.skipped == _SKIPPED_AT_MOST:
        raise RunError(f"step {state.step}: {state.skipped} updates in a row not finite; {_REMEDY}")


def _validate(data: Data, training: _Training, monitor: Monitor) -> Validation:
    """Validate, and keep account of what is best: the higher BLEU, the earlier step of equals."""
    loop, state = training.loop, training.state
    score = validate(training.model, data.valid, loop)
    if not math.isfinite(score.loss):
        raise RunError(f"step {state.step}: the validation loss is {score.loss}; {_REMEDY}")
    best = score.bleu.value > state.best_bleu
    if best:
        state.best_step, state.best_bleu, state.stale = state.step, score.bleu.value, 0
    elif state.best_bleu > 0:  # before the first right words there is nothing to be patient about
        state.stale += 1
    state.validated = [*state.validated, state.step][-loop.average_last :]
    state.stopped_early = 0 < loop.patience <= state.stale
    monitor.validation(state.step, score, data.valid, best=best)
    if state.stopped_early:
        monitor.say(f"no better BLEU in {loop.patience} validations: training ends here")
    return score


def _save(config: TrainConfig, data: Data, training: _Training, score: Validation | None) -> None:
    model, state = training.model, training.state
    card = model_card(config, model, data.report, step=state.step, score=score)
    folder = checkpoint.save(config.out, state, model, training.optimizer, card)
    if state.best_step == state.step:
        checkpoint.point_best(config.out, folder)
    checkpoint.prune(config.out, state)


def _finish(config: TrainConfig, data: Data, training: _Training, monitor: Monitor) -> Result:
    """Let `best` name the better of the best checkpoint and the average of the last ones."""
    model, _, loop, _, state = training
    if not state.best_step:
        raise RunError(f"step {state.step}: never validated, no update was finite; {_REMEDY}")
    folder = checkpoint.path(config.out, state.best_step)
    tensors = bundle.read_tensors(folder / "model.safetensors")
    bundle.load_weights(model.model, tensors, folder)
    score = validate(model, data.valid, loop, interval=True)
    if len(state.validated) > 1:
        average = checkpoint.average(config.out, model, state, "")
        mean = validate(model, data.valid, loop, interval=True)
        monitor.say(f"average of the last {len(state.validated)}: BLEU {mean.bleu.value:.2f}")
        if mean.bleu.value > score.bleu.value:
            folder, score = average, mean
            card = model_card(config, model, data.report, step=state.step, score=score)
            (average / "model_card.md").write_text(card, encoding="utf-8")
    checkpoint.point_best(config.out, folder)
    monitor.finished(
        state.step,
        best=folder.name,
        bleu=score.bleu.value,
        signature=score.bleu.signature,
        interval=score.bleu.interval,
    )
    monitor.say(f"done: {config.out / 'best'} ({folder.name}), validation BLEU {score.bleu}")
    return Result(config.out / "best", score.bleu)


def _finished(folder: Path) -> Result | None:
    last = (read_metrics(folder / "metrics.jsonl") or [{}])[-1]
    if not last.get("finished"):
        return None
    return Result(folder / "best", Score(last["bleu"], last["signature"], last["interval"]))


@contextmanager
def _stop_signals() -> Generator[threading.Event]:
    """Turn SIGINT and SIGTERM into an event while training; a second one ends at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: object) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
