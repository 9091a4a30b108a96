"""Pictures from Python: their numbers are those of the trace or the run, and they can be read."""

import copy
import json
import math
import re
import struct
import sys
import zlib
from base64 import b64decode
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from command import refused, transduce
from pages import SOURCE, TARGET, save, traced, translator

from transduce.errors import DataError
from transduce.trace.figures import raster
from transduce.trace.figures.attention import attention, values
from transduce.trace.figures.beam import beam
from transduce.trace.figures.canvas import figure, shade, signed, text
from transduce.trace.figures.loss import loss, ticks
from transduce.trace.figures.masks import masks
from transduce.trace.figures.positions import png, positions
from transduce.trace.trace import trace

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = Path(__file__).parents[1] / "docs" / "figures"
NAMES = [
    *("river", "tokens", "equation", "heads", "patterns"),
    *("masks", "block", "training", "nextword"),
]


def parsed(svg: str) -> ElementTree.Element:
    picture = ElementTree.fromstring(svg)
    assert picture.tag == f"{SVG}svg"
    assert picture.get("role") == "img"
    assert picture[0].tag == f"{SVG}title"
    assert picture[0].text
    assert picture[1].tag == f"{SVG}desc"
    assert picture[1].text
    return picture


def titles(picture: ElementTree.Element) -> list[str]:
    """What a pointer is told; not the title of the whole."""
    return [title.text or "" for title in list(picture.iter(f"{SVG}title"))[1:]]


def written(picture: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{SVG}text")]


def one():
    return traced()["traces"][0]


# Attention maps. Those of one head, or of the mean, are in test_page_file.py.


def test_all_heads_of_a_block_stand_beside_each_other():
    block = "decoder.0.cross_attention"
    picture = parsed(attention(one(), [(block, head) for head in range(4)]))
    weights = values(one()["tensors"][f"{block}.weights"])
    queries, keys = one()["target"]["input"], one()["source"]["tokens"]
    assert titles(picture) == [
        f"{q['piece']} attends to {k['piece']}: {weights[head, i, j]:.4f}"
        for head in range(4)
        for i, q in enumerate(queries)
        for j, k in enumerate(keys)
    ]
    names = written(picture)
    assert [f"head {k}" for k in range(4)] == [name for name in names if name.startswith("head ")]
    assert names.count("query (target)") == names.count("key (source)") == 4


def test_printed_weights_are_rounded_ones_and_all_that_are_large():
    block = "encoder.1.self_attention"
    picture = parsed(attention(one(), [(block, 2)]))
    weights = values(one()["tensors"][f"{block}.weights"])[2]
    wanted = [f"{w:.2f}".removeprefix("0") for w in weights.ravel() if w >= 0.05]
    assert [name for name in written(picture) if re.fullmatch(r"\d?\.\d\d", name)] == wanted
    assert len(wanted) > 10


def test_a_cell_that_comes_later_is_hatched_and_no_other():
    block = "decoder.1.self_attention"
    picture = parsed(attention(one(), [(block, None)]))
    cells = [cell.get("fill") for cell in picture.iter(f"{SVG}rect") if len(cell)]
    t = len(one()["target"]["input"])
    hatched = np.array([fill == "url(#causal)" for fill in cells]).reshape(t, t)
    assert (hatched == np.triu(np.ones((t, t), bool), 1)).all()
    assert [p.get("id") for p in picture.iter(f"{SVG}pattern")] == ["causal"]
    # It leans forward: of its long stroke the left end is the lower one.
    path = next(picture.iter(f"{SVG}pattern")).find(f"{SVG}path").get("d")
    x, y, x2, y2 = map(float, re.search(r"M(\S+) (\S+)L(8) (0)", path).groups())
    assert x < x2
    assert y > y2


def test_the_picture_in_words_tells_the_greatest_weight_of_each_row():
    block = "decoder.1.cross_attention"
    told = parsed(attention(one(), [(block, 0)])).find(f"{SVG}desc").text
    weights = values(one()["tensors"][f"{block}.weights"])[0]
    for i, query in enumerate(one()["target"]["input"]):
        j = weights[i].argmax()
        key = one()["source"]["tokens"][j]["piece"]
        assert f"{query['piece']} to {key} ({weights[i, j]:.4f})" in told


# Masks.


def test_masks_are_hatched_where_they_block_and_are_counted():
    found = one()
    picture = parsed(masks(found))
    s, t = len(found["source"]["tokens"]), len(found["target"]["input"])
    pad = found["padded"]["columns"]
    assert pad == 2  # as many as the model has positions for
    groups = [
        [cell.get("fill") for cell in group.findall(f"{SVG}rect")]
        for group in picture.findall(f"{SVG}g")
    ]
    encoder, decoder, cross = (np.array(group) for group in groups)
    for fills, rows in ((encoder, s), (cross, t)):
        fills = fills.reshape(rows, s + pad)
        assert (fills[:, :s] == np.array(None)).all()
        assert (fills[:, s:] == "url(#padding)").all()
    blocked = decoder.reshape(t, t) == "url(#causal)"
    assert (blocked == ~np.array(found["masks"]["target"])).all()
    names = written(picture)
    counts = [name for name in names if name.endswith("blocked")]
    assert counts == [
        f"{s * s} allowed, {s * pad} blocked",
        f"{t * (t + 1) // 2} allowed, {t * (t - 1) // 2} blocked",
        f"{t * s} allowed, {t * pad} blocked",
    ]
    assert "query (target)" in names
    assert "key (source)" in names
    assert "BOS may not attend to ▁L: it comes later" in titles(picture)


def test_what_is_hatched_as_padding_has_a_weight_of_zero():
    for name, tensor in one()["padded"]["weights"].items():
        if not name.startswith("decoder") or "cross" in name:
            assert (values(tensor)[..., -one()["padded"]["columns"] :] == 0).all()


# The search.


def test_the_tree_has_every_node_with_its_numbers():
    search = one()["searches"]["beam"]
    picture = parsed(beam(one()))
    scores = {each["node"]: each["score"] for each in search["hypotheses"]}
    wanted = [
        f"{node['token']['piece']}: log p {node['log_prob']:.4f}, sum {node['sum']:.4f}, "
        + node["state"]
        + (f", score {scores[node['id']]:.4f}" if node["state"] == "finished" else "")
        for node in search["nodes"]
    ]
    assert sorted(titles(picture)) == sorted(wanted)
    names = written(picture)
    for node in search["nodes"]:
        assert f"{node['log_prob']:.2f}" in names
    for rank, each in enumerate(search["hypotheses"], start=1):
        (row,) = [name for name in names if name.startswith(f"{rank}. ")]
        score, total, penalty = (float(x) for x in re.findall(r"-?\d+\.\d{4}", row))
        assert score == pytest.approx(total / penalty, rel=2e-4)
        assert score == pytest.approx(each["score"], abs=6e-5)


def test_no_two_nodes_of_a_tree_overlap_and_the_winner_is_in_the_first_lane():
    search = one()["searches"]["beam"]
    picture = parsed(beam(one()))
    boxes = {}
    for box in picture.iter(f"{SVG}rect"):
        if len(box):
            place = (float(box.get("x")), float(box.get("y")))
            assert place not in boxes
            boxes[place] = box[0].text
    best = {search["hypotheses"][0]["node"]}
    parents = {node["id"]: node["parent"] for node in search["nodes"]}
    while (parent := parents[min(best)]) is not None:
        best.add(parent)
    first = min(y for _, y in boxes)
    thick = [b for b in picture.iter(f"{SVG}rect") if b.get("stroke-width") == "2.5" and len(b)]
    assert len(thick) == len(best)
    assert {float(box.get("y")) for box in thick} == {first}


def hand_made():
    """A search of three outputs in which the longest wins though its sum is the least."""
    found = copy.deepcopy(one())
    piece = found["target"]["input"][1]
    end = {"id": 2, "piece": "EOS", "special": True}
    rows = [(None, piece, "kept"), (0, end, "finished"), (0, piece, "kept"), (2, end, "finished")]
    nodes = [
        {"id": k, "parent": up, "step": 1, "token": token, "log_prob": -1.0, "sum": -1.0 - k}
        | {"state": state}
        for k, (up, token, state) in enumerate(rows)
    ]
    outputs = [
        {"node": node, "text": "x", "tokens": [], "sum": total, "length": length}
        | {"penalty": penalty, "score": total / penalty, "cut": False}
        for node, total, length, penalty in ((3, -4.0, 3, 4.0), (1, -2.0, 2, 1.0))
    ]
    found["searches"]["beam"] |= {"nodes": nodes, "hypotheses": outputs}
    return found


def test_why_it_won_is_told():
    assert "another has a greater sum, but is shorter" in beam(hand_made())
    found = hand_made()
    del found["searches"]["beam"]["hypotheses"][1]
    found["searches"]["beam"]["nodes"][1]["state"] = "pruned"
    assert "It is the only output that ended." in beam(found)
    nodes = one()["searches"]["beam"]["hypotheses"]
    most = max(each["sum"] for each in nodes) == nodes[0]["sum"]
    assert ("and so is its sum" in beam(one())) is most


# A run.

RECORDS = [
    {"step": 10, "loss": 4.0, "learning_rate": 0.001},
    {"step": 20, "loss": 2.0, "learning_rate": 0.002},
    {"step": 20, "valid_loss": 3.0, "valid_bleu": 12.5},
    {"step": 40, "loss": 1.0, "learning_rate": 0.0015},
    {"step": 40, "valid_loss": 1.5, "valid_bleu": 25.0},
    {"step": 40, "finished": True, "best": "step-40"},
]


def test_a_training_is_drawn_from_its_records():
    picture = parsed(loss(RECORDS, "run"))
    assert titles(picture) == [
        *("step 10: training loss 4", "step 20: training loss 2", "step 40: training loss 1"),
        *("step 20: validation loss 3", "step 40: validation loss 1.5"),
        *("step 10: learning rate 0.001", "step 20: learning rate 0.002"),
        "step 40: learning rate 0.0015",
        *("step 20: BLEU on validation 12.5", "step 40: BLEU on validation 25"),
    ]
    # Places are proportional: of the training losses 4, 2, 1 below a common 0.
    places = [(float(c.get("cx")), float(c.get("cy"))) for c in picture.iter(f"{SVG}circle")]
    (x, y), (x2, y2), (x3, y3) = places[:3]
    assert (x3 - x2) == pytest.approx(2 * (x2 - x), abs=0.2)
    assert (y2 - y) == pytest.approx(2 * (y3 - y2), abs=0.2)
    names = written(picture)
    assert "1 training" in names
    assert "1.5 validation" in names
    assert "Training of run, 40 steps" in names


def test_a_training_without_validations_has_fewer_panels():
    picture = parsed(loss(RECORDS[:2], "run"))
    assert "BLEU on validation" not in written(picture)


def test_numbers_that_cannot_be_drawn_are_left_out():
    strange = [{"step": 40, "loss": number} for number in (math.nan, math.inf, 10**400)]
    assert loss([*RECORDS, *strange], "run") == loss(RECORDS, "run")
    parsed(loss([{"step": 0, "loss": 1.0}], "run"))
    with pytest.raises(DataError, match="no loss is recorded"):
        loss(strange, "run")


@pytest.mark.parametrize(("low", "high"), [(0.0, 6.2), (0.0, 0.0023), (0.0, 2400.0), (0.0, 1.0)])
def test_ticks_are_round_and_few(low: float, high: float):
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert all(low - 1e-9 <= tick <= high * (1 + 1e-9) for tick in found)
    steps = np.diff(found)
    assert steps == pytest.approx(steps[0])
    assert f"{steps[0]:e}"[0] in "125"


# Positions.


def decoded(data: bytes) -> np.ndarray:
    """The pixels of a PNG that this package has written: no filters."""
    width, height = struct.unpack(">II", data[16:24])
    length = struct.unpack(">I", data[33:37])[0]
    raw = zlib.decompress(data[41 : 41 + length])
    return (
        np.frombuffer(raw, np.uint8).reshape(height, 1 + 3 * width)[:, 1:].reshape(height, width, 3)
    )


def test_positions_are_a_pixel_a_number():
    p, i = np.arange(20)[:, None], np.arange(8)[None]
    angle = p / 10000 ** (2 * (i // 2) / 8)
    table = np.where(i % 2 == 0, np.sin(angle), np.cos(angle))
    picture = parsed(positions(table, "sinusoidal"))
    image, _ = picture.iter(f"{SVG}image")
    pixels = decoded(b64decode(image.get("href").removeprefix("data:image/png;base64,")))
    assert pixels.shape == (20, 8, 3)
    limit = np.abs(table).max()
    for at in ((0, 0), (1, 0), (4, 0), (19, 7)):
        assert "#" + pixels[at].tobytes().hex() == signed(float(table[at]), float(limit))
    # Claim 36: the first numbers, d_model 8.
    assert "position 1:  0.841471  0.540302  0.099833  0.995004  0.010000  0.999950 ..." in written(
        picture
    )


def test_an_image_is_a_valid_png():
    data = png(np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert (decoded(data) == np.arange(24).reshape(2, 4, 3)).all()
    at = 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        body = data[at + 4 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(body)
        at += 12 + length


def test_colours_run_from_paper_to_ink():
    assert shade(0) == "#fbfaf7"
    assert shade(1) == "#5a1e5c"
    assert signed(-2.0, 2.0) == "#2166ac"
    assert signed(0.0, 2.0) == "#fbfaf7"


@pytest.mark.parametrize("attack", ['"/><script>', "]]>&amp;'", "\x00\x1b\ufffe"])
def test_a_strangers_piece_stays_text(attack: str):
    found = copy.deepcopy(one())
    found["source"]["tokens"][0]["piece"] = attack
    found["searches"]["beam"]["nodes"][0]["token"] = {"id": 9, "piece": attack, "special": False}
    for svg in (attention(found, [("encoder.0.self_attention", None)]), masks(found), beam(found)):
        tags = {element.tag.removeprefix(SVG) for element in parsed(svg).iter()}
        assert tags <= {"svg", "title", "desc", "defs", "pattern", "path", "rect", "text", "g"}


# The verb.


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("figures") / "small")


def test_the_verb_draws_what_the_trace_has(model, tmp_path):
    for words, drawn in (
        (["attention"], attention(one(), [("decoder.1.cross_attention", None)])),
        (
            ["attention", "--block", "encoder.0.self_attention", "--head", "2"],
            attention(one(), [("encoder.0.self_attention", 2)]),
        ),
        (
            ["attention", "--head", "all"],
            attention(one(), [("decoder.1.cross_attention", k) for k in range(4)]),
        ),
        (["masks"], masks(one())),
    ):
        out = tmp_path / "drawn.svg"
        kind, *options = words
        done = transduce(
            *("figure", kind, model, SOURCE, "--target", TARGET, *options, "-o", out),
            *("--threads", "1"),
        )
        assert done.status == 0, done.errors
        assert f"written to {out}" in done.errors
        assert out.read_text(encoding="utf-8") == drawn


def test_the_verb_draws_searches_positions_and_runs(model, tmp_path):
    out = tmp_path / "drawn.svg"
    done = transduce("figure", "beam", model, SOURCE, "--beam", "2", "--alpha", "1", "-o", out)
    assert done.status == 0, done.errors
    wanted = trace(translator(), SOURCE, beam=2, alpha=1.0).to_json()["traces"][0]
    assert titles(parsed(out.read_text())) == titles(parsed(beam(wanted)))
    done = transduce("figure", "positions", model, "--length", "5", "-o", out)
    assert done.status == 0, done.errors
    table = translator().bundles[0].model.source_embedding.positions[:5].double().numpy()
    assert out.read_text(encoding="utf-8") == positions(table, "sinusoidal")
    run = tmp_path / "some run"
    run.mkdir()
    (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in RECORDS))
    done = transduce("figure", "loss", run, "-o", out)
    assert done.status == 0, done.errors
    assert out.read_text(encoding="utf-8") == loss(RECORDS, "some run")


def test_a_png_is_as_large_as_was_asked_and_has_letters(model, tmp_path):
    sizes = {}
    for scale in ("1", "3"):
        out = tmp_path / f"{scale}.png"
        done = transduce("figure", "positions", model, "-o", out, "--length", "9", "--scale", scale)
        assert done.status == 0, done.errors
        data = out.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        sizes[scale] = struct.unpack(">II", data[16:24])
    svg = tmp_path / "drawn.svg"
    transduce("figure", "positions", model, "-o", svg, "--length", "9")
    size = [float(parsed(svg.read_text()).get(side)) for side in ("width", "height")]
    for scale, found in sizes.items():
        assert found == tuple(pytest.approx(float(scale) * side, abs=1) for side in size)
    blank = raster.png(figure(80, 60, "", "", []), 1.0)
    lettered = raster.png(figure(80, 60, "", "", [text(10, 40, "▁chat")]), 1.0)
    assert len(lettered) > len(blank) + 100


def test_what_it_refuses_is_one_line(model, tmp_path, monkeypatch):
    out = tmp_path / "out.svg"

    def told(kind: str, *words: object) -> str:
        return refused("figure", kind, *map(str, words))

    block = told("attention", model, "a", "-o", out, "--block", "decoder.1.cros_attention")
    assert "did you mean 'decoder.1.cross_attention'?" in block
    assert "its heads are 0 to 3" in told("attention", model, "a", "-o", out, "--head", "4")
    assert "number from 0" in told("attention", model, "a", "-o", out, "--head", "most")
    assert "a .svg or a .png" in told("masks", model, "a", "-o", tmp_path / "out.pdf")
    assert "TEXT is blank" in told("beam", model, "  ", "-o", out)
    assert "--scale is for .png" in told("masks", model, "a", "-o", out, "--scale", "2")
    assert "20 positions" in told("positions", model, "-o", out, "--length", "21")
    assert "no loss is recorded" in told("loss", model, "-o", out)
    assert "beam" in told("beam", model, "a", "-o", out, "--beam", "0")
    assert "lower --scale" in told(
        "attention", model, SOURCE, "-o", tmp_path / "a.png", "--head", "all", "--scale", "20"
    )
    (tmp_path / "folder.svg").mkdir()
    assert "Is a directory" in told("masks", model, "a", "-o", tmp_path / "folder.svg")
    assert "No such command" in refused("figure", "pie", str(model))
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    assert "transduce[figures]" in told("masks", model, "a", "-o", tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder.svg"]  # nothing half written


def test_a_machine_without_letters_is_told(monkeypatch):
    class Mute:
        @staticmethod
        def svg_to_bytes(**_: object) -> bytes:
            return b"the same"

    monkeypatch.setitem(sys.modules, "resvg_py", Mute)
    with pytest.raises(Exception, match="no font"):
        raster.library()


# The guide's pictures.


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_of_the_guide_is_small_and_well_formed(name: str):
    path = DRAWN / f"{name}.svg"
    assert path.stat().st_size < 40_000
    picture = parsed(path.read_text(encoding="utf-8"))
    paper = next(picture.iter(f"{SVG}rect"))  # its own, also where all around it is dark
    if paper.get("fill") != "#fbfaf7":
        paper = picture.find(f"{SVG}rect")
    assert paper.get("fill") == "#fbfaf7"
    assert paper.get("width") == picture.get("width")
    w, h = float(picture.get("width")), float(picture.get("height"))
    for element in picture.findall(f".//{SVG}text"):
        assert 0 <= float(element.get("x")) <= w
        assert 0 <= float(element.get("y")) <= h


def test_the_guides_example_has_the_guides_numbers():
    """Claims 1 to 5."""
    names = written(parsed((DRAWN / "equation.svg").read_text(encoding="utf-8")))
    for number in (
        *("0.707107", "2.028115", "sum 5.056230", "0.401112", "0.197776", "sum 1"),
        "[1.604448, 1.197776]",
    ):
        assert number in names, number
    assert names.count("0.401112") == 2
    assert "query q = [1, 0],  d_k = 2" in names
    bars = parsed((DRAWN / "equation.svg").read_text(encoding="utf-8")).findall(f"{SVG}rect")[1:]
    assert [float(bar.get("width")) for bar in bars[1::2]] == pytest.approx(
        [40.1, 19.8, 40.1], abs=0.05
    )


def test_the_guides_lesson_adds_up():
    picture = parsed((DRAWN / "training.svg").read_text(encoding="utf-8"))
    told = picture.find(f"{SVG}desc").text
    pairs = [(float(p), float(x)) for p, x in re.findall(r"p (\S+), loss ([\d.]+)", told)]
    for p, found in pairs:
        assert found == pytest.approx(-math.log(p), abs=1.2e-4)
    (mean,) = re.findall(r"mean ([\d.]+) nats", told)
    assert float(mean) == pytest.approx(sum(x for _, x in pairs) / len(pairs), abs=1e-4)
    inputs, labels = re.search(r"input BOS (.*); labels (.*) EOS\.", told).groups()
    assert inputs == labels


def test_the_guides_pictures_can_be_made_again(tmp_path, monkeypatch):
    """With another model: what is committed is of the demo, whose training takes minutes."""
    monkeypatch.syspath_prepend(str(DRAWN))
    import make

    folder = save(tmp_path / "model")
    make.make(folder, tmp_path)
    assert sorted(path.stem for path in tmp_path.glob("*.svg")) == sorted(NAMES)
    for name in NAMES:
        parsed((tmp_path / f"{name}.svg").read_text(encoding="utf-8"))
    same = [(d / "equation.svg").read_bytes() for d in (tmp_path, DRAWN)]
    assert same[0] == same[1]
