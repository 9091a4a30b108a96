// What this browser keeps for the reader: a page in a sandbox has no storage, then it lasts as long as the page.

export function kept<T>(name: string, otherwise: T): T {
  try {
    const found = JSON.parse(localStorage.getItem(`transduce-${name}`) ?? "null") as T | null;
    const fits = typeof found === typeof otherwise && Array.isArray(found) === Array.isArray(otherwise);
    return fits ? (found ?? otherwise) : otherwise; // other files write there too
  } catch {
    return otherwise;
  }
}

export function keep(name: string, what: unknown): void {
  try {
    localStorage.setItem(`transduce-${name}`, JSON.stringify(what));
  } catch {
    return;
  }
}
