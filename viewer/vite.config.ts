// One self-contained HTML file, committed inside the Python package.
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";
import { viteSingleFile } from "vite-plugin-singlefile";
import { prose } from "./prose";

export default defineConfig({
  plugins: [prose(), svelte(), viteSingleFile({ removeViteModuleLoader: true })],
  build: { target: "es2023", reportCompressedSize: false },
  server: { fs: { allow: [".."] } }, // the texts are in docs/
});
