"""Moses' tokens: as written by hand, and as Moses split Multi30k; their BLEU by sacreBLEU."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
from command import transduce
from sacrebleu.metrics import BLEU
from sacremoses.corpus import NonbreakingPrefixes

from transduce.errors import SettingsError
from transduce.evaluate import check_tokenizer, evaluate
from transduce.moses import LANGUAGES, TOKENIZERS, MosesTokenizer

MULTI30K = Path(__file__).parents[2] / "shared" / "data" / "multi30k"

# By hand, from the rules of tokenizer.perl (without -a) and replace-unicode-punctuation.perl.
RAW = [
    "Die Ost-West-Achse ist 3,5 km lang, sagt Dr. Weiß.",
    "„Das geht's nicht“, rief er: „Nie!“",
    "Am 5. Mai kamen ca. 1.000 Leute… und z. B. der Chef (65).",
    "Er kam, sah & siegte; A|B [sic] <b> 50% usw.",
    "Ein E-Mail-Text ‚von heute‘ - «na ja» – kostet 5€.",
]
MOSES_DE = [
    "Die Ost-West-Achse ist 3,5 km lang , sagt Dr. Weiß .",
    "„ Das geht &apos; s nicht “ , rief er : „ Nie ! “",
    "Am 5. Mai kamen ca. 1.000 Leute … und z. B. der Chef ( 65 ) .",
    "Er kam , sah &amp; siegte ; A &#124; B &#91; sic &#93; &lt; b &gt; 50 % usw.",
    "Ein E-Mail-Text ‚ von heute ‘ - « na ja » – kostet 5 € .",
]
MOSES_DE_ATAT = [
    "Die Ost ##AT##-##AT## West ##AT##-##AT## Achse ist 3,5 km lang , sagt Dr. Weiß .",
    "&quot; Das geht &apos; s nicht &quot; , rief er : &quot; Nie ! &quot;",
    "Am 5. Mai kamen ca. 1.000 Leute ... und z. B. der Chef ( 65 ) .",
    MOSES_DE[3],
    "Ein E ##AT##-##AT## Mail ##AT##-##AT## Text &apos; von heute &apos; - &quot; na ja &quot; –"
    " kostet 5 € .",
]


@pytest.mark.parametrize(
    ("name", "raw", "tokens"),
    [
        *(("moses-de", *pair) for pair in zip(RAW, MOSES_DE, strict=True)),
        *(("moses-de-atat", *pair) for pair in zip(RAW, MOSES_DE_ATAT, strict=True)),
        # The middle letter belongs to the first match: Perl's s///g does not look at it again.
        ("moses-de-atat", "A-B-C, U-Bahn- und", "A ##AT##-##AT## B-C , U ##AT##-##AT## Bahn- und"),
        ("moses-de-atat", "（１０％）", "( 10 % )"),
        ("moses-en", "It's the dogs' 1990's, isn't it?",
         "It &apos;s the dogs &apos; 1990 &apos;s , isn &apos;t it ?"),
        ("moses-en", "Mr. Smith left. No. 5 costs $1,000.50... Then he",
         "Mr. Smith left . No. 5 costs $ 1,000.50 ... Then he"),
        ("moses-fr", "L'eau qu'il a bue : « bonne » !",
         "L&apos; eau qu&apos; il a bue : « bonne » !"),
        ("moses-cs", "Např. dům, s.r.o. Praha.", "Např. dům , s.r.o. Praha ."),
        ("moses-ru", "Он сказал: «нет», и т.д. Потом", "Он сказал : « нет » , и т.д. Потом"),
        ("moses-de", " zwei  Leer\tzeichen\u00a0hier ", "zwei Leer zeichen hier"),
        ("moses-de", "", ""),
    ],
)  # fmt: skip
def test_tokens_are_moses(name: str, raw: str, tokens: str):
    assert MosesTokenizer(name)(raw) == tokens


def share(language: str, part: str) -> float:
    """Of lines that are split as Moses split them."""
    raw, theirs = (
        gzip.decompress((MULTI30K / folder / f"{part}{infix}.{language}.gz").read_bytes())
        .decode("utf-8")
        .split("\n")[:-1]
        for folder, infix in (("raw", ""), ("lc.norm.tok", ".lc.norm.tok"))
    )
    split = MosesTokenizer(f"moses-{language}")
    same = [split(a.lower()) == " ".join(b.split()) for a, b in zip(raw, theirs, strict=True)]
    assert len(same) >= 1000
    return sum(same) / len(same)


@pytest.mark.skipif(not MULTI30K.exists(), reason=f"needs the texts in {MULTI30K}")
@pytest.mark.parametrize("part", ["test_2016_flickr", "val"])
@pytest.mark.parametrize("language", ["de", "en", "fr"])
def test_multi30k_is_split_as_moses_split_it(language: str, part: str):
    """Moses had normalised punctuation before, so a few lines differ: at most 3 in 1,000."""
    assert share(language, part) >= 0.995


@pytest.mark.skipif(not MULTI30K.exists(), reason=f"needs the texts in {MULTI30K}")
def test_another_language_s_rules_are_seen_in_multi30k():
    raw = gzip.decompress((MULTI30K / "raw" / "val.fr.gz").read_bytes()).decode().split("\n")
    one, other = MosesTokenizer("moses-fr"), MosesTokenizer("moses-de")
    assert sum(one(line) != other(line) for line in raw) > 100


def noisy(lines: list[str]) -> list[str]:
    return [" ".join(word for i, word in enumerate(line.split()) if i != 4) for line in lines]


@pytest.mark.parametrize(
    ("name", "tokens"), [("moses-de", MOSES_DE), ("moses-de-atat", MOSES_DE_ATAT)]
)
@pytest.mark.parametrize("count", [1, 2])
def test_bleu_is_sacrebleu_s_of_the_tokens(name: str, tokens: list[str], count: int):
    split = MosesTokenizer(name)
    systems = [noisy(RAW), [*RAW[:3], "Er kam und siegte.", "Ein Text."]]
    references = [RAW, systems[1][::-1]][:count]
    ours = evaluate(systems, list(zip(*references, strict=True)), tokenize=name)
    plain = evaluate(systems, list(zip(*references, strict=True)))
    judge = BLEU(tokenize="none", force=True)
    theirs = [tokens, [split(line) for line in systems[1]][::-1]][:count]
    for system, found, usual in zip(systems, ours, plain, strict=True):
        score = found.scores["BLEU"]
        lines = [split(line) for line in system]
        expected = judge.corpus_score(lines, theirs, n_bootstrap=1000)
        assert 10 < score.value < 100
        assert score.value == pytest.approx(expected.score, abs=1e-9)
        assert score.interval == pytest.approx(expected._ci, abs=1e-4)
        assert f"tok:{name}-0." in score.signature
        assert score.value != usual.scores["BLEU"].value
        for metric in ("chrF2++", "TER", "exact match"):
            assert found.scores[metric] == usual.scores[metric]
    assert ours[1].differences["BLEU"].value == pytest.approx(
        ours[1].scores["BLEU"].value - ours[0].scores["BLEU"].value
    )


def test_only_moses_de_atat_is_indifferent_to_the_form_of_quotes_and_dots():
    straight = [line.translate(str.maketrans("„“‚‘«»", '""\'\'""')) for line in RAW]
    straight = [line.replace("…", "...") for line in straight]
    references = [(line,) for line in straight]
    [plain] = evaluate([RAW], references, tokenize="moses-de")
    [atat] = evaluate([RAW], references, tokenize="moses-de-atat")
    assert plain.scores["BLEU"].value < 90
    assert atat.scores["BLEU"].value == pytest.approx(100)
    assert atat.scores["exact match"].value < 100


def test_every_language_is_one_that_sacremoses_knows():
    """It takes English for others, without a word."""
    assert set(LANGUAGES) <= set(NonbreakingPrefixes().available_langs.values())
    for name in TOKENIZERS:
        check_tokenizer(name)


@pytest.mark.parametrize(
    "name",
    ["moses", "moses-", "moses-xx", "moses-DE", "moses-german", "moses-fi", "moses-en-atat",
     "moses-de-", "moses-de-atat-"],
)  # fmt: skip
def test_other_languages_are_refused_in_a_line(name: str):
    with pytest.raises(SettingsError, match=f"{name!r} is unknown; of Moses there are") as refused:
        check_tokenizer(name)
    assert "\n" not in str(refused.value)
    assert all(known in str(refused.value) for known in TOKENIZERS)
    with pytest.raises(SettingsError, match="is unknown"):
        evaluate([["a"]], [("a",)], tokenize=name)


def test_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(SettingsError, match=r"'moses-de' needs pip install 'transduce\[moses\]'"):
        check_tokenizer("moses-de")
    with pytest.raises(SettingsError, match="of Moses there are"):
        check_tokenizer("moses-xx")
    check_tokenizer("13a")


def test_on_the_command_line(tmp_path: Path):
    files = {"raw": RAW, "hyp": noisy(RAW), "tok": MOSES_DE}
    for name, lines in files.items():
        text = "".join(line + "\n" for line in lines)
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = ("-q", "evaluate", "--reference", tmp_path / "raw", "--tokenize", "moses-de-atat")
    found = transduce(*words, "--hypothesis", tmp_path / "hyp", "--baseline", tmp_path / "raw")
    assert (found.status, found.errors) == (0, "")
    assert found.text.count("|tok:moses-de-atat-0.") == 2
    assert "p = " in found.text
    split = transduce(*words, "--hypothesis", tmp_path / "tok")
    assert split.status == 0
    assert "looks tokenised" in split.errors
    unknown = transduce(*words[:-1], "moses-xx", "--hypothesis", tmp_path / "hyp")
    assert unknown.status == 2
    assert unknown.errors.count("\n") == 1
    assert "moses-de-atat" in unknown.errors


def test_only_who_asks_for_it_imports_it():
    script = (
        "import sys; from transduce.evaluate import evaluate\n"
        "evaluate([['a b c d']], [('a b c d',)], tokenize=sys.argv[1])\n"
        "print('sacremoses' in sys.modules)"
    )
    for name, expected in (("13a", "False\n"), ("moses-de", "True\n")):
        call = [sys.executable, "-c", script, name]
        found = subprocess.run(call, capture_output=True, text=True, timeout=100, check=False)
        assert found.stdout == expected, found.stderr
