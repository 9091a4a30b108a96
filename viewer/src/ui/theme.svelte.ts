// Light or dark: what the person chose, what that comes to now, and colours as a canvas needs them.
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
  dark: boolean = $derived(this.choice === "auto" ? this.#system : this.choice === "dark");

  constructor() {
    system.addEventListener("change", () => (this.#system = system.matches));
    this.choose(remembered());
  }

  choose(choice: Choice): void {
    this.choice = choice;
    if (choice === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
    try {
      localStorage.setItem("theme", choice);
    } catch {
      return;
    }
  }
}

export const theme = new Theme();

/** A custom property as the browser resolves it at this element, "rgb(…)": no light-dark() is left. */
export function resolved(element: HTMLElement, property: string): string {
  const before = element.style.color;
  element.style.color = `var(${property})`;
  const colour = getComputedStyle(element).color;
  element.style.color = before;
  return colour;
}
