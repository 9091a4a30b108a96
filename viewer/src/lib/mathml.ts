// Formulas in a small notation: a_b, a^b, {…}, √{…}, \f{…}{…}; \q, \k, \v and \w{…} have the colour of their role.
const ROLES: Record<string, string> = { q: "query", k: "key", v: "value", w: "weight" };

export function mathml(text: string): string {
  let at = 0;
  const row = (): string => {
    let out = "";
    while (at < text.length && text[at] !== "}") out += scripted();
    at++;
    return out;
  };
  const scripted = (): string => {
    let base = atom();
    while (/[_^]/.test(text[at] ?? "")) {
      const tag = text[at++] === "_" ? "msub" : "msup";
      base = `<${tag}>${base}${atom()}</${tag}>`;
    }
    return base;
  };
  const atom = (): string => {
    const [found, token] = /^ *(\\\w|[\p{L}∂∞]+|−?\d[\d.]*|.) */u.exec(text.slice(at))! as unknown as [string, string];
    at += found.length;
    if (token === "{") return `<mrow>${row()}</mrow>`;
    if (token === "√") return `<msqrt>${atom()}</msqrt>`;
    if (token === "\\f") return `<mfrac>${atom()}${atom()}</mfrac>`;
    if (token[0] === "\\") return `<mrow class="${ROLES[token[1]!]}">${atom()}</mrow>`;
    const tag = /[\p{L}∂∞]/u.test(token) ? "mi" : /\d/.test(token) ? "mn" : "mo";
    return `<${tag}>${token}</${tag}>`;
  };
  return row();
}
