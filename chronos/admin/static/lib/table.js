// Tables that are updated in place: a row keeps its element, and with it focus, selection and the place of the reader.

import { h, replaceChanged } from "./dom.js";

/**
 * A table. `columns`: { name, cell(row) -> text, node or array, numeric, sort, grow, wide }; `sort` is the address that sorts
 * by the column, or null; `wide`: left out on a narrow screen. `key(row)` tells rows apart. `empty`: shown instead of no rows. `selectable(row)`: the label of
 * the box that selects a row; without it there are none. `onSelect(selected)`: after each change of the selection.
 */
export function table({ caption, columns, rows = [], key, empty = "Nothing.", selectable = null, onSelect = () => {} }) {
  const selected = new Map();
  const shown = new Map();
  let current = [];
  const all = selectable && h("input", { type: "checkbox", "aria-label": "Select all rows of this page", onchange: () => chooseAll(all.checked) });
  // The roles are those of the elements, which a narrow screen shows as cards, and browsers then forget.
  const head = h("tr", { role: "row" },
    selectable && h("th", { scope: "col", role: "columnheader", class: "pick" }, all),
    columns.map((column) => h("th", { scope: "col", role: "columnheader", class: kind(column) },
      column.sort ? h("a", { href: column.sort, "data-route": true }, column.name) : column.name)));
  const body = h("tbody", { role: "rowgroup" });
  const grid = h("table", { role: "table" }, h("caption", { class: "hidden-text" }, caption), h("thead", { role: "rowgroup" }, head), body);
  const none = h("div", { class: "empty" }, empty);
  const scroll = h("div", { class: "scroll" }, grid);
  const element = h("div", { class: "table" }, scroll, none);
  // What can be scrolled can be reached with the keyboard.
  const observer = new ResizeObserver(() => (scroll.scrollWidth > scroll.clientWidth ? scroll.setAttribute("tabindex", "0") : scroll.removeAttribute("tabindex")));
  [scroll, grid].forEach((each) => observer.observe(each));

  function choose(row, isChosen) {
    if (isChosen) selected.set(key(row), row);
    else selected.delete(key(row));
    markAll();
    onSelect([...selected.values()]);
  }
  function chooseAll(isChosen) {
    for (const row of current) {
      shown.get(key(row)).box.checked = isChosen;
      if (isChosen) selected.set(key(row), row);
      else selected.delete(key(row));
    }
    onSelect([...selected.values()]);
  }
  function markAll() {
    if (!all) return;
    all.checked = current.length > 0 && selected.size === current.length;
    all.indeterminate = selected.size > 0 && selected.size < current.length;
  }

  function made(row) {
    const at = { row: { ...row }, cells: columns.map((column) => h("td", { role: "cell", class: kind(column), "data-name": column.name })) };
    if (selectable) at.box = h("input", { type: "checkbox", "aria-label": selectable(row), onchange: () => choose(at.row, at.box.checked) });
    at.element = h("tr", { role: "row" }, selectable && h("td", { role: "cell", class: "pick" }, at.box), at.cells);
    return at;
  }

  function update(next) {
    current = next;
    const [keys, before] = [new Set(next.map(key)), selected.size];
    for (const [name, at] of shown) {
      if (keys.has(name)) continue;
      at.element.remove();
      shown.delete(name);
      selected.delete(name);
    }
    next.forEach((row, place) => {
      const at = shown.get(key(row)) ?? made(row);
      shown.set(key(row), at);
      // One object for each row: a button that stays in its cell acts on what the row is now.
      for (const name of Object.keys(at.row)) delete at.row[name];
      Object.assign(at.row, row);
      if (selected.has(key(row))) selected.set(key(row), at.row);
      columns.forEach((column, number) => fillCell(at.cells[number], [column.cell(at.row)].flat(Infinity)));
      if (body.children[place] !== at.element) body.insertBefore(at.element, body.children[place] ?? null);
    });
    grid.hidden = next.length === 0;
    none.hidden = next.length > 0;
    markAll();
    if (selected.size !== before) onSelect([...selected.values()]);
  }

  update(rows);
  return { element, update, get selected() { return [...selected.values()]; }, clear() { chooseAll(false); markAll(); } };
}

const kind = (column) => [column.numeric && "r", column.grow && "grow", column.wide && "wide-only"].filter(Boolean).join(" ") || null;

/** Replace the content of a cell if it differs. */
function fillCell(cell, content) {
  // What was opened stays open: the service says nothing about it.
  const opened = cell.querySelector("details[open]");
  const before = opened ? cell.cloneNode(true) : cell;
  if (opened) before.querySelectorAll("details").forEach((each) => each.removeAttribute("open"));
  replaceChanged(cell, content, before);
}
