// Formulas in a small notation: a_b, a^b, {…}, √{…}, \f{…}{…}, \h{…} with a hat, "words"; a run of letters is one
// name; \q, \k, \v and \w{…} have the colour of their role.
const ROLES: Record<string, string> = { q: "query", k: "key", v: "value", w: "weight" };
const SPACE = (em: number) => `<mspace width="${em}em"></mspace>`;
const SPACES: Record<string, string> = { "\u2003": SPACE(1), "\u2001": SPACE(2) };
const CLOSING: Record<string, string> = { "(": ")", "[": "]" };

export function mathml(text: string): string {
  let at = 0;
  const row = (end: string): string => {
    let out = "";
    while (at < text.length && text[at] !== end) out += scripted();
    at++;
    return out;
  };
  const scripted = (): string => {
    const base = atom();
    const found: Record<string, string> = {};
    while (/[_^]/.test(text[at] ?? "")) found[text[at++]!] = atom();
    const { _: below, "^": above } = found;
    const tag = /[∑∏]/.test(base) ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    const which = tag[!above ? 0 : !below ? 1 : 2];
    return above || below ? `<${which}>${base}${below ?? ""}${above ?? ""}</${which}>` : base;
  };
  const atom = (): string => {
    const [found, token] = /^ *(\\\w|[\p{L}∂∞]+|−?\d[\d.]*|"[^"]*"|&\w+;|.) */u.exec(text.slice(at))! as unknown as [string, string];
    at += found.length;
    if (token === "{") return `<mrow>${row("}")}</mrow>`;
    if (CLOSING[token]) {
      const inner = row(CLOSING[token]);
      const how = /<m(frac|under)/.test(inner) ? "" : ' stretchy="false"';
      return `<mrow><mo${how}>${token}</mo>${inner}<mo${how}>${CLOSING[token]}</mo></mrow>`;
    }
    if (token === "√") return `<msqrt>${atom()}</msqrt>`;
    if (token === "\\f") return `<mfrac>${atom()}${atom()}</mfrac>`;
    if (token === "\\h") return `<mover accent="true">${atom()}<mo stretchy="false">^</mo></mover>`;
    if (token[0] === "\\") return `<mrow class="${ROLES[token[1]!]}">${atom()}</mrow>`;
    if (token[0] === '"') return `<mtext>${token.slice(1, -1)}</mtext>`;
    if (token === "∣") return '<mo stretchy="false">|</mo>'; // as in p(y ∣ x); | is one of the two of |y|
    if (SPACES[token]) return SPACES[token];
    const tag = /[\p{L}∂∞|]/u.test(token) ? "mi" : /\d/.test(token) ? "mn" : "mo";
    /** As in log p: the name of a function stands off from what it is of. */
    const apart = /^\p{L}{2,} /u.test(found.trimStart()) && /^[\p{L}\d]/u.test(text.slice(at)) ? SPACE(0.17) : "";
    const how = token === "/" ? ' lspace="0" rspace="0"' : found.endsWith("−") ? ' form="prefix"' : "";
    return `<${tag}${how}>${token}</${tag}>${apart}`;
  };
  return row("");
}

/** Data from JSON, with the formulas of its texts written out; <math> holds them in the notation. */
export const readTexts = (json: string) =>
  JSON.parse(json, (_, value) =>
    typeof value === "string" ? value.replace(/(<math[^>]*>)([^<]*)/g, (_, tag: string, formula: string) => tag + mathml(formula)) : value);
