"""The guide's text and the eight questions: nothing that was lost is missing, all of it runs."""

import math
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.train.schedule import noam

DOCS = Path(__file__).parents[1] / "docs"
GUIDE = (DOCS / "guide.md").read_text(encoding="utf-8")
QUESTIONS = (DOCS / "questions.md").read_text(encoding="utf-8")
TEXTS = [GUIDE, QUESTIONS]
FIGURES = [
    *("river", "tokens", "equation", "heads", "patterns", "masks"),
    *("block", "training", "nextword"),
]


def words(text: str) -> str:
    """The text without its line ends, to look for phrases."""
    return re.sub(r"\s+", " ", text)


def code_of(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```|`[^`\n]+`", "", text, flags=re.MULTILINE | re.DOTALL)


def formulas(text: str) -> list[str]:
    return [one or other for one, other in re.findall(r"\$\$(.+?)\$\$|\$(.+?)\$", text)]


def sections() -> dict[str, str]:
    """Of each part of the guide, under its heading, the text."""
    _, *parts = re.split(r"^## ", GUIDE, flags=re.MULTILINE)
    return {part.split("\n")[0]: part for part in parts}


def test_the_code_of_the_guide_runs_in_its_order(capsys: pytest.CaptureFixture[str]):
    blocks = code_of(GUIDE)
    assert len(blocks) >= 12
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    printed = capsys.readouterr().out
    for number in ("0.4011, 0.1978, 0.4011", "1.6044, 1.1978", "no key is allowed"):
        assert number in printed
    assert names["before"] > names["after"]


def test_each_figure_stands_once_alone_on_its_line_and_says_what_is_seen():
    found = re.findall(r"^!\[([^]]*)\]\(figures/(\w+)\.svg\)$", GUIDE, flags=re.MULTILINE)
    assert sorted(name for _, name in found) == sorted(FIGURES)
    assert GUIDE.count("](figures/") == len(FIGURES)
    assert all(12 <= len(alt.split()) <= 30 for alt, _ in found)
    for _, name in found:  # and what to do with it, where it is live
        assert words(GUIDE.split(f"figures/{name}.svg)")[1]).startswith(" *In the page*"), name


GAPS = {
    1: ["(https://arxiv.org/abs/1706.03762)"],
    2: ["figures/river.svg", "**Encoder layer**, six times", "**Decoder layer**, six times"],
    3: [r"E \in \mathbb{R}^{V \times d_{model}}"],
    4: [
        r"\sin\left(\frac{pos}{10000^{2i/d_{model}}}\right)",
        r"\cos\left(\frac{pos}{10000^{2i/d_{model}}}\right)",
        r"\sqrt{d_{model}} \cdot E[id] + PE(pos)",
    ],
    5: [r"Q = X W^Q \qquad K = X W^K \qquad V = X W^V"],
    6: [r"\mathrm{softmax}\left(\frac{Q K^T}{\sqrt{d_k}}\right) V"],
    7: ["| scores, weights | `[T_q, T_k]`", "| output | `[T_q, d_v]`"],
    8: [r"q_i \cdot k_j = \sum_{m=1}^{d_k} q_{im} k_{jm}"],
    9: [r"\frac{e^{z_j - m}}{\sum_{l=1}^{n} e^{z_l - m}}"],
    10: [r"o_i = \sum_{j} \alpha_{ij} v_j \qquad \sum_{j} \alpha_{ij} = 1"],
    11: ["= [1.6044, 1.1978]", "[1.3395, 0.6605]", "[1.3333, 1.3333]"],
    12: [r"\mathrm{Concat}(head_1, \ldots, head_h) W^O", "`[B, 8, T_q, 64]`", ".transpose(1, 2)"],
    13: ["| encoder self-attention |", "| masked decoder self-attention |", "| cross-attention |"],
    14: ["| **0** | 1 | 0 | 0 | 0 |", "| **3** | 1 | 1 | 1 | 1 |", "figures/masks.svg"],
    15: ["`transduce.attention` refuses", "spreads to all that follows"],
    16: ["(https://docs.pytorch.org/", "`attn_mask`, `key_padding_mask`"],
    17: [r"\max(0, x W_1 + b_1) W_2 + b_2"],
    18: [r"y = x + \mathrm{Sublayer}(x)"],
    19: [
        r"\mathrm{LayerNorm}(x + \mathrm{Dropout}(\mathrm{Sublayer}(x)))",
        r"\gamma \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta",
        r"x + \mathrm{Dropout}(\mathrm{Sublayer}(\mathrm{LayerNorm}(x)))",
    ],
    20: ["| decoder input | BOS | I | love | maths |", "| label | I | love | maths | EOS |"],
    21: [r"p(y \mid x) = \prod_{t=1}^{T} p(y_t \mid y_{\lt t}, x)", r"-\frac{1}{N} \sum_{t} \log"],
    22: ["from transduce.model.tiny import TinyTransformer", "assert (labels != PAD).sum() == 7"],
    23: [
        *(r"s \cdot 4000^{-1.5}", r"\left(\frac{5 + |Y|}{6}\right)^{\alpha}", "**The cache.**"),
        *("**28.4**", "**41.8**", "$O(n^2 d)$", "## 15. What has changed", "<summary>Answer<"),
    ],
}
"""What the original refers to and does not contain, by its number in the list of its gaps."""


@pytest.mark.parametrize("number", GAPS)
def test_what_the_original_lost_is_there(number: int):
    for phrase in GAPS[number]:
        assert words(phrase) in words(GUIDE), phrase


def test_the_list_of_gaps_is_whole():
    assert list(GAPS) == list(range(1, 24))


def test_before_each_part_stands_a_question_to_predict():
    for title, text in sections().items():
        if int(title.split(".")[0]) <= 15:
            assert words(text.split("\n", 2)[2]).startswith("<details><summary>Predict first: "), (
                title
            )


def rows_after(head: str) -> dict[str, list[str]]:
    """The rows of the table with this head, by their first cell."""
    table = GUIDE.split(head)[1].split("\n\n")[0]
    cells = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in cells}


def numbers_of(cell: str) -> torch.Tensor:
    found = re.findall(r"\d+/\d+|\d+(?:\.\d+)?", cell)
    return torch.tensor([float(Fraction(each)) for each in found], dtype=torch.float64)


def test_the_table_of_changes_is_that_of_the_arithmetic():
    told = rows_after("| change | weights | output |")
    root, inf = math.sqrt(0.5), -math.inf
    scores = {
        "nothing": [root, 0, root],
        "all scores equal": [0, 0, 0],
        "all equal, then +1 on key 1": [1, 0, 0],
        "+1 on the score of key 3": [root, 0, root + 1],
        "+1 on the score of key 2": [root, 1, root],
        "no division by √2": [1, 0, 1],
        "key 3 blocked": [root, 0, inf],
        "key 2 blocked": [root, inf, root],
        "1000 added to all": [root + 1000, 1000, root + 1000],
    }
    assert told.keys() == scores.keys()
    values = torch.tensor([[2, 0], [0, 2], [2, 2]], dtype=torch.float64)
    for change, row in scores.items():
        weights = torch.tensor(row, dtype=torch.float64).softmax(0)
        for cell, right in zip(told[change], (weights, weights @ values), strict=True):
            torch.testing.assert_close(numbers_of(cell), right, atol=5.1e-5, rtol=0)


def test_the_table_of_saturation_is_true():
    for t, (share, slope) in rows_after("| $t$ | share of the first |").items():
        p = torch.tensor([float(t), 0, 0], dtype=torch.float64).softmax(0)[0].item()
        assert float(share) == pytest.approx(p, abs=5e-4)
        assert float(slope) == pytest.approx(p * (1 - p), abs=5e-4)


def test_the_table_of_parameters_is_the_models():
    told = {
        part: int(cells[1].replace(",", ""))
        for part, cells in rows_after("| part | formula | parameters |").items()
    }
    with torch.device("meta"):
        model = Transformer(TransformerConfig())

    def count(*modules: torch.nn.Module) -> int:
        return sum(p.numel() for module in modules for p in module.parameters())

    layer = model.encoder[0]
    assert told == {
        "attention": count(layer.self_attention),
        "feed-forward": count(layer.feed_forward),
        "norm": count(layer.feed_forward_residual),
        "encoder layer": count(layer),
        "decoder layer": count(model.decoder[0]),
        "six of each": count(*model.encoder, *model.decoder),
        "one table for 37,000 pieces": count(model.output),
        "together": count(model),
    }


def test_the_learning_rates_that_are_told_are_the_schedules():
    told = re.findall(r"\$([\d.]+) \\cdot 10\^\{(-\d)\}\$ at step ([\d,]+)", words(GUIDE))
    assert len(told) == 3
    for digits, power, step in told:
        rate = noam(int(step.strip(",").replace(",", "")), 512, 4000)
        assert float(f"{digits}e{power}") == pytest.approx(rate, rel=5e-3)


@pytest.mark.parametrize("text", TEXTS, ids=["guide", "questions"])
def test_the_markup_is_read_alike_by_github_and_by_the_page(text: str):
    assert text.count("<details>") == text.count("</details>") == text.count("<summary>")
    plain = without_code(text)
    assert plain.count("$") % 2 == 0
    for formula in formulas(plain):
        assert not re.search(r"\\[^a-zA-Z]", formula), formula  # Markdown takes it for an escape
        assert formula.count("{") == formula.count("}")
        assert formula == formula.strip()
    for start in re.finditer(r"(?<!\$)\$(?!\$)[^$]+\$", plain):
        around = plain[start.start() - 1] + plain[start.end()]
        assert re.fullmatch(r"[\s(|*>][\s.,:;)?|*]", around), start[0]


@pytest.mark.parametrize("text", TEXTS, ids=["guide", "questions"])
def test_links_lead_to_papers_and_official_pages(text: str):
    for link in re.findall(r"\]\((\w+:[^)]+)\)", text):
        known = r"https://(arxiv\.org/abs/\d{4}\.\d{4,5}|aclanthology\.org/[\w.-]+/|docs\.pytorch\.org/\S+)"
        assert re.fullmatch(known, link), link
    for name, number in re.findall(
        r"\[(\d{4}\.\d{4,5})\]\(https://arxiv\.org/abs/([\d.]+)\)", text
    ):
        assert name == number


class Asked:
    """One question: its outcome, its options, the right one's letter, the answer's text."""

    def __init__(self, text: str) -> None:
        self.outcome = re.findall(r"^Outcome: ([ABCD])$", text, flags=re.MULTILINE)
        options = re.findall(r"^- ([A-Z])\. (.*?)(?=\n- |\n\n)", text, re.MULTILINE | re.DOTALL)
        self.options = {letter: words(option) for letter, option in options}
        self.answer = words(
            text.split("<summary>Answer</summary>")[1].split("</details>")[0]
        ).strip()
        self.right = re.findall(r"^\*\*([A-D])\.\*\* ", self.answer)
        self.guide = re.findall(r"Guide: (\d+\. .+)\.$", self.answer)


def questions() -> list[Asked]:
    _, *parts = re.split(r"^## (?=\d+\. )", QUESTIONS, flags=re.MULTILINE)
    return [Asked(part.split("\n## ")[0]) for part in parts]


def test_there_are_eight_questions_two_an_outcome_and_two_of_each_letter():
    asked = questions()
    assert [one.outcome for one in asked] == [[each] for each in "AABBCCDD"]
    assert Counter(letter for one in asked for letter in one.right) == dict.fromkeys("ABCD", 2)
    for one in asked:
        assert list(one.options) == list("ABCD")
        assert len(one.right) == 1
        assert len(set(one.options.values())) == 4


def test_each_answer_says_what_every_wrong_option_believes_and_where_the_guide_is():
    for one in questions():
        told = set("".join(re.findall(r"(?:^| )([A-D](?: and [A-D])?): ", one.answer)))
        assert told - set(" and") == set("ABCD") - set(one.right), one.answer
        assert len(one.guide) == 1
        assert one.guide[0] in sections()


def test_the_right_option_is_not_known_by_its_length():
    longest = shortest = 0
    for one in questions():
        lengths = sorted(map(len, one.options.values()))
        right = len(one.options[one.right[0]])
        longest += right == lengths[-1] > lengths[-2]
        shortest += right == lengths[0] < lengths[1]
        assert lengths[-1] <= 1.4 * lengths[0], one.options
    assert longest <= 3
    assert shortest <= 3


def test_the_table_of_right_answers_is_that_of_the_questions():
    rows = re.findall(
        r"^\| ([A-D]): .*\| (\d), (\d) \| ([A-D]), ([A-D]) \|$", QUESTIONS, re.MULTILINE
    )
    told = [
        (outcome, int(n), letter)
        for outcome, *two in rows
        for n, letter in zip(two, two[2:], strict=False)
    ]
    asked = [(one.outcome[0], n, one.right[0]) for n, one in enumerate(questions(), 1)]
    assert told == asked
    assert "**Not yet run with people.**" in QUESTIONS


def test_the_numbers_that_are_asked_for_are_right():
    exponentials = torch.tensor([3.0, 1.0, 2.0])
    blocked = torch.tensor([False, False, True])
    weights = exponentials.log().masked_fill(blocked, -torch.inf).softmax(0)
    third, _, _, _, _, last = (questions()[i] for i in (2, 3, 4, 5, 6, 7))
    assert third.options[third.right[0]] == f"{weights[0]:.2f}"
    logits = torch.tensor([0.2, 0.7, 0.1]).log().requires_grad_()
    torch.nn.functional.cross_entropy(logits, torch.tensor(0)).backward()
    assert logits.grad is not None
    up, down, least = (-logits.grad).tolist()
    wanted = f"*chat* up by {up:.1f}, *chien* down by {-down:.1f}, *lit* down by {-least:.1f}."
    assert last.options[last.right[0]] == wanted
