import { readdirSync } from "node:fs";
import { vitePreprocess } from "@sveltejs/vite-plugin-svelte";

const files = readdirSync("src", { recursive: true }).filter((name) => name.endsWith(".svelte")).sort();

/** A, B … Z, A1, B1 …: in the page two thousand times, so as short as can be; our own classes are in small letters. */
const scope = (filename) => {
  const at = files.findIndex((name) => filename.endsWith(`src/${name}`));
  return String.fromCharCode(65 + (at % 26)) + (Math.floor(at / 26) || "");
};

export default {
  preprocess: vitePreprocess(),
  compilerOptions: { runes: true, discloseVersion: false, cssHash: ({ filename }) => scope(filename) },
};
