// Records that were refused: how many by reason, target and partition, a list, and one as it was sent.

import { get } from "../lib/api.js";
import { badge, card, facts, h, link, replace, segment } from "../lib/dom.js";
import { copyButton } from "../lib/copy.js";
import { countNote, counter } from "../lib/counts.js";
import { facet, isLike, showFacets, sums } from "../lib/facets.js";
import { filterForm } from "../lib/filters.js";
import { bytes, number, relative, time } from "../lib/format.js";
import { headerList } from "../lib/headers.js";
import { askPage, pager } from "../lib/pages.js";
import { payload } from "../lib/payload.js";
import { conditions, PERIOD } from "../lib/period.js";
import { aboutReason, rejectedReasons, whyRejected } from "../lib/reasons.js";
import { service, sum, topicReader } from "../lib/service.js";
import { table } from "../lib/table.js";

const PATH = "/ui/rejected";
const PAGE = 100;

export function mount(root, params) {
  return params.id === null ? mountList(root, params) : mountRecord(root, params);
}

function mountList(root, { query }) {
  const by = query.get("by") || undefined; // The header by whose values the records are counted.
  const chosen = () => ({ ...conditions(query, ["target", "reason", "source", "id"]), header: query.getAll("header") });
  const counts = counter({
    path: "/v1/rejected-counts", size: "records", period: `${query.get("since")} ${query.get("until")} ${by}`, show: showCounts,
    query: () => ({ since: chosen().since, until: chosen().until, by_header: by }),
  });
  const facets = h("div", { class: "breakdown", hidden: true });
  const pages = h("div", { class: "pager", hidden: true });
  const list = table({
    caption: "Rejected records", key: (record) => `${record.partition}/${record.offset}`, empty: "No rejected records match. Records that Chronos refuses appear here with the reason.",
    columns: [
      { name: "Rejected", cell: (record) => relative(record.rejected_at) },
      { name: "Key", grow: true, cell: recordLink },
      { name: "Target", cell: (record) => record.topic || h("span", { class: "soft" }, "–") },
      { name: "Reason", cell: (record) => badge(record.reason, "bad") },
      { name: "Detail", grow: true, cell: (record) => record.detail },
      { name: "Position", cell: (record) => h("span", { class: "soft" }, record.source) },
      { name: "Size", numeric: true, cell: (record) => bytes(record.value_bytes) },
    ],
  });
  const given = query.get("reason");
  const reasons = given && !rejectedReasons.includes(given) ? [...rejectedReasons, given] : rejectedReasons;
  replace(root,
    h("h1", null, "Rejected records"),
    h("section", { class: "card", "aria-label": "Rejected records" },
      filterForm({
        path: PATH, query, label: "Filter the rejected records",
        fields: [
          { name: "reason", label: "Reason", type: "select", options: [["", "any"], ...reasons.map((each) => [each, each])] },
          { name: "target", label: "Target", placeholder: "orders, or orders.*", maxlength: 249 },
          { name: "id", label: "Key" },
          { name: "source", label: "Position", placeholder: "chronos.delay/3" }, ...PERIOD,
          { name: "header", label: "Headers, a name=value a line", type: "lines", placeholder: "app=shop", more: true },
          { name: "by", label: "Count by the header", placeholder: "app", title: "The name of a header, such as one with the name of the producer", more: true },
        ],
      }),
      facets, aboutReason(query.get("reason"), whyRejected), list.element, pages,
      h("p", { class: "soft note" }, "A record does not say which client wrote it: have each producer write a header with its name, and count and filter by it under More conditions.")));

  const refresh = topicReader(() => service.nodes && sum((shard) => shard.totals.rejected), (total) => {
    counts.refresh(total);
    return page();
  });

  async function page() {
    const asked = chosen();
    const found = await askPage(() => get("/v1/rejected", { ...asked, limit: PAGE, after: query.get("after") }), { path: PATH, query });
    if (found === null) return;
    list.update(found.rejected);
    pager(pages, { path: PATH, query, found, count: found.rejected.length, what: "records", next: { since: asked.since, until: asked.until } });
  }

  function showCounts({ rows, ...known }) {
    const given = { target: query.get("target"), reason: query.get("reason"), source: query.get("source"), header: query.get("header") };
    const fits = {
      topic: (row) => isLike(row.topic, given.target), reason: (row) => !given.reason || row.reason === given.reason,
      source: (row) => !given.source || `${given.source}/`.startsWith(`${row.source}/`),
    };
    if (by) fits.header = (row) => !given.header?.startsWith(`${by}=`) || row.header === given.header;
    const named = by ? rows.map((row) => ({ ...row, header: row.header && `${by}=${row.header}` })) : rows;
    const made = (label, name, field) => facet({
      label, name, path: PATH, query, title: (value) => (field === "reason" ? whyRejected(value)[0] : null),
      counts: sums(named.filter((row) => Object.entries(fits).every(([each, fit]) => each === field || fit(row))), field, "records"),
    });
    showFacets(facets, rows.length === 0 ? [] : [made("By reason", "reason", "reason"), made("By target", "target", "topic"), made("By partition", "source", "source"), by && made(`By ${by}`, "header", "header")].filter(Boolean),
      countNote(known));
  }

  return { refresh, close: counts.close };
}

/** A record without a key is found by its position. */
function recordLink(record) {
  const made = link(`${PATH}/${segment(record.id || record.source)}`, null, record.id || record.source);
  made.setAttribute("class", "id");
  made.setAttribute("dir", "auto");
  return made;
}

function mountRecord(root, { id, query }) {
  const content = h("div", { class: "letter" });
  replace(root, h("h1", null, "Rejected record ", h("span", { class: "id", dir: "auto" }, id)), content);

  /** Once: an answer with a payload makes an entry in the audit trail. */
  async function refresh() {
    const record = await get(`/v1/rejected/${segment(id)}`);
    const isHidden = record.value === undefined && record.value_base64 === undefined;
    const keepMode = (mode) => {
      query.set("as", mode);
      history.replaceState(null, "", `${location.pathname}?${query}`);
    };
    replace(content, whyCard(record),
      h("div", { class: "grid" },
        card("Record", { class: "half" }, facts([
          ["Key", record.id ? h("span", { class: "id", dir: "auto" }, record.id) : h("span", { class: "soft" }, "none, or lost because the record was too large")],
          ["Target", record.topic ? link(PATH, { target: record.topic }, record.topic) : h("span", { class: "soft" }, "none, or several")],
          ["Rejected", [time(record.rejected_at), " ", h("span", { class: "soft" }, "(", relative(record.rejected_at), ")")]],
          ["Position", h("span", { class: "mono" }, record.source)],
          ["Rejected topic", `partition ${record.partition}, offset ${number(record.offset)}`],
        ])),
        card("Headers", { class: "half" }, headerList(record.headers, { isHidden })),
        card("Payload", { class: "wide" }, payload(record, { mode: query.get("as") ?? undefined, onMode: keepMode }))));
  }

  return { refresh, close() {}, live: false, title: `Rejected record ${id}` };
}

function whyCard(record) {
  const [what, todo] = whyRejected(record.reason);
  return card("Why it was rejected", null,
    h("p", null, badge(record.reason, "bad")),
    facts([
      ["What was wrong", what], ["Detail", h("span", { class: "why" }, record.detail)], ["At the producer", todo],
      ["Then", "Write the corrected record to the delay topic again. Nothing else sends it: a rejected record is never delivered."],
    ]),
    h("div", { class: "acts" },
      copyButton("Copy as JSON", () => JSON.stringify(record, null, 2)),
      copyButton("Copy the command", () => `chronos rejected show ${quoted(record.id || record.source)}`),
      record.id && link(`/ui/messages/${segment(record.id)}`, null, "The message with this id")));
}

/** A text as one word of a shell. */
const quoted = (text) => (/^[\w./:@-]+$/.test(text) && !text.startsWith("-") ? text : `${text.startsWith("-") ? "-- " : ""}'${text.replace(/'/g, "'\\''")}'`);
