// Who asked to change something, or to see payloads, and what came of it; and the audits of the archive.

import { get } from "../lib/api.js";
import { badge, card, h, link, replace, segment } from "../lib/dom.js";
import { filterForm } from "../lib/filters.js";
import { number, relative, time } from "../lib/format.js";
import { late, messages, period, verdict } from "../lib/audits.js";
import { askPage, pager } from "../lib/pages.js";
import { instant, PERIOD } from "../lib/period.js";
import { table } from "../lib/table.js";

const PATH = "/ui/audit";
const PAGE = 100;
const EVERY_MS = 10e3;
const IDS = 3; // Ids of a row that are shown until all are asked for.

// Actions in words, by the name of their route, and the views that show their objects.
const ACTIONS = {
  "schedule": "Schedule", "cancel": "Cancel", "reschedule": "Reschedule", "fire": "Deliver now", "get": "Look at a payload", "dead_letter": "Look at a dead letter", "list": "List payloads",
  "rejected-record": "Look at a rejected record", "records": "Read a topic", "replay": "Replay dead letters", "discard": "Discard dead letters", "start": "Start a bulk operation",
  "stop": "Stop a bulk operation", "set-rate": "Set a rate limit", "remove-rate": "Remove a rate limit", "transfer": "Transfer a shard", "arm": "Permit a failover", "digest": "Digest of a shard",
  "drain": "Drain a node", "undrain": "End a drain", "forget": "Forget a node", "checkpoint": "Make checkpoints", "set-value": "Set a value of the registry", "delete-value": "Delete a value of the registry",
};
const VIEWS = {
  "schedule": "messages", "cancel": "messages", "reschedule": "messages", "fire": "messages", "get": "messages",
  "dead_letter": "dead-letters", "replay": "dead-letters", "discard": "dead-letters", "rejected-record": "rejected",
};

export function mount(root, { query }) {
  const isIntent = query.get("phase") === "intent";
  const isRefused = query.get("refused") === "true";
  const chosen = () => ({ ...Object.fromEntries(["token", "action", "id"].map((name) => [name, query.get(name) || undefined])), phase: isIntent ? "intent" : "outcome", refused: isRefused || undefined, since: instant(query.get("since")), until: instant(query.get("until")) });
  let readAt = -Infinity;
  let isOff = false;
  let failed; // What the last read could not do: it is shown until the next one.
  const pages = h("div", { class: "pager", hidden: true });
  const note = h("p", { class: "soft note" });
  const list = table({
    caption: "Audit trail", key, empty: "No entries match. Requests that change something, or show payloads, appear here.",
    columns: [
      { name: "Time", cell: (entry) => time(entry.time) },
      { name: "Sender", grow: true, cell: sender },
      { name: "Action", cell: (entry) => [link(PATH, { ...Object.fromEntries(query), after: null, action: entry.verb }, ACTIONS[entry.verb] ?? entry.verb), isDryRun(entry) && h("span", { class: "soft" }, " dry run")] },
      { name: "Object", grow: true, cell: objects },
      { name: "Result", cell: result },
      { name: "Node", cell: (entry) => entry.node },
    ],
  });
  const given = query.get("action");
  const actions = given && !(given in ACTIONS) ? { ...ACTIONS, [given]: given } : ACTIONS;
  const trail = h("section", { class: "card", "aria-label": "Audit trail" },
    filterForm({
      path: PATH, query, label: "Filter the audit trail",
      fields: [
        { name: "token", label: "Sender's token" },
        { name: "action", label: "Action", type: "select", options: [["", "any"], ...Object.entries(actions)] },
        { name: "id", label: "Id" }, ...PERIOD,
        { name: "phase", label: "Entries", type: "select", options: [["", "outcomes"], ["intent", "intents"]] },
        { name: "refused", label: "Only refused and failed ones", type: "checkbox" },
      ],
    }),
    list.element, pages, note);
  const audits = archiveAudits();
  replace(root, h("h1", null, "Audit"), trail, audits.element);

  async function refresh() {
    if (performance.now() - readAt >= EVERY_MS) {
      const done = await Promise.allSettled([refreshTrail(), audits.refresh()]);
      readAt = performance.now();
      failed = done.find((each) => each.status === "rejected");
    }
    if (failed) throw failed.reason;
  }

  async function refreshTrail() {
    if (isOff) return;
    const asked = chosen();
    let found;
    try {
      found = await askPage(() => get("/v1/audit", { ...asked, limit: PAGE, after: query.get("after") }), { path: PATH, query });
    } catch (error) {
      isOff = error.code === "no-trail";
      if (!isOff) throw error;
      replace(trail, howToKeep());
      return;
    }
    if (found === null) return;
    // An entry may be in the trail twice.
    list.update([...new Map(found.entries.map((entry) => [key(entry), entry])).values()]);
    replace(note, "Requests to the node asked, as far back as the current file of audit.path goes.");
    pager(pages, { path: PATH, query, found, count: found.entries.length, what: "entries", next: { since: asked.since, until: asked.until } });
  }

  return { refresh, close() {} };
}

/** Whether only a count was asked for. The body is its beginning only, which may be no JSON. */
const isDryRun = (entry) => /"dry_run"\s*:\s*true/.test(entry.asked ?? "");

function result(entry) {
  if (entry.phase === "intent") return link(PATH, { since: entry.time, token: entry.token, action: entry.verb, id: entry.ids[0] }, "find its outcome");
  return [badge(entry.outcome, entry.status < 400 ? "plain" : "bad"), " ", h("span", { class: "soft" }, entry.status)];
}

const key = (entry) => `${entry.request} ${entry.ids[0] ?? ""}`;

function sender(entry) {
  const name = entry.token === null ? h("span", { class: "soft" }, "without a token") : link(PATH, { token: entry.token }, h("span", { dir: "auto" }, entry.token));
  return [name, entry.client && h("span", { class: "soft" }, ` from ${entry.client}`)];
}

function objects(entry) {
  const shown = entry.ids.slice(0, IDS).map((id) => h("div", null, object(entry.verb, id)));
  const rest = entry.ids.slice(IDS);
  const asked = [entry.query && ["query", entry.query], entry.asked && ["body", entry.asked]].filter(Boolean);
  return [
    shown,
    rest.length > 0 && h("details", null, h("summary", null, `${number(rest.length)} more`), rest.map((id) => h("div", { class: "id", dir: "auto" }, id))),
    asked.length > 0 && h("details", null, h("summary", null, `Its ${asked.map(([name]) => name).join(" and ")}`), asked.map(([, text]) => h("div", { class: "id", dir: "auto" }, text))),
    shown.length + asked.length === 0 && h("span", { class: "soft" }, "–"),
  ];
}

function object(verb, id) {
  const made = VIEWS[verb] && id ? link(`/ui/${VIEWS[verb]}/${segment(id)}`, null, id) : h("span", null, id);
  made.setAttribute("class", "id");
  made.setAttribute("dir", "auto");
  return made;
}

function howToKeep() {
  return [
    h("h2", null, "The trail is in the log lines of the nodes"),
    h("p", null, "This service writes the audit trail as log lines of ", h("code", null, "chronos.audit"), ", which cannot be read here. To see it here, keep it in a file, and restart the nodes:"),
    h("pre", { class: "payload", tabindex: "0" }, "audit:\n  to: file\n  path: /var/log/chronos/audit.log"),
  ];
}

/** Results of `chronos audit -o json`, a command that the service knows only by the files it writes. */
function archiveAudits() {
  const list = table({
    caption: "Audits of the archive", key: (each) => each.name, empty: "No audit has written its result yet.",
    columns: [
      { name: "Audit", grow: true, cell: (each) => (each.problem === undefined ? link(`${PATH}/${segment(each.name)}`, null, each.name) : each.name) },
      { name: "Written", cell: (each) => relative(each.written_at) },
      { name: "Messages due", cell: (each) => (each.problem === undefined ? period(each) : h("span", { class: "soft" }, each.problem)) },
      { name: "Result", cell: (each) => each.problem === undefined && verdict(each) },
      { name: "Messages", numeric: true, cell: (each) => each.problem === undefined && number(messages(each.counts)) },
      { name: "Late p99", numeric: true, cell: (each) => each.problem === undefined && late(each.lateness.p99_ms) },
    ],
  });
  const note = h("p", { class: "soft note" });
  const element = card("Audits of the archive", null,
    h("p", { class: "soft" }, "Whether every message was delivered is proved from the archive, by ", h("code", null, "chronos audit"), "."), list.element, note);
  let isOff = false;
  async function refresh() {
    if (isOff) return;
    try {
      const found = await get("/v1/archive-audits", { limit: PAGE });
      list.update(found.audits);
      replace(note, found.total > found.audits.length ? `The newest ${number(found.audits.length)} of ${number(found.total)}.` : "");
    } catch (error) {
      isOff = error.code === "no-audits";
      if (!isOff) throw error;
      list.element.remove();
      replace(note, "To see its results here, let it write them into a folder, ", h("code", null, "chronos audit --location LOCATION -o json > FOLDER/2030-01-31.json"),
        ", and name the folder in the configuration of the nodes, ", h("code", null, "admin.archive_audits: FOLDER"), ".");
    }
  }
  return { element, refresh };
}
