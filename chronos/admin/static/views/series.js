// Series: messages that are delivered repeatedly, with their next times.

import { get, reason } from "../lib/api.js";
import { actButton, actLink } from "../lib/caller.js";
import { address, badge, card, h, link, messageLink, notice, replace } from "../lib/dom.js";
import { filterForm } from "../lib/filters.js";
import { duration, number, plural, relative, time, timeText } from "../lib/format.js";
import { isStalePage } from "../lib/pages.js";
import { navigate } from "../lib/router.js";
import { table } from "../lib/table.js";
import { ACTS, confirm, outcome, overdueMs, pathOf } from "./messages/acts.js";
import { composeFrom, isReplaceable } from "./messages/compose.js";
import { startJob } from "./messages/jobs.js";
import { nextTimes, rhythm } from "./messages/rhythm.js";
import { search } from "./messages/search.js";

const PATH = "/ui/series";
const NAMES = ["target", "id-prefix", "after"]; // Of the query.
const NEXT = 10; // Times that are shown.
const GAP_MS = 1900;
const COSTS = 15; // Series are found by reading all pending messages: see search.
const FIELDS = [
  { name: "target", label: "Target", placeholder: "reports or bill-*", maxlength: 249 },
  { name: "id-prefix", label: "Id begins with" },
];

export function mount(root, { query }) {
  const chosen = query.get("id");
  const kept = Object.fromEntries(NAMES.map((name) => [name, query.get(name)]));
  const asked = new URLSearchParams([...NAMES.filter((name) => query.get(name)).map((name) => [name, query.get(name)]), ["series", "true"]]);
  const note = h("p", { class: "soft told", role: "status" });
  const pager = h("nav", { class: "pager", "aria-label": "Pages" });
  const told = h("div", { role: "status" });
  const detail = h("div");
  const [about, times] = [h("div"), h("div")];
  const coming = card("Next times", null, about, times);
  const rows = table({
    caption: "Series in the order of their next times", key: (row) => row.id, empty: h("span", null, "Searching."),
    columns: [
      { name: "Next", cell: (row) => h("div", null, next(row), h("div", { class: "soft" }, time(row.due_at))) },
      { name: "Id", grow: true, cell: (row) => (row.id === chosen ? h("b", { class: "id", dir: "auto" }, row.id) : link(PATH, { ...kept, id: row.id }, h("span", { class: "id", dir: "auto" }, row.id))) },
      { name: "Target", cell: (row) => h("span", { dir: "auto" }, row.target.topic) },
      { name: "Rhythm", grow: true, cell: (row) => h("div", null, rhythm(row.repetition)) },
      { name: "Occurrence", numeric: true, cell: (row) => `${number(row.occurrence)}${row.repetition.times ? ` of ${number(row.repetition.times)}` : ""}` },
    ],
  });
  const filter = { series: true, ...(kept.target && { target: kept.target }), ...(kept["id-prefix"] && { id_prefix: kept["id-prefix"] }) };
  const everywhere = (name) => actButton("start", { onclick: () => startJob(name, filter, { target: kept.target, "id-prefix": kept["id-prefix"] }) }, kept.target || kept["id-prefix"] ? ACTS[name].all : `${ACTS[name].verb} all series`);
  replace(root, h("div", { class: "head" }, h("h1", null, "Series"), actLink("schedule", "/ui/messages?schedule=true", "Schedule a series")),
    filterForm({ path: PATH, query, fields: FIELDS, label: "Filter the series" }), told, detail,
    h("section", { class: "card", "aria-label": "Series" }, h("div", { class: "acts" }, everywhere("pause"), everywhere("resume")), rows.element, note, pager));
  const searching = new AbortController();
  let nextAt = 0;
  let shown = null;
  let latest = null; // The series to which the buttons belong,
  let offered = null; // and what they depend on, as text.

  async function refresh() {
    await Promise.all([list(), chosen && showChosen()]);
  }

  async function list() {
    if (performance.now() < nextAt) return;
    const found = await search(asked, { signal: searching.signal }).catch((error) => (isStalePage(error) && query.get("after") ? null : Promise.reject(error)));
    if (found === null) {
      notice("This page is no longer valid, because the node was restarted or the conditions were changed. This is the first page.", "bad");
      navigate(address(PATH, { ...kept, after: null, id: chosen }), { replace: true });
      return;
    }
    nextAt = performance.now() + Math.max(GAP_MS, COSTS * found.ms);
    rows.update(found.messages);
    const far = found.through === null ? "" : `, and has read the messages due up to ${timeText(found.through)}`;
    const empty = found.after === null ? ["No series", query.get("target") || query.get("id-prefix") ? " matches." : [". One begins with ", h("code", null, "chronos send --to reports --cron '0 9 * * 1-5' --id daily report"), "."]] : "No series so far.";
    replace(rows.element.querySelector(".empty"), empty);
    note.textContent = found.after === null ? (found.messages.length ? `${plural(found.messages.length, "series", "series")}, to the end.` : "")
      : `${plural(found.messages.length, "series", "series")} so far: the search stopped after ${duration(found.ms)}${far}.`;
    replace(pager, query.get("after") && link(PATH, { ...kept, after: null }, "First page"), found.after !== null && link(PATH, { ...kept, after: found.after }, "Go on searching"));
  }

  async function showChosen() {
    const message = await get(pathOf(chosen), { occurrences: NEXT }).catch((error) => (error.status === 404 ? null : Promise.reject(error)));
    const { overdue_ms: _, ...rest } = message ?? {};
    const text = JSON.stringify(rest);
    if (text === shown) return;
    shown = text;
    latest = message;
    if (message === null) {
      replace(detail, card("The series has ended", null, h("p", null, "Nothing is known of ", messageLink(chosen), " any more.")));
      return;
    }
    if (!detail.contains(coming)) replace(detail, coming);
    showAbout(message);
    replace(times, message.state === "pending" && nextTimes(message));
  }

  /** Drawn again only if it differs, so that the focus stays on its buttons. */
  function showAbout(message) {
    const text = JSON.stringify([message.state, message.paused, message.paused && message.due_at, message.repetition, isReplaceable(message)]);
    if (text === offered) return;
    offered = text;
    const act = (name, words) => actButton(name, { class: ACTS[name].kind, onclick: () => perform(name, latest) }, words);
    const acts = message.state === "pending" && h("div", { class: "acts" }, act("fire", "Run now"), act("reschedule", "Move the next time"),
      message.paused ? act("resume", "Resume the series") : act("pause", "Pause the series"),
      actLink("schedule", composeFrom(chosen, isReplaceable(message)), isReplaceable(message) ? "Edit the series" : "Edit as a new series"), act("cancel", "Cancel the series"));
    replace(about,
      h("div", { class: "head" }, h("span", null, messageLink(chosen), " ", h("span", { class: "soft" }, message.state === "pending" ? "" : message.state)), link(PATH, kept, "Close")),
      message.repetition && h("p", null, rhythm(message.repetition)),
      message.paused && h("p", { class: "notice warn" }, `Paused: it goes on once it is resumed, and otherwise at ${timeText(message.due_at)}. To edit it, resume it first.`), acts);
  }

  async function perform(name, message) {
    const given = await confirm(name, [message]);
    if (!given) return;
    let result;
    try {
      result = await outcome(name, message, await ACTS[name].send(message.id, given === true ? undefined : given));
    } catch (error) {
      result = { text: reason(error), kind: "bad" };
    }
    replace(told, h("p", { class: `notice ${result.kind}` }, result.text));
    nextAt = 0;
    shown = null;
    await refresh();
  }

  return { refresh, close: () => searching.abort(), title: "Series" };
}

function next(row) {
  const late = overdueMs(row);
  if (row.paused) return badge("paused", "warn");
  return late > 0 ? h("span", { class: "why" }, `overdue by ${duration(late)}`) : relative(row.due_at);
}
