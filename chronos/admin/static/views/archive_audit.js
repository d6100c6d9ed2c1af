// One audit of the archive: what became of the messages that were due in its window.

import { get } from "../lib/api.js";
import { late, messages, period, verdict } from "../lib/audits.js";
import { copyButton } from "../lib/copy.js";
import { card, facts, h, link, replace, segment } from "../lib/dom.js";
import { number, plural, relative, time } from "../lib/format.js";
import { table } from "../lib/table.js";

const SOFT = { class: "soft" };
const count = (row, outcome) => number(row.counts[outcome] ?? 0);
const RESULT = [
  { name: "Messages", numeric: true, cell: (row) => number(messages(row.counts)) },
  ...["Missing", "Duplicated", "Early"].map((name) => ({ name, numeric: true, cell: (row) => count(row, name.toLowerCase()) })),
  { name: "Late p50", numeric: true, cell: (row) => late(row.lateness.p50_ms) },
  { name: "p99", numeric: true, cell: (row) => late(row.lateness.p99_ms) },
  { name: "Max", numeric: true, cell: (row) => late(row.lateness.max_ms) },
];

export function mount(root, { id }) {
  const content = h("div", { class: "letter" });
  replace(root, h("h1", null, "Audit ", h("span", { class: "id", dir: "auto" }, id)), content);

  async function refresh() {
    const audit = await get(`/v1/archive-audits/${segment(id)}`);
    replace(content, summary(audit),
      h("div", { class: "grid" },
        card("Outcomes", { class: "half start" }, outcomes(audit)),
        card("Broken promises", { class: "half start" }, samples(audit)),
        card("Targets", { class: "wide" }, table({
          caption: "Targets", rows: audit.targets, key: (row) => row.target ?? "", empty: "No message was due.",
          columns: [{ name: "Target", grow: true, cell: (row) => (row.target === undefined ? h("span", SOFT, "none") : link("/ui/targets", { target: row.target }, row.target)) }, ...RESULT],
        }).element),
        card("Worst times", { class: "wide" }, table({
          caption: "Worst times", rows: audit.worst, key: (row) => row.at, empty: "Nothing was late, missing, duplicated or early.",
          columns: [{ name: "From", grow: true, cell: (row) => time(row.at) }, ...RESULT],
        }).element)));
  }

  return { refresh, close() {}, live: false, title: `Audit ${id}` };
}

function summary(audit) {
  return card("Result", null,
    h("p", null, verdict(audit)),
    facts([
      ["Messages due", period(audit)],
      ["Cluster", audit.cluster],
      ["Judged until", time(audit.judged_until)],
      ["Archived until", audit.archived === null ? h("span", SOFT, "not yet") : time(audit.archived)],
      ["Written", [time(audit.written_at), " ", h("span", SOFT, "(", relative(audit.written_at), ")")]],
      ["Not proved", audit.not_proved.length ? audit.not_proved.map((why) => h("div", null, why)) : null],
      ["What to do", todo(audit)],
    ]),
    h("div", { class: "acts" }, copyButton("Copy as JSON", () => JSON.stringify(audit, null, 2))));
}

function todo(audit) {
  const pending = audit.counts.pending ?? 0;
  if (audit.verdict === "clean") return pending ? `Nothing. ${plural(pending, "message")} due right before the end of the archive will be judged by the next audit.` : "Nothing: every message has its outcome.";
  const again = pending > 0 && ["Pending ones: run ", h("code", null, "chronos archive"), " again, and then the audit. "];
  if (audit.verdict === "not-proved") return [again, audit.counts.unknown > 0 && ["Unknown ones cannot be judged. ", command("--gone --target TARGET"), " sends those that are not in their target."]];
  return ["Keep the archive, and report what was broken. ", audit.counts.missing > 0 && [command(`--from ${audit.from} --to ${audit.to} --missing-only`), " sends the missing messages again."]];
}

const command = (options) => h("code", null, `chronos backfill --location LOCATION ${options}`);

function outcomes(audit) {
  const whys = (outcome) => audit.reasons.filter((each) => each.outcome === outcome && each.reason !== null).map((each) => `${each.reason} ${number(each.count)}`).join(", ");
  return table({
    caption: "Outcomes", rows: Object.entries(audit.counts).map(([outcome, many]) => ({ outcome, many })), key: (row) => row.outcome, empty: "No message was due.",
    columns: [
      { name: "Outcome", cell: (row) => row.outcome },
      { name: "Messages", numeric: true, cell: (row) => number(row.many) },
      { name: "Reasons", grow: true, cell: (row) => h("span", SOFT, whys(row.outcome)) },
    ],
  }).element;
}

function samples(audit) {
  return table({
    caption: "Broken promises", rows: audit.samples.map((each, at) => ({ ...each, at })), key: (each) => each.at, empty: "None.",
    columns: [
      { name: "Outcome", cell: (each) => each.outcome },
      { name: "Target", grow: true, cell: (each) => each.target ?? h("span", SOFT, "none") },
      { name: "Due from", cell: (each) => time(each.due_minute, "minute") },
      { name: "Record", cell: (each) => `shard ${each.shard}, offset ${number(each.offset)}` },
    ],
  }).element;
}
