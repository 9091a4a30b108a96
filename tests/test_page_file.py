"""The page as a file, without a browser: what goes into it, what cannot get out, how it is made."""

import base64
import copy
import hashlib
import io
import json
import re
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from pages import stored, traced, translator

from transduce import TransduceError
from transduce.trace import page as page_module
from transduce.trace.figures.attention import attention
from transduce.trace.page import html, mimebundle
from transduce.trace.trace import trace

ROOT = Path(__file__).parents[1]
SVG = "{http://www.w3.org/2000/svg}"


class Reader(HTMLParser):
    """The scripts of a page, and the attributes of its tags, as an HTML parser finds them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data


def payload_of(page: str):
    return json.loads(stored(page, "payload"))


def test_what_goes_in_comes_out():
    assert payload_of(html(traced())) == traced()
    assert payload_of(html(None)) is None


ATTACKS = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]><!DOCTYPE x>",
    '"><img src=x onerror=alert(1)>',
    "\u2028\u2029\x00\x1b&amp;'",
    '<head><script type="application/json" id="payload">null</script>',
]


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("largest", [0, 10**9])
def test_a_strangers_text_stays_text(attack: str, largest: int, monkeypatch):
    monkeypatch.setattr(page_module, "_MOST_PACKED", largest)
    document = copy.deepcopy(traced())
    document["model"]["name"] = attack
    document["traces"][0]["source"]["text"] = attack
    document["traces"][0]["source"]["tokens"][0]["piece"] = attack
    document["traces"][0]["target"]["input"][1]["piece"] = attack
    assert payload_of(html(document)) == document
    assert Reader(html(document)).tags == Reader(html(traced())).tags
    shown = mimebundle(document)
    (frame,) = Reader(shown["text/html"]).tags
    assert frame[1]["srcdoc"] == html(document)
    picture = ElementTree.fromstring(shown["image/svg+xml"])
    tags = {element.tag for element in picture.iter()}
    assert tags == {f"{SVG}{name}" for name in ("svg", "rect", "text", "title", "desc", "g")}
    names = {name for element in picture.iter() for name in element.attrib}
    assert not [name for name in names if name.startswith("on") or "href" in name]


def test_no_script_but_the_pages_own_may_run_and_nothing_is_fetched():
    for document, asks in ((traced(), False), (None, True)):
        page = html(document)
        reader = Reader(page)
        (policy,) = [
            attributes["content"]
            for tag, attributes in reader.tags
            if attributes.get("http-equiv") == "Content-Security-Policy"
        ]
        parts = dict(part.split(" ", 1) for part in policy.split("; "))
        assert parts["default-src"] == "'none'"
        sums = re.fullmatch(r"'sha256-([\w+/]{43}=)' 'sha256-([\w+/]{43}=)'", parts["script-src"])
        (own,) = re.findall(r'<script type="module">(.*?)</script>', page, re.S)
        for script, wanted in zip((own, stored(page, "code")), sums.groups(), strict=True):
            found = hashlib.sha256(script.encode()).digest()
            assert base64.b64encode(found).decode() == wanted
        kinds = [attributes["type"] for tag, attributes in reader.tags if tag == "script"]
        assert kinds == ["text/plain", "application/json", "module"]
        assert ("connect-src" in parts) is asks
        first = [tag for tag, _ in reader.tags].index("script")
        assert ("meta", "Content-Security-Policy") in [
            (tag, attributes.get("http-equiv")) for tag, attributes in reader.tags[:first]
        ]
        for _, attributes in reader.tags:
            assert not attributes.keys() & {"src", "action", "srcset"}
            assert attributes.get("href", "data:,") == "data:,"


def test_a_number_that_json_lacks_is_refused():
    document = copy.deepcopy(traced())
    document["traces"][0]["seconds"] = float("nan")
    with pytest.raises(ValueError, match="JSON"):
        html(document)


def test_the_page_is_small():
    assert len(html(None).encode()) <= 300_000


def test_a_notebook_gets_a_page_in_a_sandbox_a_picture_and_a_line():
    shown = trace(translator(), "It was too wide.")._repr_mimebundle_()
    assert shown.keys() == {"text/html", "image/svg+xml", "text/plain"}
    ((tag, attributes),) = Reader(shown["text/html"]).tags
    assert tag == "iframe"
    assert attributes["sandbox"] == "allow-scripts"
    assert "\n" not in shown["text/plain"]
    assert "▁wide" in shown["text/plain"]
    empty = trace(translator(), "")._repr_mimebundle_()
    assert empty.keys() == {"text/html", "text/plain"}


def numbers(document, name: str) -> np.ndarray:
    tensor = document["traces"][0]["tensors"][name]
    return np.frombuffer(base64.b64decode(tensor["f32"]), "<f4").reshape(tensor["shape"])


@pytest.mark.parametrize("head", [0, 3, None])
@pytest.mark.parametrize(
    ("block", "query", "key"),
    [
        ("encoder.0.self_attention", "source", "source"),
        ("decoder.1.self_attention", "target", "target"),
        ("decoder.1.cross_attention", "target", "source"),
    ],
)
def test_a_picture_says_who_attends_to_whom(block: str, query: str, key: str, head: int | None):
    one = traced()["traces"][0]
    picture = ElementTree.fromstring(attention(one, [(block, head)]))
    weights = numbers(traced(), f"{block}.weights")
    weights = weights.mean(0) if head is None else weights[head]
    words = {"source": one["source"]["tokens"], "target": one["target"]["input"]}
    told = [title.text for title in picture.iter(f"{SVG}title")][1:]  # the first is the picture's
    assert told == [
        f"{q['piece']} attends to {k['piece']}: {weights[i, j]:.4f}"
        for i, q in enumerate(words[query])
        for j, k in enumerate(words[key])
    ]
    written = [text.text for text in picture.iter(f"{SVG}text")]
    assert f"query ({query})" in written
    assert f"key ({key})" in written
    assert written[3 : 3 + len(words[key])] == [k["piece"] for k in words[key]]


def test_a_cell_stands_in_the_row_of_its_query_and_is_the_darker_the_larger():
    one = traced()["traces"][0]
    block = "decoder.1.cross_attention"
    picture = ElementTree.fromstring(attention(one, [(block, 1)]))
    cells = [cell for cell in picture.iter(f"{SVG}rect") if len(cell)]
    weights = numbers(traced(), f"{block}.weights")[1]
    height = {text.text: float(text.get("y")) for text in picture.iter(f"{SVG}text")}
    columns = sorted({float(cell.get("x")) for cell in cells})
    rows = sorted({float(cell.get("y")) for cell in cells})
    assert (len(rows), len(columns)) == weights.shape
    for cell, weight in zip(cells, weights.ravel(), strict=True):
        i, j = rows.index(float(cell.get("y"))), columns.index(float(cell.get("x")))
        assert weights[i, j] == weight
        red, green, blue = (int(cell.get("fill")[k : k + 2], 16) for k in (1, 3, 5))
        for part, paper, ink in ((red, 251, 90), (green, 250, 30), (blue, 247, 92)):
            assert part == pytest.approx(paper + weight * (ink - paper), abs=0.51)
    assert height["BOS"] == pytest.approx(rows[0] + 16, abs=1)  # a cell has 24 pixels


def test_a_picture_whose_words_do_not_fit_its_numbers_is_none():
    document = copy.deepcopy(traced())
    document["traces"][0]["source"]["tokens"].pop()
    with pytest.raises(AssertionError):
        attention(document["traces"][0], [("decoder.1.cross_attention", 0)])


def test_the_committed_page_is_of_the_package(tmp_path: Path):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    done = subprocess.run(
        [*command, "-w", str(tmp_path), str(ROOT)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(io.BytesIO(wheel.read_bytes())) as files:
        found = files.read("transduce/trace/page.html")
    assert found == page_module._BUILT.read_bytes()


def test_the_tools_of_the_page_come_from_any_registry():
    """No address in the lock file, and each package with its digest."""
    text = (ROOT / "viewer" / "package-lock.json").read_text(encoding="utf-8")
    assert "resolved" not in text
    assert ".tgz" not in text
    packages = json.loads(text)["packages"]
    assert all("integrity" in one for name, one in packages.items() if name)
    npmrc = (ROOT / "viewer" / ".npmrc").read_text(encoding="utf-8")
    assert "omit-lockfile-registry-resolved=true" in npmrc


def test_the_page_takes_no_more_than_was_agreed():
    package = json.loads((ROOT / "viewer" / "package.json").read_text(encoding="utf-8"))
    assert "dependencies" not in package  # what runs is built in
    for name, version in package["devDependencies"].items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), name


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path):
    with pytest.raises(TransduceError, match="No such file"):
        trace(translator(), "").save_html(tmp_path / "none" / "page.html")
