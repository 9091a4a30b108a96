// Turns the texts of docs/ into data of the page at build time: HTML with MathML, cut where a live figure stands.
import { Marked, type RendererObject, type Token, type Tokens } from "marked";
import type { Plugin } from "vite";
import { mathml } from "./src/lib/mathml";

/** A run of HTML, or the place of a figure. */
export type Part = { html: string } | { figure: string; alt: string };
export interface Section {
  slug: string;
  title: string; // HTML
  parts: Part[];
}
export interface Guide {
  title: string;
  intro: Part[];
  sections: Section[];
}
export interface Question {
  title: string; // HTML
  outcome: string; // "A" to "D"
  asks: string; // HTML
  options: { letter: string; html: string; believes: string }[];
  answer: string; // the letter of an option
  why: string; // HTML
  section: { slug: string; title: string }; // of the guide
}
export interface Questions {
  title: string;
  intro: string; // HTML
  questions: Question[];
  teacher: string; // HTML
}

/** As GitHub makes anchors of headings, so that the same links work in both places. */
const slugOf = (title: string) => title.toLowerCase().replace(/[^\p{L}\p{N}\s_-]/gu, "").trim().replace(/\s/g, "-");

/** What TeX calls otherwise than the notation of lib/mathml, and the products of letters in these texts. */
const TEX: Record<string, string> = {
  alpha: "α", beta: "β", gamma: "γ", epsilon: "ε", eta: "η", mu: "μ", pi: "π", sigma: "σ", partial: "∂", infty: "∞",
  cdot: "⋅", times: "×", odot: "⊙", in: "∈", mid: "∣", lt: "&lt;", approx: "≈", leftarrow: "←", ldots: "…", sum: "∑", prod: "∏",
  log: " log", ln: " ln", sin: "sin", cos: "cos", min: "min", max: " max", sqrt: "√", frac: "\\f", hat: "\\h", left: "", right: "",
  quad: "\u2003", qquad: "\u2001",
};
const PRODUCTS = /\b(QK|ij|im|jm)\b/g;

function notation(tex: string): string {
  return tex.trim()
    .replace(/\\text\{([^}]*)\}/g, '"$1"')
    .replace(/\\mathrm\{(\w+)\}/g, "$1")
    .replace("\\mathbb{R}", "ℝ")
    .replace(/\\([a-z]+)/g, (_, name: string) => {
      if (!(name in TEX)) throw new Error(`\\${name}: prose.ts knows no such command of TeX`);
      return TEX[name]!;
    })
    .replace(PRODUCTS, ([...letters]) => letters.join(" "))
    // A difference; else a sign, which stands at its number.
    .replace(/"[^"]*"|((?<=[\p{L}\d)}\]] ?)- ?)|-/gu, (found, difference) => (found[0] === '"' ? found : difference ? "− " : "−"));
}

const math = (level: "block" | "inline", pattern: RegExp) => ({
  name: `${level}Math`,
  level,
  start: (text: string) => text.search(level === "block" ? /\$\$/ : /\$/),
  tokenizer(text: string) {
    const found = pattern.exec(text);
    return found ? { type: `${level}Math`, raw: found[0], display: found[1] ?? "", inline: found[2] ?? "" } : undefined;
  },
  renderer: ({ display, inline }: Tokens.Generic) =>
    display ? `<div class="scroll formula"><math display="block">${notation(display)}</math></div>` : `<math>${notation(inline)}</math>`,
});

/** Links within docs/ lead to pages of this file; to texts that are not here they are no links. */
function address(href: string): string | null {
  if (/^https?:/.test(href)) return href;
  const [file, at] = href.split("#") as [string, string?];
  const page = { "": "guide", "guide.md": "guide", "questions.md": "questions" }[file];
  return page ? `#page=${page}${at ? `&at=${at}` : ""}` : null;
}

const renderer: RendererObject = {
  heading({ tokens, depth, text }) {
    return `<h${depth} id="at-${slugOf(text)}">${this.parser.parseInline(tokens)}</h${depth}>`;
  },
  link({ href, tokens }) {
    const [to, text] = [address(href), this.parser.parseInline(tokens)];
    return to ? `<a href="${to.replaceAll("&", "&amp;")}">${text}</a>` : text;
  },
  image({ href }) {
    throw new Error(`${href}: a figure stands alone on its line, as figures/NAME.svg`);
  },
};

const marked = new Marked({
  extensions: [
    math("block", /^ {0,3}\$\$([^$]+)\$\$ *(?:\n|$)/),
    math("inline", /^(?:\$\$([^$]+)\$\$|\$(?!\s)([^$]+?)(?<!\s)\$(?!\d))/),
  ],
  renderer,
});
/** A heading of a table that is a formula alone also says its letters: not every reader of screens reads MathML. */
const spoken = (html: string) =>
  html.replace(/<th([^>]*)><math>([^<]*)<\/math><\/th>/g, (_, how: string, inner: string) =>
    `<th${how}><math aria-hidden="true">${inner}</math><span class="visually-hidden">${mathml(inner).replace(/<[^>]*>/g, "")}</span></th>`);
const table = (html: string) =>
  html.replace(/<table>[^]*?<\/table>/g, (each) => `<div class="scroll">${spoken(each).replaceAll("<th></th>", "<td></td>")}</div>`);
const BLOCKS = /\n(?=<\/?(?:p|h\d|ul|ol|li|div|table|thead|tbody|tr|th|td|pre|details|summary|blockquote)\b)/g;
const html = (tokens: Token[]) => table(marked.parser(tokens)).replace(BLOCKS, "");
const inline = (text: string) => marked.parseInline(text) as string;
const block = (text: string) => html(marked.lexer(text.trim()));

/** Markdown within <details> is read as such, with or without blank lines around it. */
const opened = (text: string) =>
  text
    .replace(/<summary>([^]*?)<\/summary>/g, (_, summary: string) => `<summary>${inline(summary)}</summary>\n\n`)
    .replace(/\s*<\/details>/g, "\n\n</details>\n\n");

/** Runs of text between figures. */
function partsOf(tokens: Token[]): Part[] {
  const parts: Part[] = [];
  let run: Token[] = [];
  const end = () => {
    const text = html(run).trim();
    if (text) parts.push({ html: text });
    run = [];
  };
  for (const token of tokens) {
    const image = token.type === "paragraph" && /^!\[([^\]]*)\]\(figures\/(\w+)\.svg\)$/.exec(token.raw.trim());
    if (!image) run.push(token);
    else {
      end();
      parts.push({ figure: image[2]!, alt: image[1]! });
    }
  }
  end();
  return parts;
}

/** The text before the first heading of a depth, and each heading with what follows it. */
function cut(text: string): { title: string; intro: Token[]; sections: { heading: Tokens.Heading; tokens: Token[] }[] } {
  const intro: Token[] = [];
  const sections: { heading: Tokens.Heading; tokens: Token[] }[] = [];
  let title = "";
  for (const token of marked.lexer(opened(text))) {
    if (token.type === "heading" && token.depth === 1) title = inline(token.text);
    else if (token.type === "heading" && token.depth === 2) sections.push({ heading: token as Tokens.Heading, tokens: [] });
    else (sections.at(-1)?.tokens ?? intro).push(token);
  }
  return { title, intro, sections };
}

export function guide(text: string): Guide {
  const { title, intro, sections } = cut(text);
  return {
    title,
    intro: partsOf(intro),
    sections: sections.map(({ heading, tokens }) => ({
      slug: slugOf(heading.text), title: inline(heading.text), parts: partsOf(tokens),
    })),
  };
}

/** One question: its outcome, what it asks, its options; within <details> "**C.** why. A: belief. B: belief. Guide: 9. Masks." */
function question(heading: string, body: string): Question {
  const [before, after] = body.split(/<details>\s*<summary>Answer<\/summary>/) as [string, string?];
  const options = [...before.matchAll(/^- ([A-D])\. ([^]*?)(?=\n- |\n\s*\n)/gm)].map(([, letter, said]) => ({ letter: letter!, said: said! }));
  const outcome = /^Outcome: ([A-D])$/m.exec(before)?.[1];
  const [, answer, reasons, section] = /^\s*\*\*([A-D])\.\*\*\s([^]*?)\sGuide:\s+(\d+\. [^]*?)\.\s*<\/details>/.exec(after ?? "") ?? [];
  const [why, ...rest] = (reasons ?? "").split(/\s([A-D](?:\sand\s[A-D])?):\s/);
  const believes = (letter: string) => rest[rest.findIndex((each, i) => i % 2 === 0 && each.includes(letter)) + 1];
  const wrong = options.filter(({ letter }) => letter !== answer);
  if (!outcome || options.length !== 4 || !answer || !wrong.every(({ letter }) => rest.some((each, i) => i % 2 === 0 && each.includes(letter))))
    throw new Error(`questions.md, “${heading}”: its outcome, four options, answer, reasons or section of the guide are missing`);
  return {
    title: inline(heading.replace(/^\d+\. */, "")),
    outcome,
    asks: block(before.slice(0, before.search(/^- A\./m)).replace(/^Outcome:.*$/m, "")),
    options: options.map(({ letter, said }) => ({ letter, html: inline(said), believes: letter === answer ? "" : inline(believes(letter)!) })),
    answer,
    why: inline(why!),
    section: { slug: slugOf(section!.replace(/\s+/g, " ")), title: inline(section!) },
  };
}

export function questions(text: string): Questions {
  const [intro, ...rest] = text.split(/^## /m) as [string, ...string[]];
  const parts = rest.map((each) => ({ heading: each.split("\n")[0]!.trim(), body: each.slice(each.indexOf("\n")) }));
  return {
    title: inline(/^# (.*)$/m.exec(intro)?.[1] ?? ""),
    intro: block(intro.replace(/^# .*$/m, "")),
    questions: parts.filter((each) => /^\d+\./.test(each.heading)).map((each) => question(each.heading, each.body)),
    teacher: block(parts.find((each) => each.heading === "For a teacher")?.body ?? ""),
  };
}

export const prose = (): Plugin => ({
  name: "prose",
  enforce: "pre",
  transform(text, id) {
    const read = /\/guide\.md$/.test(id) ? guide : /\/questions\.md$/.test(id) ? questions : null;
    if (!read) return null;
    const code = `import { readTexts } from "/src/lib/mathml";\nexport default readTexts(${JSON.stringify(JSON.stringify(read(text)))});`;
    return { code, map: null, moduleType: "js" };
  },
});
