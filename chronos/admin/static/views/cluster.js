// The cluster: its nodes, the shards with their replicas, why roles changed, and what an operator may do about it.

import { get } from "../lib/api.js";
import { card, facts, h, link, replace } from "../lib/dom.js";
import { filterForm } from "../lib/filters.js";
import { number, plural, relative, time } from "../lib/format.js";
import { brokerTable, nodeFacts, nodeTable } from "../lib/nodes.js";
import { isCluster, look, seldom, service } from "../lib/service.js";
import { matching, shardTable } from "../lib/shards.js";
import { table } from "../lib/table.js";

const NOTES_MS = 30e3; // Between two questions about what the node notes.
const CHANGES = 10; // Rows of the history until all are asked for.

export function mount(root, { path, query }) {
  let parts = null;
  replace(root, h("h1", null, "Cluster"));

  /** Once it is known whether it is a cluster. */
  function build() {
    parts = isCluster()
      ? [nodes(), shards(path, query), changes(path, query), about(), brokers()]
      : [about(), shards(path, query), brokers()];
    root.append(h("div", { class: "grid" }, parts.map((part) => part.element)));
  }

  async function refresh() {
    await look();
    if (service.nodes === null || service.refused !== null) return;
    if (parts === null) build();
    for (const part of parts) part.update();
  }

  return { refresh, title: "Cluster" };
}

function about() {
  const element = card("This node", { class: "wide" });
  const list = h("div");
  element.append(list);
  let shown = "";
  let notes = [];

  /** What an operator should know of a node that is ready; one that is not has its reasons in the answer about nodes. */
  const ask = seldom(NOTES_MS, async () => {
    notes = (await get("/readyz").catch(() => null))?.details ?? [];
    update();
  });

  function update() {
    const node = service.nodes.nodes[0];
    const next = JSON.stringify([node.ready, node.reasons, node.disk_free_bytes, notes]);
    if (next === shown) return;
    shown = next;
    const listed = facts(nodeFacts(node));
    listed.classList.add("columns");
    replace(list, listed, [...node.reasons, ...notes].map((text) => h("p", { class: "why" }, text)));
  }

  return { element, update() { update(); ask(); } };
}

function nodes() {
  const grid = nodeTable();
  const note = h("p", { class: "soft" });
  return {
    element: card("Nodes", { class: "wide" }, note, grid.element),
    update() {
      const found = service.nodes;
      const controller = found.controller === null ? "No node is controller" : `${found.controller} is controller (epoch ${found.controller_epoch})`;
      note.textContent = `${controller}. Behind: progress records that the replicas of a node have not applied yet, all shards together.`;
      grid.update();
    },
  };
}

function shards(path, query) {
  const grid = shardTable(path, query);
  const note = h("p", { class: "soft" });
  const names = service.nodes.nodes.map((node) => node.node).concat(service.nodes.away.map((node) => node.node));
  const form = filterForm({
    path, query, keep: ["changes"], label: "Filter the shards", fields: [
      { name: "shard", label: "Shards", placeholder: "3, 40-60", pattern: "[0-9, \\-]*", title: "Numbers and ranges: 3, 40-60" },
      ...(isCluster() ? [{ name: "node", label: "Node with a replica", suggestions: names }] : []),
      { name: "state", label: "State", type: "select", options: [["", "all"], ["trouble", "with a problem"]] },
    ],
  });
  return {
    element: card("Shards", { class: "wide" }, form, note, grid.element),
    update() {
      const found = matching(query);
      const total = (pick) => found.reduce((all, shard) => all + pick(shard), 0);
      note.textContent = `${plural(found.length, "shard")} of ${number(service.shards.length)}: ${plural(total((shard) => shard.pending), "message is", "messages are")} pending, ${plural(total((shard) => shard.lag ?? 0), "record is", "records are")} not applied yet.`;
      grid.update(found);
    },
  };
}

function changes(path, query) {
  const isAll = query.get("changes") === "all";
  const grid = table({
    caption: "Changes of roles", key: (change) => `${change.at} ${change.shard} ${change.epoch} ${change.master}`, empty: "No role has changed yet.", columns: [
      { name: "When", cell: (change) => time(change.at) }, { name: "", wide: true, cell: (change) => relative(change.at) },
      { name: "Shard", numeric: true, cell: (change) => (change.shard < 0 ? "the node" : String(change.shard)) },
      { name: "Master", cell: (change) => [change.previous && change.previous !== change.master && `${change.previous} → `, h("strong", null, change.master ?? "none")] },
      { name: "Epoch", numeric: true, wide: true, cell: (change) => number(change.epoch) }, { name: "Reason", grow: true, cell: (change) => change.why },
    ],
  });
  const more = h("p", { class: "more" });
  const others = Object.fromEntries([...query].filter(([name]) => name !== "changes"));
  return {
    element: card("Why roles changed", { class: "wide" }, grid.element, more),
    update() {
      const { history } = service.nodes;
      grid.update(history.slice(0, isAll ? history.length : CHANGES));
      more.hidden = history.length <= CHANGES;
      if (!more.hidden && !more.firstChild) more.append(link(path, { ...others, changes: isAll ? null : "all" }, isAll ? `The last ${CHANGES} only` : `All ${history.length}`));
    },
  };
}

function brokers() {
  const grid = brokerTable();
  const element = card("Brokers, as this node measures them", { class: "wide" }, grid.element);
  return {
    element,
    update() {
      const found = service.nodes.nodes[0].brokers ?? [];
      element.hidden = found.length === 0;
      grid.update([...found].sort((one, other) => other.latency_ms - one.latency_ms).slice(0, 100));
    },
  };
}
