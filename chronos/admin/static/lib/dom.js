// Elements. Everything that comes from the service becomes a text node or a named attribute, never HTML.

const SVG = "http://www.w3.org/2000/svg";

/** The path of the service: "/", or that of a proxy, such as "/chronos/". Found in the address of this file. */
export const BASE = new URL("../../", import.meta.url).pathname;

/** The address of a path of the service, such as "/ui/messages", below BASE. */
export const placed = (path) => BASE + path.slice(1);

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.setAttribute("class", value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value" && "value" in made) made.value = value;
    else if (name === "href" && value.startsWith("/")) made.setAttribute("href", placed(value));
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...nodes(children));
  return made;
}

function nodes(children) {
  return children.flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

/** An element. `on…` attributes are listeners; null, undefined and false are left out. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for a part of an SVG. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function replace(parent, ...children) {
  parent.replaceChildren(...nodes(children));
  return parent;
}

/**
 * Replace the children of an element only if they differ, so that the focus in it and a selection of text stay. `before`:
 * what they are compared with, if that is not the element itself.
 */
export function replaceChanged(parent, children, before = parent) {
  const [next, old] = [nodes([children]), [...before.childNodes]];
  if (next.length === old.length && next.every((child, at) => child.isEqualNode(old[at]))) return;
  parent.replaceChildren(...next);
}

/** The address of a view with its query; null, undefined and "" are left out, arrays repeat. */
export function address(path, query) {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    for (const each of [value].flat()) {
      if (each !== null && each !== undefined && each !== "") given.append(name, each);
    }
  }
  const text = given.toString();
  return text ? `${path}?${text}` : path;
}

/** A link to a view, which the router follows without loading the document again. */
export function link(path, query, ...text) {
  return h("a", { href: address(path, query), "data-route": true }, ...text);
}

/** An id as one segment of a path. A segment of dots only would be resolved by the browser. */
export function segment(id) {
  return encodeURIComponent(/^\.+$/.test(id) ? `base64:${btoa(id)}` : id);
}

/** A link to a message, shown as its id. */
export function messageLink(id) {
  return h("a", { href: `/ui/messages/${segment(id)}`, "data-route": true, class: "id", dir: "auto" }, id);
}

/** A word with a colour: kind is "good", "bad", "warn" or nothing. */
export function badge(text, kind = "") {
  return h("span", { class: `pill ${kind}` }, text);
}

/** A definition list of [name, content] pairs; pairs whose content is null are left out. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs
    .filter(([, content]) => content !== null && content !== undefined)
    .map(([name, content]) => [h("dt", null, name), h("dd", null, content)]));
}

/** A card with a heading of the second level. */
export function card(title, attributes, ...children) {
  const id = `card-${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;
  const given = { ...attributes, class: `card ${attributes?.class ?? ""}`, "aria-labelledby": id };
  return h("section", given, h("h2", { id }, title), ...children);
}

/** Links that look like tabs: each is [text, query], of which the current one is marked. */
export function tabs(label, path, choices, isCurrent) {
  return h("nav", { class: "tabs", "aria-label": label }, choices.map(([text, query]) => {
    const made = link(path, query, text);
    if (isCurrent(query)) made.setAttribute("aria-current", "true");
    return made;
  }));
}

let dialogs = 0;

/**
 * Ask for a confirmation; the promise is of whether it was given. `action` is the text of the button, `body` a text or
 * a node, which may hold fields: they are read before the dialog is gone, by `read(form)`, whose result is then given
 * instead of true.
 */
export function dialog({ title, body, action, danger = false, back = "Back", read = () => true }) {
  dialogs += 1;
  const id = `dialog-${dialogs}`;
  const form = h("form", { method: "dialog" },
    h("div", { class: "dialog-body" }, body instanceof Node ? body : h("p", null, body)),
    h("div", { class: "acts" },
      // Not a button that submits: Enter in a field would press the first one.
      back && h("button", { type: "button", onclick: () => made.close("no") }, back),
      h("button", { type: "submit", value: "yes", class: danger ? "main danger" : "main" }, action)));
  const made = h("dialog", { "aria-labelledby": id }, h("h2", { id }, title), form);
  document.body.append(made);
  return new Promise((resolve) => {
    made.addEventListener("close", () => {
      resolve(made.returnValue === "yes" ? read(form) : false);
      made.remove();
    });
    made.returnValue = "no";
    made.showModal();
    (form.querySelector("input, select, textarea") ?? form.querySelector(".main")).focus();
  });
}

const NOTICE_MS = 12e3;
const NOTICES_MAX = 4;

/** Say what came of something. kind: "good" or "bad"; a bad one stays until it is closed. */
export function notice(text, kind = "good") {
  const close = h("button", { type: "button", class: "quiet", "aria-label": "Close this notice" }, "×");
  const made = h("div", { class: `notice ${kind}` }, h("span", null, text), close);
  close.addEventListener("click", () => made.remove());
  const all = document.getElementById("notices");
  all.append(made);
  while (all.children.length > NOTICES_MAX) all.firstElementChild.remove();
  if (kind !== "bad") setTimeout(() => made.remove(), NOTICE_MS);
}
