"""How a training begins: from settings to data, model and decisions, or to where it was stopped."""

import copy
import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from safetensors import SafetensorError

from transduce import tensorboard
from transduce.bundle import ABOUT, Bundle, count_parameters, load_weights, read_config
from transduce.data.batching import collate, plan
from transduce.device import (
    bf16_pays,
    choose_device,
    enough_memory,
    kept_memory,
    peak_memory,
    set_threads,
)
from transduce.errors import DataError, RunError, SettingsError
from transduce.evaluate import Score
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.model.working import working_copy
from transduce.progress import say
from transduce.signals import stop_signals
from transduce.text.corpus import many
from transduce.train import checkpoint, run
from transduce.train.config import TrainConfig
from transduce.train.defaults import Chosen, check_memory, check_settings, choose, settle_start
from transduce.train.loop import Result, Training, adam, go_on, memory_remedy, train_step
from transduce.train.monitor import last_record
from transduce.train.prepare import Data, fingerprints, open_data, prepare

log = logging.getLogger(__name__)


def train(config: TrainConfig, *, console: Console | None = None) -> Result:
    """Train a translator in `config.out`, or go on with the training that is there.

    Args:
        config: the settings; what they leave open is chosen from the corpus and told.
        console: where progress is shown; None shows nothing.

    Raises:
        DataError, TokenizerError, SettingsError, BundleError, RunError, DeviceError: see
            `transduce.errors`.
        Stopped: SIGINT or SIGTERM came; what there was to save is saved, the same call goes on.
    """
    if not isinstance(config, TrainConfig):
        raise SettingsError(f"train takes a TrainConfig, not {type(config).__name__}")
    console = console or Console(quiet=True)
    config, folder = settle_start(config), config.out
    if config.tensorboard:
        tensorboard.library()  # that it is not installed is told before anything begins
    device = choose_device(config.device)  # before a folder is made for nothing
    with _disk_errors(folder), run.locked(folder), stop_signals() as stop:
        record = run.read(folder)
        threads = set_threads(config.threads or (record.threads if record else 0))
        if record is None:
            check_settings(config, device)
            files = fingerprints(config)
            say(console, "reading and encoding the text")
            data = prepare(config, folder / "data", files, console)
            now = fingerprints(config)
            if changed := [str(getattr(config, n)) for n in files if files[n] != now[n]]:
                raise DataError(f"{', '.join(changed)} changed while it was read; start again")
            record = _decide(config, data, device, threads, console)
            run.write(folder, record)
        else:
            run.check(record, config, folder)
            if (done := finished(folder)) is not None:
                say(console, f"this training is finished: BLEU {done.bleu.value:.2f} on validation")
                say(console, f"translate with:  transduce translate {folder} < some-text")
                say(console, "for another training name another --out")
                return done
            data = open_data(folder / "data")
        training = _set_up(config, data, record, device, threads)
        if training.state.step:
            say(console, f"going on from step {training.state.step:,}")
        return go_on(training, stop, console)


def _decide(
    config: TrainConfig, data: Data, device: torch.device, threads: int, console: Console
) -> run.Record:
    """Choose all that was left open, and say why; what is decided now is read back ever after."""
    tokens = max(data.report["training_tokens"].values()) + len(data.train)
    architecture, chosen, reasons = choose(
        config, pairs=len(data.train), tokens=tokens, vocab_sizes=data.sizes
    )
    check_memory(architecture, min(chosen.batch_tokens, tokens), device)
    for line in (*data.report["lines"], *reasons):
        say(console, f"  {line}")
    bf16, lines = measure_steps(config, data, architecture, chosen, device)
    for line in lines:
        say(console, f"  {line}")
    about = config.model_dump(include=set(ABOUT))
    if config.start_from is not None:
        start = read_config(config.start_from)
        about = {key: said or start[key] for key, said in about.items()}
    return run.Record(
        settings=config.identity(),
        files=data.report["files"],
        architecture=architecture,
        chosen=chosen,
        about=about,
        bf16=bf16,
        threads=threads,
    )


def _set_up(
    config: TrainConfig, data: Data, record: run.Record, device: torch.device, threads: int
) -> Training:
    """Make the model of a run's record, and load the newest checkpoint if there is one."""
    if record.threads != threads:
        was = record.threads
        log.warning("%d threads, the run had %d: not the same to the last bit", threads, was)
    architecture, chosen = record.architecture, record.chosen
    if data.sizes != (architecture.source_vocab_size, architecture.target_vocab_size):
        raise RunError(f"{config.out}: config.json and the tokenizers in data differ in size")
    check_memory(architecture, 0, device)
    torch.manual_seed(config.seed)
    model = Transformer(architecture).to(device)
    if config.start_from is not None and not checkpoint.steps(config.out):
        load_weights(model, config.start_from / "model.safetensors")
    about = config.model_dump(include=set(ABOUT)) | record.about
    average = copy.deepcopy(model) if chosen.ema_decay else model
    kept = Bundle(average, data.source_tokenizer, data.target_tokenizer, about)
    optimizer = adam(model, chosen)
    state = checkpoint.restore(config.out, kept, model, optimizer)
    working = working_copy(model) if record.bf16 else model
    return Training(config, data, model, kept, optimizer, chosen, working, state)


def measure_steps(
    config: TrainConfig,
    data: Data,
    architecture: TransformerConfig,
    chosen: Chosen,
    device: torch.device,
) -> tuple[bool, list[str]]:
    """Time real steps of a model made for it: is it bfloat16, and lines on time and memory.

    Raises:
        RunError: memory runs out.
    """

    @cache  # the copy in bfloat16 is made where it is asked for, and once
    def working(bf16: bool) -> Transformer:
        return working_copy(model) if bf16 else model

    def step(bf16: bool) -> None:
        named = {"working": working(bf16), "learning_rate": 1e-6, "seed": 0}
        train_step(model, optimizer, [batch], chosen, **named)

    with kept_memory(), enough_memory(RunError, memory_remedy(config, chosen, architecture)):
        model = Transformer(architecture).to(device).train()
        optimizer = adam(model, chosen)
        batch = collate([data.train[row] for row in _fullest(config, data, chosen)])
        bf16 = bf16_pays(device, step) if config.precision == "auto" else config.precision == "bf16"
        step(bf16)
        began = time.perf_counter()
        step(bf16)
    minutes = (time.perf_counter() - began) * chosen.accumulate * chosen.max_steps / 60
    name, threads = "bf16" if bf16 else "fp32", torch.get_num_threads()
    validations = chosen.max_steps // chosen.validate_every
    return bf16, [
        f"{count_parameters(model):,} parameters, {name} on {device} (threads: {threads})",
        f"about {max(1, round(minutes))} min and {many(validations, 'validation')}, "
        f"{peak_memory(device) / 1e9:.1f} GB of memory",
    ]


def _fullest(config: TrainConfig, data: Data, chosen: Chosen) -> np.ndarray:
    """The micro-batch with the most subwords; the first one may be a rest of a few rows."""
    lengths = data.train.lengths
    steps = plan(lengths, chosen.batch_tokens, seed=config.seed, epoch=0)
    return max((rows for step in steps for rows in step), key=lambda rows: lengths[rows].sum())


def finished(folder: Path) -> Result | None:
    """Return the result of a run that has come to its end."""
    last = last_record(folder / "metrics.jsonl")
    kinds = {name: str if name == "signature" else float for name in Score._fields}
    known = all(type(last.get(name)) is kind for name, kind in kinds.items())
    # A copy may have lost the link.
    if not (known and last.get("finished") and (folder / "best" / "model.safetensors").exists()):
        return None
    return Result(folder / "best", Score(**{name: last[name] for name in kinds}))


@contextmanager
def _disk_errors(folder: Path) -> Generator[None]:
    """What a full or broken disk, or too little memory, does to a run is for the user to mend."""
    remedy = "what was saved is sound; free some, or give less text or a smaller model"
    try:
        with enough_memory(RunError, remedy):
            yield
    except (OSError, SafetensorError) as error:
        raise RunError(f"{folder} cannot be written: {error}; what was saved is sound") from None
