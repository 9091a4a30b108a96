"""Training: `train_step` on one screen, and the loop around it in the order things happen."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch.optim import Adam
from torch.optim.swa_utils import get_ema_multi_avg_fn

from transduce.bundle import Bundle
from transduce.data.batching import Batch, collate, plan
from transduce.device import enough_memory, kept_memory
from transduce.errors import RunError, Stopped
from transduce.evaluate import Score
from transduce.model.config import TransformerConfig
from transduce.model.fused_loss import projected_loss
from transduce.model.transformer import Transformer
from transduce.model.working import collect_gradients, refresh
from transduce.signals import Stop
from transduce.train import checkpoint
from transduce.train.card import model_card
from transduce.train.checkpoint import State
from transduce.train.config import TrainConfig
from transduce.train.defaults import Chosen
from transduce.train.monitor import Monitor
from transduce.train.prepare import Data
from transduce.train.schedule import noam
from transduce.train.validate import REMEDY, Validation, validate

log = logging.getLogger(__name__)

_SKIPPED_AT_MOST = 10
"""Updates in a row that may fail to be finite before training stops."""


class Step(NamedTuple):
    """What one step did: its summed plain loss (nats), its real target tokens, if it counted."""

    loss: float
    tokens: int
    applied: bool


def train_step(
    model: Transformer,
    optimizer: Adam,
    batches: Sequence[Batch],
    chosen: Chosen,
    *,
    working: Transformer,
    learning_rate: float,
    seed: int,
) -> Step:
    """One update from the summed gradient of some micro-batches, divided by all their real tokens.

    `working` is the model, or the copy of it that computes in bfloat16 (`working_copy`). Dropout
    follows from `seed` alone. A loss or gradient that is not finite is not applied.
    """
    torch.manual_seed(seed)
    device = next(model.parameters()).device
    tokens = sum(batch.tokens for batch in batches)
    total = torch.zeros((), device=device)
    refresh(working, model)
    for batch in batches:
        source, decoder_input, labels, _ = batch.to(device)
        states = working.decode(decoder_input, *working.encode(source))
        loss = projected_loss(states, working.output.weight, labels, chosen.label_smoothing)
        (loss.smoothed / tokens).backward()
        collect_gradients(working, model)
        total += loss.plain
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    finite = bool(torch.isfinite(norm + total))
    if finite:
        if chosen.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(model.parameters(), chosen.clip_norm, norm)
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()
    optimizer.zero_grad()
    return Step(float(total), tokens, finite)


def adam(model: Transformer, chosen: Chosen) -> Adam:
    """Make the paper's optimizer; `train_step` sets its rate."""
    fused = next(model.parameters()).device.type in ("cpu", "cuda")
    return Adam(model.parameters(), betas=chosen.adam_betas, eps=chosen.adam_epsilon, fused=fused)


class Result(NamedTuple):
    """Where the best model is, and its validation score."""

    folder: Path
    bleu: Score


class Training(NamedTuple):
    """Everything a training moves, and where it stands."""

    config: TrainConfig
    data: Data
    model: Transformer
    kept: Bundle
    """What is validated and saved: this model, or the moving average of its weights."""
    optimizer: Adam
    chosen: Chosen
    working: Transformer
    """What computes: `model`, or its copy in bfloat16."""
    state: State


def go_on(training: Training, stop: Stop, console: Console) -> Result:
    """Go from the state to the end; each line of this loop happens once a step, in this order.

    Raises:
        RunError: updates or the validation loss are not finite.
        Stopped: it was asked for; all is saved.
    """
    config, chosen, state = training.config, training.chosen, training.state
    if state.best_step >= 0:  # a kill may have come between the checkpoint and the link
        checkpoint.point_best(config.out, checkpoint.path(config.out, state.best_step))
    checkpoint.prune(config.out, state, snapshots=config.train.snapshots)
    monitor = Monitor(console, config, step=state.step, chosen=chosen)
    stop.waits = True
    remedy = memory_remedy(config, chosen, training.model.config)
    with monitor, kept_memory(), enough_memory(RunError, remedy):
        if config.start_from is not None and not checkpoint.steps(config.out):
            _save(training, _validate(training, monitor))  # to be better than this is the aim
        steps, skipped = _epoch(training), 0
        while state.step < chosen.max_steps and not _patience_is_over(training):
            if state.position >= len(steps):
                state.epoch, state.position = state.epoch + 1, 0
                steps = _epoch(training)
            result = _update(training, steps[state.position], monitor)
            # After an update that was not finite the weights are suspect: nothing is built on them.
            skipped = 0 if result.applied else skipped + 1
            if skipped == _SKIPPED_AT_MOST:
                raise RunError(
                    f"step {state.step}: {skipped} updates in a row not finite; {REMEDY}"
                )
            due = state.step % chosen.validate_every == 0 or state.step == chosen.max_steps
            stopping = stop.asked
            if not skipped and (due or stopping or state.step % chosen.save_every == 0):
                _save(training, _validate(training, monitor) if due else None)
                stopping = stop.asked  # or it came while validating
            if stopping:
                saved = max(checkpoint.steps(config.out), default=0)
                raise Stopped(f"stopped; the same command goes on from step {saved:,}")
        return _finish(training, stop, monitor)


def memory_remedy(config: TrainConfig, chosen: Chosen, architecture: TransformerConfig) -> str:
    """What decides how much memory a training takes, and what to do where that is too much."""
    return (
        f"with train.batch_tokens={chosen.batch_tokens}, data.max_length={config.data.max_length}, "
        f"train.beam={chosen.beam}, model.d_model={architecture.d_model}; what was saved is sound. "
        "Free some and run the same command, or lower one of these in another --out "
        "(train.accumulate makes up for smaller batches)"
    )


def _epoch(training: Training) -> list[list[np.ndarray]]:
    """The steps of one pass over the corpus: a pure function of seed and epoch."""
    data, chosen = training.data, training.chosen
    steps = plan(
        data.train.lengths,
        chosen.batch_tokens,
        seed=training.config.seed,
        epoch=training.state.epoch,
        accumulate=chosen.accumulate,
    )
    log.info("pass %d over the text: %d steps", training.state.epoch + 1, len(steps))
    return steps


def _update(training: Training, rows: list[np.ndarray], monitor: Monitor) -> Step:
    """Make the next step, of the pairs of these rows; the state counts it."""
    state, model = training.state, training.model
    state.step, state.position = state.step + 1, state.position + 1
    rate = noam(state.step, model.config.d_model, training.chosen.warmup)
    rate *= training.chosen.learning_rate_scale
    seeds = np.random.SeedSequence((training.config.seed, state.step)).generate_state(1, np.uint64)
    seed = int(seeds[0] >> 1)
    training.working.train()
    result = train_step(
        model,
        training.optimizer,
        [collate([training.data.train[row] for row in batch]) for batch in rows],
        training.chosen,
        working=training.working,
        learning_rate=rate,
        seed=seed,
    )
    if result.applied and model is not training.kept.model:
        decay = min(training.chosen.ema_decay, (1 + state.step) / (10 + state.step))
        average: list[torch.Tensor] = list(training.kept.model.parameters())
        get_ema_multi_avg_fn(decay)(average, list(model.parameters()), state.step)
    if not result.applied:
        log.warning("step %d: loss or gradient is not finite, not applied", state.step)
    monitor.step(state.step, result.applied, result.loss, result.tokens, learning_rate=rate)
    return result


def _patience_is_over(training: Training) -> bool:
    return 0 < training.chosen.patience <= training.state.stale


def _validate(training: Training, monitor: Monitor) -> Validation:
    """Validate, and keep account of what is best: the higher BLEU, the earlier step of equals.

    While no word is right, BLEU says nothing and the lower loss is the better.
    """
    chosen, state = training.chosen, training.state
    with monitor.validating():
        score = validate(training.kept, training.data.valid, chosen)
    bleu = score.bleu.value
    best = bleu > state.best_bleu or (bleu == 0 == state.best_bleu and score.loss < state.best_loss)
    if best:
        state.best_step, state.best_bleu, state.stale = state.step, bleu, 0
        state.best_loss = score.loss
    elif state.best_bleu > 0:  # before the first right words there is nothing to be patient about
        state.stale += 1
    state.validated = [*state.validated, state.step][-chosen.average_last :]
    monitor.validation(state.step, score, training.data.valid, best=best)
    if _patience_is_over(training):
        monitor.say(f"no better BLEU in {chosen.patience} validations: training ends here")
    return score


def _save(training: Training, score: Validation | None) -> None:
    config, state, kept = training.config, training.state, training.kept
    if not all(bool(weight.isfinite().all()) for weight in training.model.parameters()):
        raise RunError(f"step {state.step}: a weight is not finite; {REMEDY}")
    card = model_card(config, kept, training.data.report, made=f"step {state.step:,}", score=score)
    folder = checkpoint.save(config.out, state, kept, training.model, training.optimizer, card)
    if state.best_step == state.step:
        checkpoint.point_best(config.out, folder)
    checkpoint.prune(config.out, state, snapshots=config.train.snapshots)


def _finish(training: Training, stop: Stop, monitor: Monitor) -> Result:
    """Let `best` name the better of the best checkpoint and the average of the last ones."""
    config, kept, state = training.config, training.kept, training.state
    if state.best_step < 0:  # no update was finite when one was due, or somebody removed the best
        state.best_step = max(checkpoint.steps(config.out), default=-1)
    if state.best_step < 0:
        raise RunError(f"step {state.step}: never validated, no update was finite; {REMEDY}")
    folder = checkpoint.path(config.out, state.best_step)
    checkpoint.load_model(config.out, kept, state.best_step)
    with monitor.validating():
        score = validate(kept, training.data.valid, training.chosen, interval=True)
    if stop.asked:
        raise Stopped("stopped; the same command compares the last models")
    if len(state.validated) > 1:
        made = f"mean of steps {', '.join(f'{step:,}' for step in state.validated)}"
        checkpoint.load_average(config.out, kept, state)
        with monitor.validating():
            mean = validate(kept, training.data.valid, training.chosen, interval=True)
        monitor.say(f"{made}: BLEU {mean.bleu.value:.2f}")
        if mean.bleu.value > score.bleu.value:
            score = mean
            card = model_card(config, kept, training.data.report, made=made, score=score)
            folder = checkpoint.save_average(config.out, kept, card)
    checkpoint.point_best(config.out, folder)
    monitor.finished(state.step, folder.name, score.bleu)
    if score.bleu.value < 1:
        monitor.say(
            "this model has learnt next to nothing: more text, more steps (train.max_steps), or a "
            "lower train.learning_rate_scale"
        )
    return Result(config.out / "best", score.bleu)
