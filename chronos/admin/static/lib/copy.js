// A button that copies a text.

import { h, replace } from "./dom.js";

const SHOWN_MS = 2000;

/** The button; null where the browser gives no clipboard, as without TLS outside of this machine. `text()`: what is copied. */
export function copyButton(label, text) {
  if (!navigator.clipboard) return null;
  const made = h("button", { type: "button", onclick: async () => {
    await navigator.clipboard.writeText(text());
    replace(made, "Copied");
    setTimeout(() => replace(made, label), SHOWN_MS);
  } }, label);
  return made;
}
