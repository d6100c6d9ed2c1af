// The target topics: what they receive, what waits for them and why, and their rate limits.

import { del, get, put, reason } from "../lib/api.js";
import { actButton } from "../lib/caller.js";
import { address, badge, card, dialog, facts, h, link, notice, replace } from "../lib/dom.js";
import { isLike } from "../lib/facets.js";
import { filterForm } from "../lib/filters.js";
import { number, plural, relative } from "../lib/format.js";
import { seldom } from "../lib/service.js";
import { LANES_MAX, limitOf, targetRows } from "../lib/targets.js";
import { table } from "../lib/table.js";

const PATH = "/ui/targets";
const PAGE = 50;
const EVERY_MS = 10e3; // 1,000 targets are a large answer, and so are 1,000 lanes.
const LIMITS = 100; // Rate limits that are shown at once.

// [name in the query, heading, value that is sorted by]
const ORDERS = [
  ["waiting", "Waiting", (row) => row.waiting], ["rate", "Per second", (row) => row.perSecond ?? -1], ["delivered", "Delivered", (row) => row.counters?.delivered ?? -1],
  ["late", "Late by > 1 s", (row) => row.counters?.late ?? -1], ["dead", "Dead letters", (row) => row.counters?.dead_letters ?? -1],
];

// Orders that the service can list by.
const LISTED_BY = { late: "late", dead: "dead_letters" };

let samples = []; // The last two readings of the counters: { at, of, total, others, silent }, for `sampled`.
let sampled = ""; // What was asked for.

export function mount(root, { query }) {
  const find = query.get("find") ?? "";
  const order = ORDERS.find(([name]) => name === query.get("sort")) ?? null;
  const at = Math.max(0, Number.parseInt(query.get("page") ?? "1", 10) - 1 || 0);
  const chosen = query.get("target");
  let limits = { rates: [], lanes: [] };
  const sortedBy = (name) => address(PATH, { ...Object.fromEntries(query), page: null, sort: name });
  const figure = (name, cell) => ({ name: ORDERS.find(([each]) => each === name)[1], numeric: true, sort: sortedBy(name), cell });
  const pages = h("div", { class: "pager", hidden: true });
  const detail = h("div", { class: "detail", hidden: chosen === null });
  const list = table({
    caption: "Targets", key: (row) => row.topic, empty: find ? `No known target has ${find} in its name.` : "No target is known yet. A target appears here with its first delivery, limit, dead letter or waiting message.",
    columns: [
      { name: "Target", grow: true, cell: (row) => link(PATH, { ...Object.fromEntries(query), target: row.topic }, h("span", { dir: "auto" }, row.topic)) },
      { name: "State", cell: state },
      { name: "Limit", cell: (row) => limitText(row, limitOf(row.topic, limits.rates)) },
      figure("waiting", (row) => (row.waiting ? number(row.waiting) : "–")),
      figure("rate", (row) => (row.perSecond === null ? "–" : number(Math.round(row.perSecond * 10) / 10))),
      figure("delivered", (row) => number(row.counters?.delivered)),
      figure("late", (row) => number(row.counters?.late)),
      figure("dead", (row) => (row.counters?.dead_letters ? link("/ui/dead-letters", { target: row.topic }, number(row.counters.dead_letters)) : number(row.counters?.dead_letters))),
    ],
  });
  const limitList = table({
    caption: "Rate limits", key: (each) => `${each.source} ${each.pattern}`, empty: "No rate limit is set: every target takes messages as fast as they are due.",
    columns: [
      { name: "Topics", grow: true, cell: (each) => h("span", { class: "mono", dir: "auto" }, each.pattern) },
      { name: "Rate", cell: (each) => each.rate },
      { name: "From", cell: (each) => (each.source === "run-time" ? "set at run time" : "configuration") },
      {
        name: "Change", cell: (each) => h("div", { class: "acts" },
          actButton("set-rate", { class: "small", onclick: () => change(each.pattern, each.rate) }, "Change…"),
          each.source === "run-time" && actButton("remove-rate", { class: "small danger", onclick: () => remove(each) }, "Remove…")),
      },
    ],
  });
  const limitNote = h("p", { class: "soft note", hidden: true });
  const countNote = h("p", { class: "soft note" });
  replace(root,
    h("h1", null, "Targets"), detail,
    h("section", { class: "card", "aria-label": "Targets" },
      filterForm({ path: PATH, query, label: "Find targets", action: "Find", keep: ["sort"], fields: [{ name: "find", label: "Name, or a part of it", maxlength: 249 }] }),
      list.element, pages,
      countNote),
    card("Rate limits", null, h("div", { class: "acts" }, actButton("set-rate", { onclick: () => change("", "") }, "Set a limit…")), limitList.element, limitNote));

  async function refresh() {
    await Promise.all([readLimits(), readCounters()]);
    show();
    if (chosen !== null) await showDetail();
  }
  const readLimits = seldom(EVERY_MS, async () => { limits = await get("/v1/rates"); });
  async function readCounters() {
    const asked = { order: LISTED_BY[order?.[0]] ?? "delivered", ...(find && { find }) };
    if (sampled !== JSON.stringify(asked)) [samples, sampled] = [[], JSON.stringify(asked)];
    if (samples.length && performance.now() - samples.at(-1).at < EVERY_MS) return;
    const { targets, ...rest } = await get("/v1/targets", asked);
    samples = [...samples.slice(-1), { at: performance.now(), of: new Map(targets.map((each) => [each.topic, each])), ...rest }];
  }

  function countText() {
    const { of, total, others, silent } = samples.at(-1);
    return [
      silent.length > 0 && h("strong", null, `${silent.join(", ")} ${silent.length === 1 ? "does" : "do"} not answer: the counts of ${silent.length === 1 ? "this node" : "these nodes"} are missing. `),
      "Counts are those of all nodes since each started. ",
      total > of.size && `Listed are the ${number(of.size)} with the most messages of ${plural(total, "target")}: find the others by name. `,
      others && others.delivered + others.dead_letters > 0 && `${plural(others.delivered, "delivery", "deliveries")} and ${plural(others.dead_letters, "dead letter")} of more targets are not counted one by one. `,
      find ? [link(PATH, { ...Object.fromEntries(query), target: find }, `Look up ${find}`), "."] : "A target without a count can be looked up by its whole name.",
    ];
  }

  function rowsNow() { return targetRows(limits, samples.at(-1), samples.length > 1 ? samples[0] : null); }

  function show() {
    const words = find.toLowerCase();
    const rows = rowsNow().filter((row) => row.topic.toLowerCase().includes(words));
    const weight = (row) => (row.leaderless.length ? 4 : 0) + (row.dead.length ? 2 : 0) + (row.waiting ? 1 : 0);
    rows.sort((one, other) => (order ? order[2](other) - order[2](one) : weight(other) - weight(one) || other.waiting - one.waiting) || (one.topic < other.topic ? -1 : 1));
    const shown = rows.slice(at * PAGE, (at + 1) * PAGE);
    list.update(shown);
    const all = Object.fromEntries(query);
    replace(pages, h("span", { class: "soft" }, `${number(at * PAGE + 1)} to ${number(at * PAGE + shown.length)} of ${plural(rows.length, "target")}`),
      at > 0 && link(PATH, { ...all, page: at }, "Previous page"), (at + 1) * PAGE < rows.length && link(PATH, { ...all, page: at + 2 }, "Next page"));
    pages.hidden = rows.length <= PAGE && at === 0;
    replace(countNote, countText());
    limitList.update(limits.rates.slice(0, LIMITS));
    limitNote.hidden = limits.rates.length <= LIMITS;
    replace(limitNote, `The first ${LIMITS} of ${number(limits.rates.length)}; chronos rates lists all.`);
  }

  let drawn = "";
  let topic = null; // What the cluster says of the one that is looked up: an Error if that is not known.
  let counters = null; // Its counts.
  const readTopic = seldom(EVERY_MS, async () => {
    counters = (await get("/v1/targets", { find: chosen })).targets.find((each) => each.topic === chosen) ?? null;
    topic = await get("/v1/topics", { topic: chosen }).then(({ topics }) => topics[0] ?? null, (error) => (error.status === undefined ? Promise.reject(error) : error));
  });
  async function showDetail() {
    const row = rowsNow().find((each) => each.topic === chosen) ?? null;
    await readTopic();
    const limit = limitOf(chosen, limits.rates);
    const next = JSON.stringify([row, topic, limit, counters]);
    if (next === drawn) return;
    drawn = next;
    const close = Object.fromEntries([...query].filter(([name]) => name !== "target"));
    replace(detail, card(`Target ${chosen}`, null, facts([
      ["Topic", topicText(topic)],
      ["State", row ? state(row) : "nothing waits for it"],
      ["Waiting", row?.waiting ? [`${plural(row.waiting, "message")}`, row.emptyAt && [", the last of which leaves ", relative(row.emptyAt)]] : null],
      ["Limit", limit ? `${limit.rate}, from ${limit.pattern} (${limit.source === "run-time" ? "set at run time" : "configuration"})` : "none"],
      ["Delivered", counters ? `${number(counters.delivered)}, ${number(counters.late)} of them late by more than 1 s` : null],
    ]), h("div", { class: "acts" },
      link("/ui/messages", { target: chosen }, "Pending messages"), link("/ui/dead-letters", { target: chosen }, "Dead letters"), link("/ui/rejected", { target: chosen }, "Rejected records"),
      actButton("set-rate", { onclick: () => change(chosen, limit?.rate ?? "") }, "Set a limit…"), link(PATH, close, "Close"))));
  }

  async function change(pattern, rate) {
    const name = h("input", { id: "limit-pattern", required: true, maxlength: 249, value: pattern, readonly: pattern !== "", spellcheck: "false", placeholder: "mail, or orders.*" });
    const speed = h("input", { id: "limit-rate", required: true, maxlength: 100, value: rate, spellcheck: "false", placeholder: "200/s, 50/s burst 100, or unlimited" });
    const given = await dialog({
      title: "Set a rate limit", action: "Go on",
      body: h("div", null, h("div", null, h("label", { for: "limit-pattern" }, "Topic, or a pattern"), name), h("div", null, h("label", { for: "limit-rate" }, "Rate"), speed)),
      read: () => ({ pattern: name.value.trim(), rate: speed.value.trim() }),
    });
    if (!given) return;
    const sure = await dialog({
      title: `Set the limit of ${given.pattern}?`, action: `Set ${given.rate}`, danger: /^0(\.0*)?\//.test(given.rate),
      body: h("div", null, h("p", null, hits(given.pattern)), h("p", null, /^0(\.0*)?\//.test(given.rate) ? "This rate holds everything back." : "It acts within a second, also on what waits already, and is kept across restarts.")),
    });
    if (sure) await act(() => put(`/v1/rates/${encodeURIComponent(given.pattern)}`, { rate: given.rate }), (found) => `The limit of ${found.pattern} is ${found.rate}.`);
  }

  async function remove(each) {
    const rest = limits.rates.filter((other) => other.source !== each.source || other.pattern !== each.pattern);
    const next = rest.find((other) => other.pattern === each.pattern);
    const sure = await dialog({
      title: `Remove the limit of ${each.pattern}?`, action: `Remove ${each.rate}`, danger: true,
      body: h("div", null, h("p", null, hits(each.pattern)), h("p", null, next ? `The limit of the configuration, ${next.rate}, is in force again.` : "Limits of wider patterns are in force again; without one, messages leave as fast as they are due.")),
    });
    if (sure) await act(() => del(`/v1/rates/${encodeURIComponent(each.pattern)}`), (found) => `The limit of ${found.pattern}, ${found.rate}, was removed.`);
  }

  function hits(pattern) {
    const rows = rowsNow().filter((row) => isLike(row.topic, pattern));
    const waiting = rows.reduce((total, row) => total + row.waiting, 0);
    const least = limits.lanes.length < LANES_MAX ? "" : "At least ";
    return `${least}${plural(rows.length, "known target")} ${rows.length === 1 ? "matches" : "match"} ${pattern}, for which ${waiting ? plural(waiting, "message") : "no message"} ${waiting > 1 ? "wait" : "waits"} now.`;
  }

  async function act(send, told) {
    try {
      notice(told(await send()));
      await readLimits({ force: true });
      await refresh();
    } catch (error) {
      notice(reason(error), "bad");
    }
  }

  return { refresh, close() {} };
}

function state(row) {
  const parts = row.leaderless.map((partition) => badge(partition < 0 ? "no leader" : `partition ${partition} has no leader`, "bad"));
  const names = { "target-missing": "topic is missing", "forbidden-target": "not permitted" };
  parts.push(...row.dead.map((each) => h("span", { title: `${plural(each.messages, "dead letter")} in the last 10 minutes` }, badge(names[each.reason] ?? each.reason, "bad"))));
  if (row.emptyAt || (row.waiting && !row.leaderless.length)) parts.push(badge("waits for its rate", "warn"));
  if (row.unitless) parts.push(h("span", { title: `${plural(row.unitless, "record")} with a delay from 1 to 999 without a unit` }, badge("delays without a unit", "warn")));
  return parts.length ? h("span", { class: "chips" }, parts) : badge("takes messages", "good");
}

function limitText(row, limit) {
  if (limit === null) return h("span", { class: "soft" }, "none");
  return [limit.rate, limit.pattern !== row.topic && h("span", { class: "soft" }, ` by ${limit.pattern}`)];
}

function topicText(topic) {
  if (topic === null) return "There is no such topic, or it may not be read.";
  if (topic instanceof Error) return topic.message;
  return plural(topic.partitions.length, "partition");
}
