"""The page, and a model that answers it, for who sits at this machine: the one user of FastAPI.

GET  /           the page
GET  /api/model  what the model is, as in a document
GET  /api/weights  a small model itself, as in a document, for what only the page can change
POST /api/trace  {"text", "target", "prefix", "beam", "alpha", "off"} -> a document of one trace
POST /api/run    the same -> the run that MODEL is, over its checkpoints, with this sentence

It listens on the loopback alone. Other machines do not reach it; the pages of other sites, in a
browser that does, are refused: by the name that they call it (Host), by where they are from
(Origin), and since JSON in a request needs a leave that no answer gives (CORS).
"""

import asyncio
import json
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, Strict

from transduce.bundle import Bundle, count_parameters
from transduce.config import Settings, validate
from transduce.decode.translator import Translator
from transduce.device import enough_memory
from transduce.errors import DataError, DeviceError, SettingsError, TransduceError
from transduce.trace.learning import Models, learning
from transduce.trace.page import html
from transduce.trace.trace import attributed, trace
from transduce.trace.weights import weights

try:
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.concurrency import run_in_threadpool
    from fastapi.responses import HTMLResponse, Response
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
except ImportError:
    raise SettingsError("view needs pip install 'transduce[view]'") from None

HOST = "127.0.0.1"
_LARGEST_BODY = 1 << 16
_PATIENCE = 3
"""Seconds for a request to arrive; it comes from this machine."""
_CHEAP = 10**10
"""Cost of an attribution that an answer brings along: about a second."""
_MOST_PARAMETERS = 4_000_000
"""Of a model that the page may fetch: 16 MB of float32."""
_TOO_LARGE = (
    "This is computed in the page, by the model itself, and its {:,} parameters are more than the"
    " {:,} that a page takes. Try a smaller model."
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


class Question(Settings):
    """What a page may ask: the arguments of `trace`."""

    text: str = Field(max_length=10_000)
    target: str | None = Field(None, max_length=10_000)
    prefix: tuple[int, ...] = Field((), max_length=1024)
    beam: int = Field(4, ge=1, le=16)
    alpha: float = Field(0.6, ge=0, le=10)
    # Strict but for a list, which is what JSON has.
    off: tuple[Annotated[tuple[str, int], Strict(False)], ...] = Field((), max_length=1024)


_Answering = Callable[[Translator, Question], Response]


class _Refused(Exception):
    """A request that is not answered: an HTTP status, and why."""


def application(translator: Translator) -> FastAPI:
    """Make the application of one model; it computes one trace at a time.

    Raises:
        TransduceError: what the translator holds cannot be traced.
    """
    model = trace(translator, "").to_json()["model"]
    # Its pages of documentation load scripts from elsewhere.
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    turn = asyncio.Lock()
    answers: dict[str, _Answering] = {"trace": _answer, "run": partial(_run, Models())}

    @app.middleware("http")
    async def guard(request: Request, go_on: Any) -> Response:  # noqa: ANN401
        reason = _stranger(request)
        return _failed(403, reason) if reason else await go_on(request)

    @app.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse(html(None), headers=_HEADERS)

    @app.get("/api/model")
    async def about() -> Response:
        return _json(model)

    app.add_api_route("/api/weights", partial(_weights, translator.bundles[0]))

    @app.post("/api/{what}")
    async def ask(what: str, request: Request) -> Response:
        try:
            answer = _one_of(answers, what)
            question = _question(await _body(request))
            async with turn:
                if await request.is_disconnected():  # while others had their turn
                    return Response()
                return await run_in_threadpool(answer, translator, question)
        except _Refused as refused:
            return _failed(*refused.args)
        except TransduceError as error:
            return _failed(422, str(error))

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> Response:
        return _failed(error.status_code, error.detail)

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> Response:
        return _failed(500, "this is a bug of ours; the terminal of the server tells more")

    return app


def server(translator: Translator) -> uvicorn.Server:
    """Make the server of one model; it runs on a socket from `listen`.

    Raises:
        TransduceError: what the translator holds cannot be traced.
    """
    settings = uvicorn.Config(application(translator), log_level="warning", lifespan="off")
    return uvicorn.Server(settings)


def listen(port: int) -> socket.socket:
    """Take a port of this machine, which no other machine reaches; 0 is any free one.

    Raises:
        SettingsError: it is in use, or not for this user.
    """
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        reason = os.strerror(error.errno or 0)  # its own text tells of sockets
        raise SettingsError(f"--port {port}: {reason}; name another") from None


def _stranger(request: Request) -> str | None:
    """Why a request is not from this server's own page or this machine's user; None: it is."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    _, port = request.scope["server"]
    tail = "" if port == 80 else f":{port}"  # browsers leave out HTTP's own
    if host not in (f"{HOST}{tail}", f"localhost{tail}"):
        return f"this server is http://{HOST}:{port}, not {host!r:.100}"
    if origin not in (None, f"http://{host}"):
        return f"the page of another origin, {origin!r:.100}, asks nothing here"
    return None


async def _body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise _Refused(415, "Content-Type must be application/json")
    body = b""
    try:
        async with asyncio.timeout(_PATIENCE):  # or half a request would outlive Ctrl-C
            async for part in request.stream():
                body += part
                if len(body) > _LARGEST_BODY:
                    raise _Refused(413, f"a request has {_LARGEST_BODY:,} bytes at most")
    except ClientDisconnect:
        raise _Refused(400, "the request ended in the middle") from None  # nobody hears it
    except TimeoutError:
        raise _Refused(408, f"the request was not whole after {_PATIENCE} s") from None
    return body


def _one_of(answers: dict[str, _Answering], what: str) -> _Answering:
    if what not in answers:
        raise _Refused(404, "Not Found")
    return answers[what]


def _question(body: bytes) -> Question:
    try:
        tree = json.loads(body.decode("utf-8"))
        json.dumps(tree, ensure_ascii=False).encode()  # JSON can spell half a character
    except (ValueError, RecursionError):
        raise DataError("the request is not JSON in UTF-8") from None
    if not isinstance(tree, dict):
        raise DataError("the request is not a JSON object")
    return validate(Question, tree)


def _answer(translator: Translator, question: Question) -> Response:
    with enough_memory(DeviceError, "a shorter text or fewer beams take less"):
        return _json(attributed(trace(translator, **dict(question)), _CHEAP).to_json())


def _weights(bundle: Bundle) -> Response:
    size = count_parameters(bundle.model)
    if size > _MOST_PARAMETERS:
        return _failed(404, _TOO_LARGE.format(size, _MOST_PARAMETERS))
    try:
        return _json(weights(bundle, "float32"))
    except TransduceError as error:
        return _failed(404, str(error))


def _run(models: Models, translator: Translator, question: Question) -> Response:
    """With the model that is the run's best now: a training may go on, and a page asks anew."""
    run = translator.names[0]
    with enough_memory(DeviceError, "a shorter text takes less"):
        one = trace(Translator.load(run), **dict(question))
        return _json(learning(Path(run), one, models.load).to_json())


def _json(tree: object, status: int = 200) -> Response:
    text = json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(), status, _HEADERS, media_type="application/json")


def _failed(status: int, message: str) -> Response:
    return _json({"error": {"message": message}}, status)
