// A payload as text, as JSON, or byte by byte.

import { copyButton } from "./copy.js";
import { h } from "./dom.js";
import { bytes as sizeText, number } from "./format.js";

const TEXT_MAX = 64 * 1024; // Characters shown; a payload may have megabytes.
const HEX_MAX = 4096; // Bytes shown.
const ROW = 16;
const DEPTH_MAX = 40; // Levels of JSON that are indented.

/**
 * The payload of an answer that has `value` (text or null) or `value_base64`, and `value_bytes`. An answer without both
 * hides it from its sender. `mode`: "text", "json" or "hex", the first that fits if it is absent; `onMode(mode)`: after a
 * choice, for example to write it into the address.
 */
export function payload(holder, { mode, onMode = () => {} } = {}) {
  if (holder.value === undefined && holder.value_base64 === undefined) {
    return h("p", { class: "soft" }, `${sizeText(holder.value_bytes)}. The payload is hidden: it is shown to a token with the role payload.`);
  }
  if (holder.value === null) return h("p", { class: "soft" }, "The payload is null.");
  const isText = holder.value !== undefined;
  const data = isText ? new TextEncoder().encode(holder.value) : decoded(holder.value_base64);
  const json = isText ? pretty(holder.value) : null;
  const modes = [...(isText ? ["text"] : []), ...(json === null ? [] : ["json"]), "hex"];
  const names = { text: "Text", json: "JSON", hex: "Hex" };
  const shown = h("pre", { class: "payload", tabindex: "0", "aria-label": "Payload" });
  const note = h("p", { class: "soft" });
  const buttons = modes.map((each) => h("button", { type: "button", onclick: () => { show(each); onMode(each); } }, names[each]));

  function show(chosen) {
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(modes[at] === chosen)));
    const whole = chosen === "hex" ? data.length : (chosen === "json" ? json : holder.value).length;
    const most = chosen === "hex" ? HEX_MAX : TEXT_MAX;
    shown.textContent = chosen === "hex" ? hex(data.subarray(0, HEX_MAX)) : (chosen === "json" ? json : holder.value).slice(0, TEXT_MAX);
    note.textContent = whole > most ? `The first ${number(most)} of ${number(whole)} ${chosen === "hex" ? "bytes" : "characters"}.` : "";
    note.hidden = whole <= most;
  }

  const copy = isText ? copyButton("Copy", () => holder.value) : null;
  copy?.classList.add("quiet");
  show(modes.includes(mode) ? mode : json === null ? modes[0] : "json");
  return h("div", { class: "payload-box" },
    h("div", { class: "head" }, h("div", { class: "tabs", role: "group", "aria-label": "Show the payload as" }, buttons), h("span", { class: "soft" }, sizeText(data.length)), copy),
    shown, note);
}

function decoded(text) {
  const binary = atob(text);
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}

/** Indented JSON; null if the text is not a JSON object or array, or is too large to be worth it. */
function pretty(text) {
  if (text.length > 1024 * 1024 || !/^\s*[[{]/.test(text)) return null;
  try { JSON.parse(text); } catch { return null; }
  return indented(text);
}

/** JSON with new lines and spaces between its tokens, which stay as they were sent: a parsed number may lose digits. */
function indented(text) {
  const made = [];
  let [depth, wasOpened] = [0, false];
  const line = () => `\n${"  ".repeat(Math.min(depth, DEPTH_MAX))}`;
  for (const [token] of text.matchAll(/"(?:\\.|[^"\\])*"|[^\s{}[\],:"]+|[{}[\],:]/g)) {
    const isEmpty = wasOpened;
    wasOpened = token === "{" || token === "[";
    if (wasOpened) {
      depth += 1;
      made.push(token, line());
    } else if (token === "}" || token === "]") {
      depth -= 1;
      if (isEmpty) made.pop();
      else made.push(line());
      made.push(token);
    } else if (token === ",") made.push(token, line());
    else made.push(token === ":" ? ": " : token);
  }
  return made.join("");
}

function hex(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += ROW) {
    const row = [...data.subarray(at, at + ROW)];
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(3 * ROW - 1);
    const letters = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${digits}  ${letters}`);
  }
  return lines.join("\n");
}
