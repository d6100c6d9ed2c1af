// The overview: whether messages arrive, what is due, what waits, what fails, and what the past hours were like.

import { get } from "../lib/api.js";
import { chart } from "../lib/chart.js";
import { address, card, h, link, messageLink, placed, replace, tabs } from "../lib/dom.js";
import { ago, bytes, duration, ms, number, plural, relative, timeText } from "../lib/format.js";
import { past } from "../lib/past.js";
import { growth, look, seldom, service, sum } from "../lib/service.js";
import { nowMs } from "../lib/state.js";
import { table } from "../lib/table.js";
import { deadRecently } from "../lib/trouble.js";
import { waiting } from "../lib/waiting.js";

const RANGES = { "1h": 3600e3, "24h": 86400e3, "7d": 7 * 86400e3 };
const NAMES = { "1h": "1 h", "24h": "24 h", "7d": "7 d" };
const NEXT = 6; // Messages listed.
const MINUTE_MS = 60e3;
const CASES = 10; // Rows of what failed.
const EVERY_MS = 10e3; // Between two questions about what is due.
const OVERDUE_MS = 1000;
const COUNTDOWN_MS = 500;

export function mount(root, { query }) {
  const figures = theFigures();
  const due = whatIsDue(query);
  const failures = whatFails();
  const parts = [due, failures, waiting(), past(query)];
  const first = firstSteps();
  const grid = h("div", { class: "grid" }, parts.map((part) => part.element));
  replace(root, h("h1", { class: "hidden-text" }, "Overview"), figures.element, first, grid);
  const ticking = setInterval(figures.countdown, COUNTDOWN_MS);
  return {
    title: "Overview",
    close: () => clearInterval(ticking),
    async refresh() {
      // What cannot be answered at the moment leaves everything else as it is, and is told at the end.
      const asking = due.ask();
      await Promise.allSettled([look(), asking]);
      if (service.nodes === null || service.refused !== null) return asking;
      const isEmpty = service.shards.length > 0 && sum((shard) => shard.totals.accepted + shard.totals.rejected) === 0;
      figures.update();
      first.hidden = !isEmpty;
      grid.hidden = isEmpty;
      const results = await Promise.allSettled([asking, ...parts.map((part) => part.refresh())]);
      const failed = results.find(({ status }) => status === "rejected");
      if (failed) throw failed.reason;
    },
  };
}

// --- Figures

function theFigures() {
  const made = {};
  const element = h("dl", { class: "card figures" }, [["pending", "Pending", "/ui/messages"], ["next", "Next due", null], ["delivered", "Delivered", null], ["late", "Median lateness", null], ["dead", "Dead-lettered", "/ui/dead-letters"]].map(([name, label, path]) => {
    made[name] = [h("dd", { id: `figure-${name}` }, "–"), h("dd", { class: "note" })];
    return h("div", { class: "figure" }, h("dt", null, path ? link(path, null, label) : label), made[name]);
  }));
  const set = (name, value, note, isBad = false) => {
    const [top, below] = made[name];
    if (top.textContent !== value) top.textContent = value;
    if (below.textContent !== note) below.textContent = note;
    top.className = isBad ? "why" : "";
  };
  let next = null;
  let overdueMs = 0;

  function countdown() {
    if (next === null) set("next", "–", "no message is pending");
    else if (overdueMs > OVERDUE_MS) set("next", "overdue", `by ${duration(overdueMs)}`, true);
    else set("next", ms(next) > nowMs() ? duration(ms(next) - nowMs()) : "now", timeText(next));
  }

  function update() {
    const totals = (name) => sum((shard) => shard.totals[name]);
    const lag = sum((shard) => shard.lag ?? 0);
    const parked = sum((shard) => shard.parked);
    set("pending", number(sum((shard) => shard.pending)), lag > 0 ? `${plural(lag, "record")} not applied yet` : parked > 0 ? `${number(parked)} of them wait in lanes` : `${number(totals("accepted"))} accepted in total`);
    next = service.shards.map((shard) => shard.next_due_at).filter(Boolean).sort((one, other) => ms(one) - ms(other))[0] ?? null;
    overdueMs = Math.max(0, ...service.shards.map((shard) => shard.oldest_overdue_ms));
    countdown();
    const delivered = growth("delivered");
    set("delivered", number(totals("delivered")), delivered === null ? "since the beginning" : delivered.grown === 0 ? "none at the moment" : `${rateText((delivered.grown * 1000) / delivered.ms)} per second`);
    set("late", lateText("p50_ms"), lateText("p99_ms") === "–" ? "no deliveries since the start" : `p99 ${lateText("p99_ms")}`);
    const failed = growth("dead");
    set("dead", number(totals("dead") + totals("expired")), failed?.grown ? `${number(failed.grown)} in the last ${duration(failed.ms)}` : `${number(totals("rejected"))} rejected, ${number(totals("cancelled"))} cancelled`, Boolean(failed?.grown));
  }

  return { element, update, countdown };
}

const rateText = (rate) => number(rate < 10 ? Number(rate.toFixed(1)) : Math.round(rate));

/** The greatest of the shards, an upper bound; null in an answer is more than an hour. */
function lateText(name) {
  const known = service.shards.map((shard) => shard.lateness).filter((found) => found.count > 0);
  if (!known.length) return "–";
  return known.some((found) => found[name] === null) ? "> 1 h" : `≤ ${duration(Math.max(...known.map((found) => found[name])))}`;
}

// --- What is due

function whatIsDue(query) {
  const range = RANGES[query.get("due")] ? query.get("due") : "1h";
  const others = Object.fromEntries([...query].filter(([name]) => name !== "due"));
  const ranges = tabs("Period to come", "/", Object.keys(RANGES).map((name) => [NAMES[name], { ...others, due: name === "1h" ? null : name }]), (each) => (each.due ?? "1h") === range);
  const bars = chart({
    title: "Messages due", series: [{ name: "Due", kind: "accent" }], empty: "No messages are due in this period.",
    href: (start, end) => {
      const [from, to] = [new Date(start).toISOString(), new Date(end).toISOString()];
      return end - start > MINUTE_MS ? address("/ui/timeline", { from, to }) : address("/ui/messages", { "due-from": from, "due-to": to });
    },
  });
  const list = table({
    caption: "Messages due next", key: (message) => message.id, empty: "No message is pending.", columns: [
      { name: "Due", cell: (message) => relative(message.planned_at) },
      { name: "Id", grow: true, cell: (message) => messageLink(message.id) },
      { name: "Target", cell: (message) => message.target?.topic ?? "–" },
      { name: "Size", numeric: true, cell: (message) => bytes(message.value_bytes) },
    ],
  });
  const note = h("p", { class: "soft" });
  const element = card("What is due", { class: "wide" },
    h("div", { class: "head" }, note, ranges),
    h("div", { class: "grid" }, h("div", { class: "half" }, bars.element), h("div", { class: "half" }, list.element, h("p", { class: "soft more" }, link("/ui/messages", null, "All pending messages")))));
  let asked = null;

  /** Ask together with the shards, so that the first view is whole as soon as possible. */
  const ask = seldom(EVERY_MS, async () => {
    const from = Math.floor(nowMs());
    const [timeline, page] = await Promise.all([get("/v1/timeline", { from, to: from + RANGES[range] }), get("/v1/messages", { limit: NEXT, due_from: from })]);
    asked = { timeline, messages: page.messages };
  });

  async function refresh() {
    if (asked === null) return;
    const { timeline, messages } = asked;
    asked = null;
    bars.update({ times: timeline.intervals.map((interval) => ms(interval.start)), stepMs: timeline.step_ms, values: [timeline.intervals.map((interval) => interval.pending)] });
    list.update(messages);
    replace(note, `${plural(timeline.pending, "message")} ${timeline.pending === 1 ? "is" : "are"} due in the next ${NAMES[range]}.`);
  }

  return { element, ask, refresh };
}

// --- What fails

function whatFails() {
  const grid = table({
    caption: "Messages that failed in the last 10 minutes", key: (row) => `${row.reason} ${row.target}`, columns: [
      { name: "Reason", cell: (row) => link("/ui/dead-letters", { reason: row.reason }, row.reason) },
      { name: "Target", grow: true, cell: (row) => (row.target ? link("/ui/dead-letters", { reason: row.reason, target: row.target }, row.target) : "–") },
      { name: "Messages", numeric: true, cell: (row) => number(row.messages) },
    ],
  });
  const note = h("p", { class: "soft" });
  const element = card("Failed in the last 10 minutes", { class: "wide" }, note, grid.element);
  element.hidden = true;

  async function refresh() {
    const found = deadRecently(service.shards);
    element.hidden = found === null;
    if (found === null) return;
    replace(note, `${plural(found.messages, "message")}, the last one ${ago(found.lastAt)}. Look at one, correct the cause, and replay them.`);
    grid.update(found.cases.slice(0, CASES));
  }

  return { element, refresh };
}

// --- The first steps

function firstSteps() {
  const command = (text) => h("pre", { class: "payload" }, text);
  const made = card("No message has been sent yet", {},
    h("p", null, "Send the first one, and watch it arrive five seconds later:"),
    command("chronos send --to hello --in 5s --key order-17 'please pay'\nchronos tail hello --from beginning --headers -n 1"),
    h("p", null, "Or with any HTTP client:"),
    command(`curl -s ${location.origin}${placed("/v1/messages")} -H 'Content-Type: application/json' \\\n     -d '{"target": {"topic": "hello"}, "value": "please pay", "delay": "5s"}'`),
    h("p", { class: "soft" }, "Or as a record in the delay topic, with any Kafka client: the header ", h("code", null, "chronos-target-topic"), " names the target, and ", h("code", null, "chronos-delay"), " says when. A service with tokens needs one in each of these."));
  made.hidden = true;
  return made;
}
