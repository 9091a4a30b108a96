// Pieces as running text.
import type { Token } from "../lib/document";

/** "▁L' anim al" is "L'animal"; without the specials. */
export const textOf = (tokens: Token[]): string =>
  tokens.map((t) => (t.special ? "" : t.piece)).join("").replaceAll("▁", " ").trim();

/** Which way a sentence of pieces runs: as its first letter does. */
export const direction = (tokens: Token[]): "ltr" | "rtl" =>
  /^\P{L}*[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u.test(textOf(tokens))
    ? "rtl"
    : "ltr";
