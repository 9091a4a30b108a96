"""The server of the page: what it answers, and whom it does not answer."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from command import refused
from pages import SOURCE, TARGET, Answer, Client, save, serving, stored, translator

from transduce.serve import view
from transduce.trace.page import html
from transduce.trace.trace import attributed, trace


@pytest.fixture(scope="module")
def client() -> Generator[Client]:
    with serving() as client:
        yield client


def error(answer: Answer) -> str:
    """The one line that an answer says."""
    assert answer.json().keys() == {"error"}
    message = answer.json()["error"]["message"]
    assert message
    assert "\n" not in message
    return message


def test_the_page_is_live(client: Client):
    answer = client.get("/")
    assert answer.status == 200
    assert answer.body.decode() == html(None)
    assert stored(answer.body.decode(), "payload") == "null"


def test_the_model_is_that_of_a_document(client: Client):
    assert client.get("/api/model").json() == trace(translator(), "").to_json()["model"]


def test_a_trace_is_what_python_traces(client: Client):
    off = [["decoder.1.cross_attention", 2]]
    asked = {"text": SOURCE, "target": TARGET, "beam": 2, "alpha": 1, "off": off}
    found = client.post(asked)
    assert found.status == 200
    one = trace(
        translator(), SOURCE, TARGET, beam=2, alpha=1.0, off=[("decoder.1.cross_attention", 2)]
    )
    expected = attributed(one).to_json()  # of a small model a server tells it at once
    told, expected = found.json(), json.loads(json.dumps(expected))
    for document in (told, expected):
        document["traces"][0].pop("seconds")
    assert told == expected


def test_a_prefix_is_forced(client: Client):
    prefix = [20, 30]
    found = client.post({"text": SOURCE, "prefix": prefix}).json()["traces"][0]
    assert [token["id"] for token in found["target"]["labels"][:2]] == prefix
    assert found["target"]["prefix"] == 2


def test_blank_text_is_an_empty_trace(client: Client):
    answer = client.post({"text": " \u2028"})
    assert answer.status == 200
    assert answer.json()["traces"][0]["source"]["tokens"] == []


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "text"),
        ({"text": 7}, "text"),
        ({"text": "a", "what": 1}, "what"),
        ({"text": "a" * 10_001}, "10000"),
        ({"text": "a", "beam": True}, "beam"),
        ({"text": "a", "beam": 1000}, "beam"),
        ({"text": "a", "alpha": "1"}, "alpha"),
        ({"text": "a", "prefix": [1.5]}, "prefix"),
        ({"text": "a", "prefix": [0]}, "prefix"),
        ({"text": "a", "prefix": [10**9]}, "prefix"),
        ({"text": "a", "off": [["decoder.0.cross_attention", 9]]}, "head 9"),
        ({"text": "a", "off": [["decoder.7.cross_attention", 0]]}, "decoder.7"),
        ({"text": "a", "off": [["encoder.0.self_attention"]]}, "off"),
        ({"text": "a", "off": "all"}, "off"),
        ({"text": "a", "target": "b " * 100}, "target"),
        ([], "object"),
        ("text", "object"),
    ],
)
def test_a_wrong_question_is_one_line(client: Client, asked, says: str):
    answer = client.post(asked)
    assert answer.status == 422
    assert says in error(answer)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[" * 60_000, b'{"text": NaN', b"null", rb'{"\ud800": 1}']
)
def test_what_is_no_json_is_one_line(client: Client, body: bytes):
    answer = client.send(body, **{"Content-Type": "application/json; charset=utf-8"})
    assert answer.status == 422
    assert "JSON" in error(answer)


def test_a_large_request_is_refused(client: Client):
    parts = iter([b" " * 10_000] * 20)  # of a length that nobody has told
    for body in (b" " * 100_000, parts):
        answer = client.send(body, **{"Content-Type": "application/json"})
        assert answer.status == 413
        error(answer)


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_what_a_form_of_another_page_can_send_is_refused(client: Client, kind: str | None):
    headers = {} if kind is None else {"Content-Type": kind}
    answer = client.send(b'{"text": "a"}', **headers)
    assert answer.status == 415
    error(answer)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:PORT", "127.0.0.1", "127.0.0.1:80", "localhost.x:PORT", ""],
)
@pytest.mark.parametrize("path", ["/", "/api/model", "/nothing"])
def test_a_name_of_someone_else_is_refused(client: Client, host: str, path: str):
    answer = client.get(path, Host=host.replace("PORT", str(client.port)))
    assert answer.status == 403
    error(answer)


@pytest.mark.parametrize(
    "origin", ["null", "http://evil.example", "http://127.0.0.1:80", "http://localhost:PORT"]
)
def test_the_page_of_another_origin_is_refused(client: Client, origin: str):
    origin = origin.replace("PORT", str(client.port))  # a name of ours, but not the one asked
    answer = client.post({"text": "a"}, Origin=origin)
    assert answer.status == 403
    error(answer)
    assert client.get("/api/model", Origin=origin).status == 403


def test_nothing_invites_other_origins(client: Client):
    wish = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "a"}
    wish["Origin"] = f"http://{client.host}"
    for answer in (
        client.ask("OPTIONS", "/api/trace", None, **wish),
        client.get("/"),
        client.post({"text": ""}),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/nothing", "/api/trace"])
def test_there_is_nothing_else(client: Client, path: str):
    answer = client.get(path)
    assert answer.status in (404, 405)
    error(answer)


def test_one_trace_at_a_time(client: Client, monkeypatch: pytest.MonkeyPatch):
    busy, most = threading.Lock(), []

    def watched(*arguments, **options):
        most.append(busy.acquire(blocking=False))
        try:
            return trace(*arguments, **options)
        finally:
            busy.release()

    monkeypatch.setattr(view, "trace", watched)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: client.post({"text": "a", "beam": 1}), range(6)))
    assert [answer.status for answer in answers] == [200] * 6
    assert most == [True] * 6


def test_a_bug_is_told_in_json(client: Client, monkeypatch: pytest.MonkeyPatch):
    def broken(*_, **__):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(view, "trace", broken)
    answer = client.post({"text": "a"})
    assert answer.status == 500
    assert "secret" not in error(answer)
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


def test_memory_that_runs_out_is_one_line(client: Client, monkeypatch: pytest.MonkeyPatch):
    def hungry(*_, **__):
        raise MemoryError

    monkeypatch.setattr(view, "trace", hungry)
    answer = client.post({"text": "a"})
    assert answer.status == 422
    assert "memory ran out" in error(answer)


def test_it_listens_to_this_machine_alone():
    with view.listen(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_port_in_use_is_one_line(tmp_path: Path):
    with view.listen(0) as listener:
        port = str(listener.getsockname()[1])
        assert "in use; name another" in refused("view", tmp_path, "--port", port)


def test_no_model_is_one_line(tmp_path: Path):
    assert "no such model" in refused("view", tmp_path / "none", "--port", "0")


def test_a_missing_extra_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "transduce.serve.view")
    monkeypatch.delattr("transduce.serve.view")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'transduce[view]'" in refused("view", tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_verb_serves_until_a_signal(tmp_path: Path, number: signal.Signals):
    model = save(tmp_path / "model")
    command = [sys.executable, "-m", "transduce", "view", str(model), "--port", "0"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = running.stdout.readline()
        address, _, told = line.partition("  ")
        assert told == "(Ctrl-C ends)\n"
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        running.send_signal(number)
        out, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert (out, errors) == ("", "")
    assert running.returncode == (0 if number == signal.SIGINT else -signal.SIGTERM)


HALF = (
    "POST /api/trace HTTP/1.1\r\nHost: {}\r\n"
    "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{{"
)


def test_half_a_request_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    """Not by who asks meanwhile, nor by the end of the server."""
    monkeypatch.setattr(view, "_PATIENCE", 0.5)
    with ExitStack() as halves:
        with serving() as client:
            for _ in range(3):
                half = halves.enter_context(socket.create_connection(("127.0.0.1", client.port)))
                half.settimeout(60)
                half.sendall(HALF.format(client.host).encode())
            assert client.post({"text": "a", "beam": 1}).status == 200
        assert half.recv(100).startswith(b"HTTP/1.1 408")


def test_who_goes_away_in_the_middle_leaves_no_error(capsys: pytest.CaptureFixture):
    with serving() as client:
        with socket.create_connection(("127.0.0.1", client.port)) as half:
            half.sendall(HALF.format(client.host).encode())
        assert client.get("/api/model").status == 200
    assert capsys.readouterr().err == ""
