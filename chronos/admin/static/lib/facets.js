// Counts of a list by one of its fields, each of which sets the filter of the address.

import { h, link, replaceChanged } from "./dom.js";
import { number } from "./format.js";

const SHOWN = 12;

const patterns = new Map(); // Those that were compiled.

/** Whether a topic is one that a filter names: its name, or a shell-style pattern. */
export function isLike(topic, pattern) {
  if (!pattern || topic === pattern) return true;
  if (!/[*?[]/.test(pattern)) return false;
  if (!patterns.has(pattern)) patterns.set(pattern, compiled(pattern));
  return patterns.get(pattern)?.test(topic) ?? false;
}

function compiled(pattern) {
  const text = pattern.replace(/[.+^${}()|\\]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".").replace(/\[!/g, "[^");
  try { return new RegExp(`^${text}$`); } catch { return null; }
}

/** The sums of `size` by a field of the rows, the largest first. */
export function sums(rows, field, size) {
  const found = new Map();
  for (const row of rows) found.set(row[field], (found.get(row[field]) ?? 0) + row[size]);
  return [...found].sort(([, one], [, other]) => other - one);
}

/**
 * One facet: a label and links, each of which sets `name` in the query; the current one is marked, and takes it away
 * again. `counts`: [value, number].
 */
export function facet({ label, name, counts, path, query, title = () => null }) {
  const others = Object.fromEntries([...query].filter(([each]) => each !== name && each !== "after"));
  const current = query.get(name);
  const shown = counts.slice(0, SHOWN);
  const links = shown.map(([value, count]) => {
    const isOn = value === current;
    if (value === "") return h("span", { class: "chip" }, "none ", h("small", null, number(count)));
    const made = link(path, isOn ? others : { ...others, [name]: value }, h("span", { dir: "auto" }, value), " ", h("small", null, number(count)));
    made.setAttribute("class", "chip");
    if (title(value)) made.setAttribute("title", title(value));
    if (isOn) made.setAttribute("aria-current", "true");
    return made;
  });
  const more = counts.length - shown.length;
  return h("div", { class: "facet" }, h("h3", { id: `facet-${name}` }, label),
    h("nav", { class: "chips", "aria-labelledby": `facet-${name}` }, links, more > 0 && h("span", { class: "soft" }, `${number(more)} more`)));
}

/** Show facets, but only if they differ from what is there, so that the focus stays. */
export function showFacets(element, facets, note) {
  replaceChanged(element, [facets, note && h("p", { class: "soft" }, note)]);
  element.hidden = facets.length === 0;
}
