// Bars and lines over time as SVG, with the same numbers as a table.

import { h, replace, svg } from "./dom.js";
import { number, tick, timeText, zoneName } from "./format.js";
import { navigate } from "./router.js";

const HEIGHT = 168;
const TOP = 12;
const BOTTOM = 22;
const LETTER = 7.3; // Width of a digit on an axis.
const WIDTH_MIN = 280;
let charts = 0;

/**
 * A chart. `title` names it for a screen reader. `type`: "bars", which are stacked, or "lines". `series`: { name, kind }
 * with kind "accent", "good", "bad" or "calm". `format(value)`: a value as text. `empty`: the text if there is nothing.
 * `update({ times, stepMs, values, logarithmic, spanMs })`: the beginnings in ms, and an array of values (null: none) for
 * each of the series. `href(start, end)`: where a click on an interval leads; null: nowhere.
 */
export function chart({ title, type = "bars", series, format = number, empty = "Nothing in this period.", href = null, hasLegend = series.length > 1 }) {
  charts += 1;
  const id = `chart-${charts}`;
  const frame = h("div", { class: "chart" });
  const body = h("tbody");
  const grid = h("div", { class: "scroll" }, h("table", null,
    h("caption", { class: "hidden-text" }, title),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "From"), series.map((each) => h("th", { scope: "col", class: "r" }, each.name)))), body));
  const table = h("details", { class: "as-table", ontoggle: () => table.open && data && drawTable() }, h("summary", null, "As a table"), grid);
  const legend = hasLegend ? h("p", { class: "legend" }, series.map((each) => h("span", { class: `key ${each.kind}` }, each.name))) : null;
  const element = h("figure", { class: "figure-chart" }, legend, frame, table);
  let data = null;
  let drawn = null; // The same as text.
  let pointerX = null; // Where the pointer is; null: not on the chart.
  let rows = new Map(); // Of the table, by the beginnings of their intervals.
  new ResizeObserver(() => data && draw()).observe(frame);

  function update(next) {
    const text = JSON.stringify(next);
    if (text === drawn) return;
    drawn = text;
    data = next;
    draw();
    if (table.open) drawTable();
  }

  const heights = (at) => data.values.map((values) => values[at]);
  const total = (at) => (type === "bars" ? heights(at).reduce((all, value) => all + (value ?? 0), 0) : Math.max(...heights(at).map((value) => value ?? 0)));

  function draw() {
    const width = Math.max(WIDTH_MIN, frame.clientWidth);
    const base = HEIGHT - BOTTOM;
    const most = Math.max(0, ...data.times.map((_, at) => total(at)));
    const scale = data.logarithmic ? (value) => Math.log1p(value) / Math.log1p(most) : (value) => value / most;
    const y = (value) => base - (most > 0 ? scale(value) * (base - TOP) : 0);
    const marks = most === 0 ? [] : [most, Math.round(data.logarithmic ? Math.sqrt(most) : most / 2)].filter((mark, at) => at === 0 || (mark > 0 && mark < most));
    const left = Math.max(0, ...marks.map((mark) => format(mark).length)) * LETTER + (marks.length ? 6 : 0);
    const step = (width - left) / Math.max(1, data.times.length);
    const plot = { width, left, step, y, base };
    const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-labelledby": `${id}-title` },
      svg("title", { id: `${id}-title` }, summary(most)),
      svg("line", { class: "rule", x1: left, x2: width, y1: base + 0.5, y2: base + 0.5 }));
    for (const mark of marks) {
      picture.append(svg("line", { class: "rule dashed", x1: left, x2: width, y1: y(mark), y2: y(mark) }),
        svg("text", { x: left - 6, y: y(mark) + 4, "text-anchor": "end" }, format(mark)));
    }
    if (most === 0) picture.append(svg("text", { x: width / 2, y: base / 2 + 8, "text-anchor": "middle" }, empty));
    if (type === "bars") drawBars(picture, plot);
    else drawLines(picture, plot);
    drawAxis(picture, plot);
    const { tip, point } = pointing(picture, plot);
    replace(frame, picture, tip);
    if (pointerX !== null) point();
  }

  function drawBars(picture, { left, step, y, base }) {
    const gap = step > 4 ? Math.min(2, step * 0.24) : 0;
    data.times.forEach((_, at) => {
      let below = 0;
      data.values.forEach((values, number) => {
        const value = values[at] ?? 0;
        if (value === 0) return;
        const top = Math.min(y(below + value), y(below) - 1.5);
        picture.append(svg("rect", { class: `bar ${series[number].kind}`, x: (left + at * step + gap / 2).toFixed(2), width: Math.max(1, step - gap).toFixed(2), y: top.toFixed(2), height: (Math.min(base, y(below)) - top).toFixed(2) }));
        below += value;
      });
    });
  }

  function drawLines(picture, { left, step, y }) {
    data.values.forEach((values, number) => {
      let path = "";
      const isThere = (at) => values[at] !== null && values[at] !== undefined;
      values.forEach((value, at) => {
        if (!isThere(at)) return;
        const [x, level] = [(left + (at + 0.5) * step).toFixed(2), y(value).toFixed(2)];
        path += `${isThere(at - 1) ? "L" : "M"}${x} ${level}`;
        if (!isThere(at - 1) && !isThere(at + 1)) picture.append(svg("circle", { class: `point ${series[number].kind}`, cx: x, cy: level, r: 2 }));
      });
      if (path) picture.append(svg("path", { class: `line ${series[number].kind}`, d: path }));
    });
  }

  function drawAxis(picture, { width, left }) {
    if (!data.times.length) return;
    const [from, to] = [data.times[0], data.times.at(-1) + data.stepMs];
    const marks = width < 300 ? 1 : width < 560 ? 2 : 6;
    for (let mark = 0; mark <= marks; mark += 1) {
      const anchor = mark === 0 ? "start" : mark === marks ? "end" : "middle";
      const text = tick(from + ((to - from) * mark) / marks, to - from);
      picture.append(svg("text", { x: left + ((width - left) * mark) / marks, y: HEIGHT - 5, "text-anchor": anchor }, mark === marks ? `${text} ${zoneName(new Date(to))}` : text));
    }
  }

  function pointing(picture, { width, left, step }) {
    const tip = h("div", { class: "tip", hidden: true });
    const band = svg("rect", { class: "band", y: TOP, height: HEIGHT - BOTTOM - TOP, width: step.toFixed(2), visibility: "hidden" });
    picture.append(band);
    const placeOf = (x) => {
      const box = picture.getBoundingClientRect();
      return Math.min(data.times.length - 1, Math.max(0, Math.floor((((x - box.left) / box.width) * width - left) / step)));
    };
    const point = () => {
      if (!data.times.length) return;
      const at = placeOf(pointerX);
      band.setAttribute("x", (left + at * step).toFixed(2));
      band.setAttribute("visibility", "visible");
      tip.textContent = `${tick(data.times[at], data.times.at(-1) - data.times[0])}: ${words(at)}`;
      tip.hidden = false;
      const half = tip.offsetWidth / 2;
      tip.style.left = `${Math.min(width - half, Math.max(half, left + (at + 0.5) * step))}px`;
    };
    picture.addEventListener("pointermove", (event) => {
      pointerX = event.clientX;
      point();
    });
    picture.addEventListener("pointerleave", () => {
      pointerX = null;
      tip.hidden = true;
      band.setAttribute("visibility", "hidden");
    });
    if (href !== null) {
      picture.classList.add("clickable");
      picture.addEventListener("click", (event) => {
        const start = data.times[placeOf(event.clientX)];
        if (start !== undefined) navigate(href(start, start + data.stepMs));
      });
    }
    return { tip, point };
  }

  const shown = (value) => (value === null || value === undefined ? "–" : format(value));
  const words = (at) => data.values.map((values, number) => (series.length > 1 ? `${series[number].name} ${shown(values[at])}` : shown(values[at]))).join(", ");

  function summary(most) {
    if (!data.times.length || most === 0) return `${title}: ${empty}`;
    return `${title} from ${timeText(data.times[0], "minute")} to ${timeText(data.times.at(-1) + data.stepMs, "minute")}, at most ${format(most)}`;
  }

  /** Rows that are the same stay, and with them the focus on their links. */
  function drawTable() {
    const next = new Map();
    data.times.forEach((start, at) => {
      if (total(at) === 0) return;
      const made = row(start, at);
      next.set(start, rows.get(start)?.isEqualNode(made) ? rows.get(start) : made);
    });
    for (const [start, old] of rows) if (next.get(start) !== old) old.remove();
    rows = next;
    [...rows.values()].forEach((each, place) => { if (body.children[place] !== each) body.insertBefore(each, body.children[place] ?? null); });
  }

  function row(start, at) {
    return h("tr", null,
      h("td", null, href === null ? timeText(start, "minute") : h("a", { href: href(start, start + data.stepMs), "data-route": true }, timeText(start, "minute"))),
      data.values.map((values) => h("td", { class: "r" }, shown(values[at]))));
  }

  return { element, update };
}
