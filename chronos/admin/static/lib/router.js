// Addresses of views. app.js draws what the address says; anything may change the address.

import { BASE, placed } from "./dom.js";

const VIEWS = {
  messages: ["messages", "message"], timeline: ["timeline"], series: ["series"],
  "dead-letters": ["dead_letters", "dead_letter"], rejected: ["rejected", "rejected"],
  targets: ["targets"], cluster: ["cluster"], audit: ["audit", "archive_audit"],
};

/**
 * The module of a path and its parameters: path, query (URLSearchParams) and id, the decoded rest of the path (null:
 * none). The module is null if there is no such view.
 */
export function resolve(location) {
  const path = location.pathname.slice(BASE.length - 1);
  const [, root, name, ...rest] = path.split("/");
  const params = { path, query: new URLSearchParams(location.search), id: null };
  if (root === "") return { module: "overview", view: "overview", params };
  const modules = root === "ui" && Object.hasOwn(VIEWS, name) ? VIEWS[name] : undefined;
  const id = rest.join("/");
  if (modules === undefined || (id && modules.length === 1)) return { module: null, view: null, params };
  try {
    params.id = id ? decodeURIComponent(id) : null;
  } catch {
    return { module: null, view: null, params };
  }
  return { module: modules[params.id === null ? 0 : 1], view: name, params };
}

let draw = () => {};
export function onNavigate(drawn) { draw = drawn; }

/** Go to a view by its path, such as "/ui/messages", and query. `replace`: without an entry in the history of the browser. */
export function navigate(address, { replace = false } = {}) { go(placed(address), replace); }

function go(address, replace = false) {
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  draw({ isNew: !replace });
}

addEventListener("popstate", () => draw({ isNew: false }));

document.addEventListener("click", (event) => {
  const found = event.target.closest?.("a[data-route]");
  if (!found || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(found.href);
});
