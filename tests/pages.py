"""A small model with random weights, and its traces: what the tests of the page look at."""

import http.client
import json
import re
import threading
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from transduce import bundle
from transduce.bundle import Bundle
from transduce.decode.translator import Translator
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.serve import view
from transduce.text.tokenizer import TokenizerConfig, train_tokenizer
from transduce.trace.trace import trace

SOURCE = "The animal did not cross the street because it was tired."
TARGET = "L'animal n'a pas traversé la rue parce qu'il était fatigué."


@cache
def translator(max_length: int = 20) -> Translator:
    """Two layers a side, four heads; its weights are larger than usual, so that maps have peaks."""
    lines = [SOURCE, TARGET, "It was too wide.", "Elle était trop large."] * 5
    tokenizer = train_tokenizer(lines, TokenizerConfig(), vocab_size=470)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = Transformer(
            TransformerConfig(
                source_vocab_size=tokenizer.size,
                target_vocab_size=tokenizer.size,
                d_model=32,
                heads=4,
                d_ff=64,
                encoder_layers=2,
                decoder_layers=2,
                max_length=max_length,
                tie="none",
            )
        )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "attention." in name and name.endswith("weight"):
                parameter *= 2
    about = {"source_language": "en", "target_language": "fr", "licence": ""}
    return Translator(Bundle(model.eval(), tokenizer, tokenizer, about), names=["small"])


def save(folder: Path) -> Path:
    """Write the model as a folder."""
    folder.mkdir()
    bundle.save(folder, translator().bundles[0], "# A model with random weights\n")
    return folder


@cache
def traced(text: str = SOURCE, target: str | None = TARGET, *, answers: bool = False) -> Any:
    """The document of one trace; it is shared, so copy before changing it."""
    return trace(translator(), text, target, answers=answers).to_json()


@cache
def long() -> Any:
    """A document of 62 source pieces and 47 target pieces: maps above 40 x 40 are painted."""
    text, target = "It was too wide. " * 12, "Elle était trop large. " * 9
    return trace(translator(64), text, target, beam=1).to_json()


def stored(page: str, name: str) -> str:
    """What a page's file holds under an element's name: "payload" or "code"."""
    (text,) = re.findall(rf'<script type="[^"]+" id="{name}">(.*?)</script>', page)
    if text.startswith("{"):
        return text
    ours = bytes([*range(40, 60), 126, *range(61, 125)])
    digits = np.array([ours.index(each) for each in text.encode()]).reshape(-1, 5)
    data = (digits @ 85 ** np.arange(4, -1, -1)).astype(">u4").tobytes()
    return zlib.decompress(data[4 : 4 + int.from_bytes(data[:4])]).decode()


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)


class Client(NamedTuple):
    """Asks a server as no browser would: with any header, any body."""

    port: int

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, **headers)

    def post(self, tree: object, **headers: str) -> Answer:
        return self.send(
            json.dumps(tree).encode(), **{"Content-Type": "application/json"} | headers
        )

    def send(self, body: bytes | Iterator[bytes], **headers: str) -> Answer:
        return self.ask("POST", "/api/trace", body, **headers)

    def ask(
        self, method: str, path: str, body: bytes | Iterator[bytes] | None, **headers: str
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            found = connection.getresponse()
            names = {name.lower(): value for name, value in found.getheaders()}
            return Answer(found.status, names, found.read())
        finally:
            connection.close()


@contextmanager
def serving(model: Path | None = None) -> Generator[Client]:
    """The server of a model, in a thread, on a port of its own."""
    with view.listen(0) as listener:
        server = view.server(Translator.load(model) if model else translator())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Client(listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()
