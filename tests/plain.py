"""Text prepared in plain Python, a pair at a time: what is done by blocks is compared with it."""

import json
import math
import re
from array import array
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path

from transduce.errors import DataError
from transduce.text.corpus import Pair, Report, digest, read_lines, two_columns
from transduce.text.tokenizer import normalize, train_tokenizer
from transduce.train.config import TrainConfig

BYTE = re.compile("<0x[0-9A-F]{2}>")


def filter_text(pairs, config, *, report, validation):
    seen = set()
    for raw in pairs:
        report.read += 1
        pair = Pair(normalize(raw.source), normalize(raw.target))
        if not pair.source.strip() or not pair.target.strip():
            report.dropped["empty"] += 1
            continue
        key = digest(pair)
        found = {
            "leaked": (key in validation, config.drop_leaked),
            "duplicates": (key in seen, config.drop_duplicates),
            "equal": (pair.source == pair.target, config.drop_equal),
        }
        seen.add(key)
        reasons = [reason for reason, (holds, _) in found.items() if holds]
        fatal = [reason for reason in reasons if found[reason][1]]
        if fatal:
            report.dropped[fatal[0]] += 1
            continue
        for reason in reasons:
            report.noticed[reason] += 1
        yield pair


def filter_lengths(pairs, config, *, report):
    for source, target in pairs:
        shorter, longer = sorted((len(source), len(target)))
        if longer > config.max_length:
            report.dropped["too_long"] += 1
        elif longer > config.max_ratio * shorter:
            report.dropped["bad_ratio"] += 1
        else:
            yield source, target


def read_tsv(path: Path):
    for number, line in enumerate(read_lines(path), start=1):
        yield two_columns(path, number, line)


def read_pairs(source: Path, target: Path):
    sources, targets = read_lines(source), read_lines(target)
    for shorter, (left, right) in enumerate(zip_longest(sources, targets)):
        if left is None or right is None:
            longer = shorter + 1 + sum(1 for _ in (targets if left is None else sources))
            counts = (shorter, longer) if left is None else (longer, shorter)
            raise DataError(
                f"{source} has {counts[0]} lines and {target} has {counts[1]};"
                " line k of one must be the translation of line k of the other"
            )
        yield Pair(left, right)


def read(config: TrainConfig):
    return read_tsv(config.tsv) if config.tsv else read_pairs(config.source, config.target)


def prepare(config: TrainConfig, folder: Path, *, vocab_size: int) -> dict:
    """Write what is compared byte for byte into a folder, and return the numbers of the report."""
    folder.mkdir()
    report = Report(held_out=not config.valid_source)
    validation, known = [], set()
    if config.valid_source:
        given = list(read_pairs(config.valid_source, config.valid_target))
        filled = [pair for pair in given if pair.source.strip() and pair.target.strip()]
        validation = [Pair(*map(normalize, pair)) for pair in filled]
        report.validation_empty = len(given) - len(validation)
        known = {digest(pair) for pair in validation}
    pairs = list(filter_text(read(config), config.data, report=report, validation=known))
    if not validation:
        kept, distinct = len(pairs), sorted(set(map(digest, pairs)))
        last = distinct[min(2000, math.ceil(len(distinct) / 50)) - 1]
        validation = list(dict.fromkeys(pair for pair in pairs if digest(pair) <= last))
        pairs = [pair for pair in pairs if digest(pair) > last]
        report.dropped["leaked"] += kept - len(pairs) - len(validation)  # their copies
    report.validation, report.references = len(validation), 1
    with (folder / "valid.jsonl").open("w") as file:
        for source, target in validation:
            record = {"source": source, "references": [target]}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    if config.tokenizer.shared:
        texts = [text for pair in pairs for text in pair]
        tokenizers = [train_tokenizer(texts, config.tokenizer, vocab_size=vocab_size)] * 2
        tokenizers[0].save(folder / "tokenizer.model")
    else:
        tokenizers = [
            train_tokenizer(texts, config.tokenizer, vocab_size=vocab_size)
            for texts in zip(*pairs, strict=True)
        ]
        for tokenizer, name in zip(tokenizers, ("source.model", "target.model"), strict=True):
            tokenizer.save(folder / name)
    encoded = ([t.encode(text) for t, text in zip(tokenizers, p, strict=True)] for p in pairs)
    kept = list(filter_lengths(encoded, config.data, report=report))
    pieces = [t.pieces(ids) for pair in kept for t, ids in zip(tokenizers, pair, strict=True)]
    report.subwords = sum(map(len, pieces))
    report.single_bytes = sum(bool(BYTE.fullmatch(piece)) for side in pieces for piece in side)
    ids = array("H", [i for pair in kept for side in pair for i in side])
    (folder / "train").mkdir()
    (folder / "train" / "ids.bin").write_bytes(ids.tobytes())
    return asdict(report) | {"kept": report.kept}
