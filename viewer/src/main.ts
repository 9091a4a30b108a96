// Starts the page.
import { mount } from "svelte";
import App from "./App.svelte";
import "./styles.css";

const target = document.getElementById("app")!;
try {
  mount(App, { target });
} catch (error) {
  target.textContent = `The numbers in this file are not those that this page draws. ${error}`;
}
