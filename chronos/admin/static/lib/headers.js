// Headers of messages: shown as a table, and written into a field one a line.

import { h } from "./dom.js";

const shown = (value) => (value === null ? h("span", { class: "soft" }, "null") : typeof value === "string" ? value : [h("span", { class: "soft" }, "base64 "), value.base64]);

/** A list of headers by name, a repeated one with all its values; a note if they are hidden or there are none. */
export function headerList(headers, { isHidden }) {
  if (isHidden) return h("p", { class: "soft" }, "The headers are hidden: they are shown to a token with the role payload.");
  const pairs = Object.entries(headers ?? {}).flatMap(([name, value]) => [value].flat().map((each) => [name, each]));
  if (pairs.length === 0) return h("p", { class: "soft" }, "No headers.");
  return h("dl", { class: "facts mono" }, pairs.map(([name, value]) => [h("dt", { dir: "auto" }, name), h("dd", { dir: "auto" }, shown(value))]));
}

/** Headers that can be edited as text, one name=value a line, and the others, which are kept as they are. */
export function editable(headers) {
  const isText = (name, value) => typeof value === "string" && !/[\r\n]/.test(value) && !/[=\r\n]/.test(name) && name !== "" && name === name.trim();
  const [lines, kept] = [[], {}];
  for (const [name, value] of Object.entries(headers ?? {})) {
    const values = [value].flat();
    if (values.every((each) => isText(name, each))) lines.push(...values.map((each) => `${name}=${each}`));
    else kept[name] = value;
  }
  return { text: lines.join("\n"), kept };
}

/** The headers of such a field together with those that are kept; throws an Error that names a line that is none. */
export function fromLines(text, kept) {
  const headers = new Map(Object.entries(kept));
  for (const line of text.split("\n").filter((each) => each.trim())) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`Headers: ${line.trim()} is not name=value; nothing was sent`);
    const [name, value] = [line.slice(0, at).trim(), line.slice(at + 1)];
    headers.set(name, headers.has(name) ? [headers.get(name), value].flat() : value);
  }
  return Object.fromEntries(headers);
}
