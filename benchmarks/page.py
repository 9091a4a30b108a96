"""The page's budgets: how large, how soon it is there, how it follows the pointer; a trace's time.

    python benchmarks/page.py [--model MODEL] [--rounds 5] [--threads 2]

Without MODEL: random weights of the demo's size (2 + 2 layers, 4 heads, width 96). Sentences have
the number of pieces that is told, targets too. Chromium opens the page from a file, offline. First
paint: the browser's own first-contentful-paint, from the start of navigation, a fresh profile each
time. A frame: what the main thread takes from a move of the pointer to a cell of the map until the
picture is handed over (handlers, style, layout, paint). Prints a table of Markdown.
"""

import argparse
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Browser, Playwright, sync_playwright

from transduce import Translator
from transduce.bundle import Bundle
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import TokenizerConfig, train_tokenizer
from transduce.trace.page import html
from transduce.trace.trace import trace

WORDS = "the animal did not cross street because it was too wide tired old".split()  # noqa: SIM905
BLOCK = "decoder.1.cross_attention"
PAINT = """() => new Promise((found) => new PerformanceObserver((list) => {
  const [paint] = list.getEntriesByName("first-contentful-paint");
  if (paint) found(paint.startTime);
}).observe({ type: "paint", buffered: true }))"""
FRAMES = """async ([testid, count]) => {
  const grid = document.querySelector(`[data-testid="${testid}"] [role=grid]`);
  const edge = (grid.querySelector(".cells") ?? grid).getBoundingClientRect();
  const took = [];
  for (let n = 0; n < count; n++) {
    const where = { clientX: edge.left + ((n * 37.7) % edge.width), clientY: edge.top + ((n * 23.3) % edge.height) };
    await new Promise((done) => requestAnimationFrame(() => {
      const began = performance.now();
      const channel = new MessageChannel();  // its message comes after the frame is painted
      channel.port1.onmessage = () => { took.push(performance.now() - began); done(); };
      grid.dispatchEvent(new PointerEvent("pointermove", { ...where, bubbles: true, pointerType: "mouse" }));
      channel.port2.postMessage(null);
    }));
  }
  return took;
}"""  # noqa: E501 - JavaScript


def main() -> None:
    """Measure all, and print a table of Markdown."""
    parser = argparse.ArgumentParser(description="The page's budgets.")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    translator = Translator.load(given.model) if given.model else random_model()
    print("| what | budget | measured |\n|---|---|---|")
    print(f"| the page before data | 300 kB | {len(html(None).encode()) / 1000:.0f} kB |")
    for size in (8, 24, 40, 64):
        documents = [document(translator, size) for _ in range(given.rounds)]
        seconds = [each["traces"][0]["seconds"] for each in documents]
        budget = "1 s" if size == 40 else ""
        print(f"| a trace of {size} x {size} pieces | {budget} | {spread(seconds)} s |")
        kilobytes = len(html(documents[0]).encode()) / 1000
        print(f"| the page with it | | {kilobytes:,.0f} kB |")
        with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
            path = Path(folder) / "page.html"
            path.write_text(html(documents[0]), encoding="utf-8")
            browser = chromium(playwright)
            paints = [first_paint(browser, path) for _ in range(given.rounds)]
            print(f"| its first paint | 1 s | {spread(paints)} s |")
            frames = sorted(hover(browser, path))
            middle, late = (frames[int(share * len(frames))] for share in (0.5, 0.95))
            budget = "16 ms" if size == 64 else ""
            print(
                f"| a frame at its cross-attention map, of {len(frames)} | {budget} "
                f"| {middle:.1f} ms, 95 %: {late:.1f} ms |"
            )
            browser.close()


def random_model() -> Translator:
    """Weights of the demo's size; each of its words is one piece."""
    tokenizer = train_tokenizer([" ".join(WORDS)] * 9, TokenizerConfig(), vocab_size=310)
    torch.manual_seed(1)
    model = Transformer(
        TransformerConfig(
            source_vocab_size=tokenizer.size,
            target_vocab_size=tokenizer.size,
            d_model=96,
            heads=4,
            d_ff=384,
            encoder_layers=2,
            decoder_layers=2,
        )
    )
    return Translator(Bundle(model.eval(), tokenizer, tokenizer, {}), names=["random"])


def document(translator: Translator, size: int) -> dict[str, Any]:
    """Trace a sentence of so many pieces, its end included, and a target of as many."""
    one = translator.bundles[0]
    texts = []
    for tokenizer in (one.source_tokenizer, one.target_tokenizer):
        text = ""
        for number in range(10 * size):
            longer = f"{text} {WORDS[number % len(WORDS)]}".strip()
            if len(tokenizer.encode(longer)) < size:
                text = longer
        texts.append(text)
    return trace(translator, *texts).to_json()


def chromium(playwright: Playwright) -> Browser:
    """Start the machine's Chromium."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    options = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    return playwright.chromium.launch(executable_path=path, args=options)


def first_paint(browser: Browser, path: Path) -> float:
    """Seconds."""
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(f"file://{path}")
    found = page.evaluate(PAINT)
    context.close()
    return found / 1000


def hover(browser: Browser, path: Path) -> list[float]:
    """Milliseconds of each frame, the first twenty left out."""
    context = browser.new_context(offline=True, viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    page.goto(f"file://{path}#open={BLOCK}&tab=patterns&head=0")
    testid = f"matrix-{BLOCK}-0"
    page.get_by_test_id(testid).first.scroll_into_view_if_needed()
    found = page.evaluate(FRAMES, [testid, 320])
    context.close()
    return found[20:]


def spread(numbers: list[float]) -> str:
    """Median, least and most."""
    middle = statistics.median(numbers)
    return f"{middle:.2f} ({min(numbers):.2f}-{max(numbers):.2f})"


if __name__ == "__main__":
    main()
