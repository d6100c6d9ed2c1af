// Pending messages over the time they are due, from years down to a minute.

import { get } from "../lib/api.js";
import { chart } from "../lib/chart.js";
import { address, h, link, replace, replaceChanged, tabs } from "../lib/dom.js";
import { filterForm } from "../lib/filters.js";
import { duration, ms, number, plural, timeText } from "../lib/format.js";
import { nowMs } from "../lib/state.js";

const PATH = "/ui/timeline";
const MINUTE_MS = 60e3;
const RANGES = [["1 h", "1h", 3600e3], ["6 h", "6h", 6 * 3600e3], ["24 h", "24h", 86400e3], ["7 d", "7d", 7 * 86400e3], ["30 d", "30d", 30 * 86400e3], ["1 y", "365d", 365 * 86400e3], ["3 y", "1095d", 1095 * 86400e3]];
const DEFAULT = "24h";

const FIELDS = [
  { name: "from", label: "From", type: "datetime-local" },
  { name: "to", label: "Before", type: "datetime-local" },
];

/** The window of an address in ms: that of `from` and `to`, or the next `range` from now on. */
function windowOf(query) {
  const range = RANGES.find(([, name]) => name === (query.get("range") ?? DEFAULT)) ?? RANGES[2];
  const from = query.get("from") ? ms(query.get("from")) : Math.floor(nowMs());
  const to = query.get("to") ? ms(query.get("to")) : from + range[2];
  return { from, to };
}

const instant = (at) => new Date(at).toISOString();

export function mount(root, { query }) {
  const isFixed = query.get("from") !== null || query.get("to") !== null;
  const scale = query.get("scale");
  const kept = { range: query.get("range"), from: query.get("from"), to: query.get("to") };
  const total = h("p", { class: "soft told", role: "status" });
  const steps = h("p", { class: "pager" });
  const bars = chart({
    title: "Pending messages by due time", series: [{ name: "Pending", kind: "accent" }], empty: "No messages are due in this period.",
    href: (start, end) => (end - start <= MINUTE_MS ? messages(start, end) : address(PATH, { from: instant(start), to: instant(end), scale })),
  });
  replace(root, h("h1", null, "Timeline"),
    h("div", { class: "head" },
      tabs("Period", PATH, RANGES.map(([text, range]) => [text, { range, scale }]), (asked) => !isFixed && asked.range === (query.get("range") ?? DEFAULT)),
      tabs("Scale", PATH, [["Linear", kept], ["Logarithmic", { ...kept, scale: "log" }]], (asked) => (asked.scale ?? null) === scale)),
    filterForm({ path: PATH, query, fields: FIELDS, keep: ["scale"], label: "Choose a period", action: "Show" }),
    h("section", { class: "card", "aria-label": "Due messages" }, total, bars.element, steps));

  async function refresh() {
    const { from, to } = windowOf(query);
    const found = await get("/v1/timeline", { from, to });
    const times = found.intervals.map((interval) => ms(interval.start));
    const counts = found.intervals.map((interval) => interval.pending);
    bars.update({ times, stepMs: found.step_ms, values: [counts], logarithmic: scale === "log", spanMs: to - from });
    const most = Math.max(0, ...counts);
    const text = `${plural(found.pending, "message")} due from ${timeText(found.start, "minute")} to ${timeText(found.end, "minute")}, at most ${number(most)} per ${duration(found.step_ms)}.${advice(counts, most)}`;
    if (total.textContent !== text) total.textContent = text;
    replaceChanged(steps, links(found, from, to));
  }

  const advice = (counts, most) => {
    const others = counts.filter((count) => count > 0 && count < most / 50).length;
    return others > 0 && scale !== "log" ? " One burst hides the rest: the logarithmic scale shows both." : "";
  };

  function links(found, from, to) {
    const span = to - from;
    const at = (start, end) => address(PATH, { from: instant(start), to: instant(end), scale });
    const a = (href, text) => h("a", { href, "data-route": true }, text);
    return [
      a(messages(ms(found.start), ms(found.end)), "Messages of this period"),
      a(at(from - span, from), "Earlier"), a(at(to, to + span), "Later"),
      isFixed && span < RANGES.at(-1)[2] / 4 && a(at(from - 1.5 * span, to + 1.5 * span), "Wider"),
      link("/ui/messages", { state: "overdue" }, "Overdue messages"),
    ];
  }

  return { refresh, close() {}, title: "Timeline" };
}

const messages = (start, end) => address("/ui/messages", { "due-from": instant(start), "due-to": instant(end) });
