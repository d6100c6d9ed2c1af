// What the nodes did in the past hours, as charts.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { card, h, replace, tabs } from "./dom.js";
import { duration, ms, number } from "./format.js";
import { isCluster, seldom } from "./service.js";
import { nowMs } from "./state.js";

const MINUTE_MS = 60e3;
const RANGES = { "1h": 60, "6h": 360, "24h": 1440 };
const NAMES = { "1h": "1 h", "6h": "6 h", "24h": "24 h" };
const POINTS = 120; // Intervals of a chart.
const EVERY_MS = 30e3; // A day of minutes is a large answer.

/** The card; `refresh()` asks at most every 30 s. `query` has `past` (1h, 6h, 24h) and `scale` (log). */
export function past(query) {
  const range = RANGES[query.get("past")] ? query.get("past") : "24h";
  const isLog = query.get("scale") === "log";
  const others = Object.fromEntries([...query].filter(([name]) => name !== "past" && name !== "scale"));
  const choices = Object.keys(RANGES).map((name) => [NAMES[name], { ...others, past: name === "24h" ? null : name, scale: isLog ? "log" : null }]);
  const ranges = tabs("Period of the past", "/", choices, (each) => (each.past ?? "24h") === range);
  const kept = { ...others, past: range === "24h" ? null : range };
  const scale = tabs("Scale", "/", [["Linear", kept], ["Logarithmic", { ...kept, scale: "log" }]], (each) => (each.scale === "log") === isLog);
  const delivered = chart({ title: "Messages delivered", series: [{ name: "Delivered", kind: "good" }], hasLegend: true, empty: "No deliveries in this period." });
  const failed = chart({
    title: "Messages and records that failed", empty: "Nothing failed in this period.",
    series: [{ name: "Dead-lettered", kind: "bad" }, { name: "Expired", kind: "warn" }, { name: "Rejected", kind: "calm" }],
  });
  const late = chart({
    title: "Lateness of deliveries", type: "lines", format: duration, empty: "No deliveries in this period.",
    series: [{ name: "Latest of all", kind: "calm" }, { name: "p99", kind: "accent" }],
  });
  const note = h("p", { class: "soft" });
  const element = card(`The past ${NAMES[range]}`, { class: "wide" },
    h("div", { class: "head" }, note, h("div", { class: "acts" }, scale, ranges)),
    h("div", { class: "grid" },
      [["Delivered", delivered], ["Failed", failed], ["Lateness", late]].map(([name, made]) => h("div", { class: "third" }, h("h3", null, name), made.element))));
  const refresh = seldom(EVERY_MS, async () => draw(await get("/v1/history", { minutes: RANGES[range], of: "cluster" })));

  function draw({ silent, minutes }) {
    const stepMs = Math.max(1, RANGES[range] / POINTS) * MINUTE_MS;
    const end = (Math.floor(nowMs() / stepMs) + 1) * stepMs;
    const times = Array.from({ length: (RANGES[range] * MINUTE_MS) / stepMs }, (_, at) => end - (RANGES[range] * MINUTE_MS) + at * stepMs);
    const rows = times.map(() => []);
    for (const minute of minutes) rows[Math.floor((ms(minute.start) - times[0]) / stepMs)]?.push(minute);
    const total = (name) => rows.map((each) => each.reduce((all, minute) => all + minute[name], 0));
    const most = (name) => rows.map((each) => {
      const known = each.map((minute) => minute[name]).filter((value) => value !== null);
      return known.length ? Math.max(...known) : null;
    });
    const shared = { times, stepMs, logarithmic: isLog };
    delivered.update({ ...shared, values: [total("delivered")] });
    failed.update({ ...shared, values: [total("dead"), total("expired"), total("rejected")] });
    late.update({ ...shared, values: [most("late_max_ms"), most("late_p99_ms")] });
    const whose = silent.length ? `Without ${silent.join(", ")}, which ${silent.length === 1 ? "does" : "do"} not answer. ` : isCluster() ? "Of all nodes, each since its process began. " : "Since the process began. ";
    const sums = ["delivered", "dead", "expired", "rejected"].map((name) => minutes.reduce((all, minute) => all + minute[name], 0));
    replace(note, `${whose}${number(sums[0])} delivered, ${number(sums[1])} dead-lettered, ${number(sums[2])} expired, ${number(sums[3])} rejected.`);
  }

  return { element, refresh };
}
