// A form whose fields are the query of the address: what is chosen can be linked to.

import { address, h } from "./dom.js";
import { fieldInstant, timeField, zoned } from "./fields.js";
import { navigate } from "./router.js";

let lists = 0;

/**
 * A form. `fields`: { name (of the query), label, type ("text", "select", "checkbox", "datetime-local", "lines", …),
 * options ([value, text] of a select), suggestions (texts), placeholder, pattern, title }. A datetime-local is shown in the
 * zone of the console, and an instant in the address; of lines, each is one value of the query. `keep`: further names of
 * the query that stay when the form is sent; everything else, such as the page, is left out. `more`: rarely needed.
 */
export function filterForm({ path, query, fields, keep = [], label = "Filter", action = "Apply" }) {
  const inputs = fields.map((field) => ({ field, ...input(field, query.get(field.name) ?? field.value ?? "", query) }));
  const kept = () => Object.fromEntries(keep.map((name) => [name, query.getAll(name)]));
  const isSet = fields.some((field) => query.get(field.name));
  const form = h("form", { class: "filters", role: "search", "aria-label": label, autocomplete: "off" },
    inputs.filter(({ field }) => !field.more).map((each) => each.element), more(inputs, query),
    h("div", { class: "acts" }, h("button", { type: "submit" }, action),
      isSet && h("a", { href: address(path, kept()), "data-route": true, class: "clear" }, "Clear")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = Object.fromEntries(inputs.map(({ field, read }) => [field.name, read()]));
    navigate(address(path, { ...kept(), ...given }));
  });
  return form;
}

/** Conditions that are rarely needed, behind a summary that is open if one of them is set. */
function more(inputs, query) {
  const rare = inputs.filter(({ field }) => field.more);
  if (rare.length === 0) return null;
  return h("details", { class: "more", open: rare.some(({ field }) => query.get(field.name)) },
    h("summary", null, "More conditions"), h("div", { class: "filters" }, rare.map((each) => each.element)));
}

function input(field, value, query) {
  const id = `filter-${field.name}`;
  if (field.type === "select") {
    const made = h("select", { id }, field.options.map(([each, text]) => h("option", { value: each, selected: each === value }, text)));
    made.addEventListener("change", () => made.form.requestSubmit());
    return { element: labelled(field, id, made), read: () => made.value };
  }
  if (field.type === "checkbox") {
    const made = h("input", { id, type: "checkbox", checked: value === "true" });
    made.addEventListener("change", () => made.form.requestSubmit());
    return { element: h("label", { class: "check", for: id }, made, " ", field.label), read: () => (made.checked ? "true" : "") };
  }
  if (field.type === "lines") {
    const made = h("textarea", { id, rows: "1", value: query.getAll(field.name).join("\n"), placeholder: field.placeholder, title: field.title, spellcheck: "false" });
    return { element: labelled(field, id, made), read: () => made.value.split("\n").map((line) => line.trim()).filter(Boolean) };
  }
  if (field.type === "datetime-local") {
    const made = timeField(value, { id, title: field.title });
    return { element: labelled({ label: zoned(field.label) }, id, made), read: () => fieldInstant(made) };
  }
  lists += 1;
  const list = field.suggestions?.length ? h("datalist", { id: `suggestions-${lists}` }, field.suggestions.map((text) => h("option", { value: text }))) : null;
  const made = h("input", {
    id, type: field.type ?? "text", value, placeholder: field.placeholder, pattern: field.pattern, title: field.title,
    list: list?.id, spellcheck: "false", maxlength: field.maxlength ?? 1400,
  });
  return { element: labelled(field, id, made, list), read: () => made.value.trim() };
}

const labelled = (field, id, ...parts) => h("div", { class: "field" }, h("label", { for: id }, field.label), ...parts);
