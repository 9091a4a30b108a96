// One tab stop for a row or a grid of buttons: arrows, Home and End move within.

/** Moves the focus among the items of a composite, and returns the one that has it then. */
export function rove(event: KeyboardEvent, items = "button", columns = 1): HTMLElement | undefined {
  const all = [...(event.currentTarget as Element).querySelectorAll<HTMLElement>(items)];
  const at = all.indexOf((event.target as Element).closest<HTMLElement>(items)!);
  const to = {
    ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + columns, ArrowUp: at - columns, Home: 0, End: all.length - 1,
  }[event.key];
  if (at < 0 || to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  event.stopPropagation();
  all[to]?.focus();
  return all[to];
}
