// Light or dark: what the person chose, what that comes to now, and colours as a canvas needs them.
import { flushSync } from "svelte";

export type Choice = "auto" | "light" | "dark";

const system = matchMedia("(prefers-color-scheme: dark)");

/** A page in a sandbox has no storage: then the choice lasts as long as the page. */
function remembered(): Choice {
  try {
    const found = localStorage.getItem("theme");
    return found === "light" || found === "dark" ? found : "auto";
  } catch {
    return "auto";
  }
}

class Theme {
  choice = $state<Choice>("auto");
  #system = $state(system.matches);
  #paper = $state(false);
  /** Paper is white: what is printed is drawn as in the light. */
  dark: boolean = $derived(!this.#paper && (this.choice === "auto" ? this.#system : this.choice === "dark"));

  constructor() {
    system.addEventListener("change", () => (this.#system = system.matches));
    this.choose(remembered());
    const paper = matchMedia("print");
    const print = (on: boolean) => {
      this.#paper = on;
      this.#mark(); // before figures are drawn again, which read the colours
      flushSync();
    };
    paper.addEventListener("change", () => print(paper.matches));
    addEventListener("beforeprint", () => print(true));
    addEventListener("afterprint", () => print(false));
  }

  #mark(): void {
    const choice = this.#paper ? "light" : this.choice;
    if (choice === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
  }

  choose(choice: Choice): void {
    this.choice = choice;
    this.#mark();
    try {
      localStorage.setItem("theme", choice);
    } catch {
      return;
    }
  }
}

export const theme = new Theme();

const colours = new Map<string, string>();

/** A custom property as a canvas needs it, "rgb(…)": no light-dark() is left. What reads it is drawn again with the theme. */
export function resolved(property: string): string {
  const key = property + theme.dark;
  let colour = colours.get(key);
  if (!colour) {
    const { style } = document.body;
    style.color = `var(${property})`;
    colour = getComputedStyle(document.body).color;
    style.color = "";
    colours.set(key, colour);
  }
  return colour;
}
