// Messages by state, target, due time, id, key and header, and what can be done with them, one by one or all at once.

import { reason } from "../lib/api.js";
import { actButton, actLink } from "../lib/caller.js";
import { address, badge, h, link, messageLink, notice, replace, replaceChanged, tabs } from "../lib/dom.js";
import { filterForm } from "../lib/filters.js";
import { bytes, duration, number, plural, relative, time, timeText } from "../lib/format.js";
import { isStalePage } from "../lib/pages.js";
import { navigate } from "../lib/router.js";
import { table } from "../lib/table.js";
import { ACTS, actOnEach, confirm, overdueMs } from "./messages/acts.js";
import { compose } from "./messages/compose.js";
import { facets, jobPanel, readJob, startCount, startJob, stopJob } from "./messages/jobs.js";
import { recentJobs } from "./messages/recent.js";
import { chosen, CONDITIONS, isPending, jobFilter, PAGE, search, STATES } from "./messages/search.js";

const PATH = "/ui/messages";
const GAP_MS = 1900; // Time between two searches,
const COSTS = 15; // but at least so many times what the last one took: a filter may have to read much.

const FIELDS = [
  { name: "target", label: "Target", placeholder: "orders or bill-*", title: "The name of a topic, or a pattern with * and ?", maxlength: 249 },
  { name: "id-prefix", label: "Id begins with", placeholder: "order-17" },
  { name: "contains", label: "Id, key or a header contains", placeholder: "customer-42" },
  { name: "due-from", label: "Due from", type: "datetime-local", more: true },
  { name: "due-to", label: "Due before", type: "datetime-local", more: true },
  { name: "key", label: "Kafka key", more: true },
  { name: "header", label: "Headers, a name=value a line", type: "lines", placeholder: "customer=42", more: true },
  { name: "series", label: "Only series", type: "checkbox", more: true },
];

const STATE_KINDS = { pending: "", delivered: "good", cancelled: "plain", settled: "plain", expired: "bad", dead: "bad" };

export function mount(root, { query }) {
  if (query.get("schedule") === "true") return compose(root, query);
  const job = query.get("job");
  const pending = isPending(query);
  // The end of the window of overdue messages moves on: each action has the filter of its moment.
  const filter = () => jobFilter(query);
  const hasCondition = Object.keys(filter() ?? {}).length > 0;
  const count = query.get("count");
  const top = h("div", { class: "head" }, h("h1", null, "Messages"), actLink("schedule", address(PATH, { schedule: "true", target: query.get("target") }), "Schedule a message"));
  const panel = job && jobPanel(() => stopJob(job).catch((error) => notice(reason(error), "bad")));
  const countPlace = h("div");
  const recent = recentJobs();
  const note = h("p", { class: "soft told", role: "status" });
  const pager = h("nav", { class: "pager", "aria-label": "Pages" });
  const bulk = h("div", { class: "acts bulk" });
  const rows = table({
    caption: "Messages in the order of their due times", key: (row) => `${row.shard}/${row.offset}/${row.id}`, columns: columns(query),
    empty: h("span", null, "Searching."), selectable: pending ? (row) => `Select ${row.id}` : null, onSelect: showBulk,
  });
  replace(root, top,
    panel ? panel.element : null,
    tabs("State", PATH, STATES.map(([state, text]) => [text, { ...chosen(query), state }]), (asked) => (asked.state || "pending") === (query.get("state") || "pending")),
    filterForm({ path: PATH, query, fields: FIELDS, keep: ["state"], label: "Filter the messages" }),
    countPlace,
    h("section", { class: "card", "aria-label": "Messages" }, pending && bulk, rows.element, note, pager),
    pending && recent.element);
  const searching = new AbortController();
  let nextAt = 0;
  let jobState = job ? "running" : null;
  let isCounted = count === null;
  showBulk([]);

  function showBulk(selected) {
    const some = selected.length > 0;
    const button = (name) => actButton(some ? name : "start", { class: ACTS[name].kind, disabled: !some && !hasCondition, onclick: () => (some ? actOn(name, selected) : startJob(name, filter(), chosen(query))) },
      some ? ACTS[name].some(number(selected.length)) : ACTS[name].all);
    // The buttons keep their places: only their texts change with the selection.
    const focused = [...bulk.children].indexOf(document.activeElement);
    replace(bulk, button("fire"), button("reschedule"), button("cancel"),
      some ? h("button", { type: "button", class: "quiet", onclick: () => { rows.clear(); showBulk([]); } }, "Clear the selection")
        : actButton("start", { disabled: filter() === null, onclick: () => startCount(filter(), chosen(query)) }, "Count by target"),
      !some && !hasCondition && h("span", { class: "soft" }, filter() === null ? "A bulk operation takes one value of a header: select rows instead."
        : "Select rows, or filter: a bulk operation needs a condition."));
    if (focused >= 0) bulk.children[focused]?.focus();
  }
  async function actOn(name, selected) {
    const given = await confirm(name, selected);
    if (!given) return;
    const { text, kind } = await actOnEach(name, selected, given === true ? undefined : given, (done) => { note.textContent = `${number(done)} of ${plural(selected.length, "message")} done.`; });
    notice(text, kind);
    rows.clear();
    nextAt = 0;
    await refresh();
  }

  async function refresh() {
    const parts = await Promise.allSettled([list(), showJob(), showCount(), pending && recent.refresh()]);
    const failed = parts.find((part) => part.status === "rejected");
    if (failed) throw failed.reason;
  }

  async function list() {
    if (performance.now() < nextAt) return;
    const found = await search(query, { signal: searching.signal }).catch((error) => (isStalePage(error) && query.get("after") ? null : Promise.reject(error)));
    if (found === null) {
      notice("This page is no longer valid, because the node was restarted or the conditions were changed. This is the first page.", "bad");
      navigate(address(PATH, chosen(query)), { replace: true });
      return;
    }
    nextAt = performance.now() + Math.max(GAP_MS, COSTS * found.ms);
    if (!pending) nextAt = Math.max(nextAt, performance.now() + 10e3);
    rows.update(found.messages);
    replace(rows.element.querySelector(".empty"), emptyText(query, found));
    const text = noteText(query, found);
    if (note.textContent !== text) note.textContent = text;
    replaceChanged(pager, [query.get("after") && link(PATH, chosen(query), "First page"), found.after !== null && nextPage(query, found), !pending && archiveHint(found), ...letterHint(query)]);
  }

  async function showJob() {
    if (jobState !== "running") return;
    const found = await readJob(job).catch((error) => (error.status === 404 ? null : Promise.reject(error)));
    if (found === null) {
      jobState = "gone";
      replace(panel.element, h("p", null, `The node that was asked has no job ${job}. A node keeps its last 100 jobs until it stops; the messages show what the job did.`));
      return;
    }
    panel.update(found);
    if (found.state !== "running") nextAt = 0;
    jobState = found.state;
  }

  async function showCount() {
    if (isCounted) return;
    isCounted = true;
    const found = await readJob(count).catch((error) => (error.status === 404 ? null : Promise.reject(error)));
    replace(countPlace, found === null ? h("p", { class: "soft" }, "The count is no longer kept: count again.") : facets(found, chosen(query)));
  }

  return { refresh, close: () => searching.abort(), title: "Messages" };
}

function columns(query) {
  const pending = isPending(query);
  const target = (row) => (row.target ? link(PATH, { ...chosen(query), target: row.target.topic }, h("span", { dir: "auto" }, row.target.topic)) : h("span", { class: "soft" }, "no longer kept"));
  const due = { name: "Due", cell: (row) => h("div", null, lateText(row), h("div", { class: "soft" }, time(row.due_at))) };
  const ended = { name: "Ended", cell: (row) => h("div", null, relative(row.settled_at), h("div", { class: "soft" }, time(row.settled_at))) };
  return [
    ...(pending ? [due] : [ended, due]),
    { name: "Id", grow: true, cell: (row) => messageLink(row.id) },
    { name: "Target", cell: target },
    { name: "State", grow: true, cell: (row) => stateCell(row) },
    { name: "Payload", numeric: true, cell: (row) => (row.target ? (row.value_bytes === null ? "null" : bytes(row.value_bytes)) : "–") },
  ];
}

function lateText(row) {
  const late = overdueMs(row);
  return late > 0 ? h("span", { class: "why" }, `overdue by ${duration(late)}`) : relative(row.due_at);
}

function stateCell(row) {
  const isLate = overdueMs(row) > 0;
  const word = row.parked ? badge("parked", "warn") : row.state === "pending" && row.reason ? badge("tried again", "warn") : row.state === "pending" && isLate ? badge("overdue", "bad") : badge(row.state, STATE_KINDS[row.state]);
  const about = [
    row.reason && h("span", { class: "why" }, row.detail ? `${row.reason}: ${row.detail}` : row.reason),
    row.next_try_at && ["next try ", relative(row.next_try_at)],
    row.repetition && `series, ${row.repetition.repeat}`,
  ].filter(Boolean);
  return h("div", null, word, about.map((part) => h("div", { class: "soft" }, part)));
}

function emptyText(query, found) {
  const hasConditions = CONDITIONS.some((name) => query.get(name));
  const state = query.get("state") ?? "";
  if (found.after !== null) return "No message matched so far.";
  if (state === "overdue") return hasConditions ? "No overdue message matches." : "No message is overdue.";
  if (hasConditions) return ["No message matches. ", link(PATH, { state }, "Show all"), "."];
  if (!isPending(query)) return `No ${state === "settled" ? "message has ended" : `${state} message`}, as far as they are kept.`;
  return ["No message is pending. ", link(PATH, { schedule: "true" }, "Schedule one"), ", or run ", h("code", null, "chronos send --to orders --in 30s hello"), "."];
}

/** How many rows there are, and, where the search ended before its page was full, how far it came. */
function noteText(query, found) {
  if (found.messages.length === 0 && found.after === null) return "";
  const page = Number(query.get("page") ?? 1);
  const place = page > 1 ? `Page ${number(page)}: ` : "";
  if (found.after === null) return `${place}${plural(found.messages.length, "message")}, to the end.`;
  const far = found.through === null ? "" : ` It has read the messages due up to ${timeText(found.through)}.`;
  if (found.messages.length < PAGE) return `${place}${plural(found.messages.length, "message")} so far: the search stopped after ${duration(found.ms)}, because few messages match.${far}`;
  return `${place}${plural(found.messages.length, "message")}, due up to ${timeText(found.messages.at(-1).planned_at)}. There are more.`;
}

function nextPage(query, found) {
  const page = Number(query.get("page") ?? 1);
  const to = query.get("state") === "overdue" ? { "due-to": found.dueTo } : {};
  return link(PATH, { ...chosen(query), ...to, after: found.after, page: page + 1 }, found.messages.length < PAGE ? "Go on searching" : "Next page");
}

/** Where dead letters are counted by reason, and replayed. */
function letterHint(query) {
  if (!["dead", "expired"].includes(query.get("state"))) return [];
  return [link("/ui/dead-letters", { target: query.get("target") }, "Dead letters by reason, to be replayed")];
}

/** Where messages are that ended before those of the list. */
function archiveHint(found) {
  const text = found.keptFrom === null ? "Messages that ended are kept without a limit." : `Messages that ended before ${timeText(found.keptFrom)} are no longer here.`;
  return h("span", { class: "soft" }, text, " In an archive: ", h("code", null, "chronos archive find --id-prefix ID --location PATH"));
}
