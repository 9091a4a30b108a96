// Starts the page.
import { mount } from "svelte";
import App from "./App.svelte";
import { decode, encode } from "./engine/tokenizer";
import { engine, recorded, trace } from "./lib/backend";
import { gradients, teach, toy } from "./training/console";
import "./styles.css";

/**
 * For the browser's console. transduce.trace({ text: "..." }) resolves to a payload; with the model in this file
 * transduce.encode("...") to ids, and transduce.decode([5, 6]) to a text of the target's vocabulary;
 * for gradients, teach and toy see training/console.ts.
 */
Object.assign(globalThis, {
  transduce: {
    trace,
    payload: recorded,
    gradients,
    teach,
    toy,
    encode: async (text: string, side: "source" | "target" = "source") => encode((await engine())[side], text),
    decode: async (ids: number[], side: "source" | "target" = "target") => decode((await engine())[side], ids),
  },
});

const target = document.getElementById("app")!;
try {
  mount(App, { target });
} catch (error) {
  target.textContent = `The numbers in this file are not those that this page draws. ${error}`;
}
