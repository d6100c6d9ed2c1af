// The shards, page by page, and the transfer of one to another node.

import { actButton } from "./caller.js";
import { address, badge, dialog, h, link } from "./dom.js";
import { bytes, duration, ms, number, relative, timeText } from "./format.js";
import { send } from "./nodes.js";
import { isCluster, service } from "./service.js";
import { nowMs } from "./state.js";
import { table } from "./table.js";
import { shardTroubles } from "./trouble.js";

const PAGE = 25;

/** The shards of a query: `shard` (numbers and ranges), `node`, and `state` (trouble). */
export function matching(query) {
  const wanted = numbers(query.get("shard"));
  const node = query.get("node");
  const isTrouble = query.get("state") === "trouble";
  return service.shards.filter((shard) => (wanted === null || wanted.some(([from, to]) => from <= shard.shard && shard.shard <= to))
    && (!node || shard.master === node || shard.replicas.some((replica) => replica.node === node && replica.role !== "none"))
    && (!isTrouble || shardTroubles(shard).length > 0));
}

/** "3, 40-60" as ranges; null: all. */
function numbers(text) {
  const found = [...(text ?? "").matchAll(/(\d+)(?:\s*-\s*(\d+))?/g)].map(([, from, to]) => [Number(from), Number(to ?? from)]);
  return found.length ? found : null;
}

/** One page of the shards; `update(shards)` takes all that match. */
export function shardTable(path, query) {
  const many = isCluster();
  const grid = table({
    caption: "Shards", key: (shard) => shard.shard, empty: "No shard matches.", columns: [
      { name: "Shard", numeric: true, cell: (shard) => String(shard.shard) },
      { name: many ? "Master" : "Role", cell: state, grow: true },
      ...(many ? [{ name: "Followers", cell: followers, grow: true }] : []),
      { name: "Epoch", numeric: true, wide: true, cell: (shard) => (many ? h("span", { title: "Role epoch, given out by the controller / log epoch, counted in the progress log" }, `${shard.epoch.role} / ${shard.epoch.log}`) : String(shard.epoch.log)) },
      { name: "Pending", numeric: true, cell: (shard) => number(shard.pending) },
      { name: "Next due", numeric: true, cell: (shard) => (shard.oldest_overdue_ms > 1000 ? h("span", { class: "why" }, `overdue ${duration(shard.oldest_overdue_ms)}`) : relative(shard.next_due_at)) },
      { name: "Lag", numeric: true, cell: (shard) => number(shard.lag) },
      { name: "Late p50", numeric: true, wide: true, cell: (shard) => late(shard, "p50_ms") }, { name: "p99", numeric: true, wide: true, cell: (shard) => late(shard, "p99_ms") },
      { name: "Delivered", numeric: true, wide: true, cell: (shard) => number(shard.totals.delivered) },
      ...(many ? [] : [{ name: "Rejected", numeric: true, wide: true, cell: (shard) => number(shard.totals.rejected) }]),
      { name: "Dead", numeric: true, wide: true, cell: (shard) => number(shard.totals.dead + shard.totals.expired) }, { name: "Store", numeric: true, wide: true, cell: (shard) => bytes(shard.store_bytes) },
      ...(many ? [{ name: "", cell: (shard) => actButton("transfer", { class: "small", onclick: () => transfer(shard), "aria-label": `Transfer shard ${shard.shard}` }, "Transfer") }] : []),
    ],
  });
  const pager = h("p", { class: "pager" });
  const page = Math.max(1, Number(query.get("page")) || 1);
  const others = Object.fromEntries([...query].filter(([name]) => name !== "page"));

  function update(shards) {
    const pages = Math.max(1, Math.ceil(shards.length / PAGE));
    const here = Math.min(page, pages);
    grid.update(shards.slice((here - 1) * PAGE, here * PAGE));
    const text = `${number((here - 1) * PAGE + 1)} to ${number(Math.min(here * PAGE, shards.length))} of ${number(shards.length)} shards`;
    const parts = [text, here > 1 && link(path, { ...others, page: here === 2 ? null : here - 1 }, "Previous"), here < pages && link(path, { ...others, page: here + 1 }, "Next")].filter(Boolean);
    pager.hidden = pages === 1;
    const isSame = pager.dataset.at === `${text} ${address(path, others)}`;
    if (!isSame) pager.replaceChildren(...parts);
    pager.dataset.at = `${text} ${address(path, others)}`;
  }

  return { element: h("div", null, grid.element, pager), update };
}

const late = (shard, name) => (shard.lateness.count === 0 ? "–" : shard.lateness[name] === null ? "> 1 h" : `≤ ${duration(shard.lateness[name])}`);

function state(shard) {
  const leads = shard.replicas.some((replica) => replica.node === shard.master && replica.role === "master");
  const word = shard.node === null ? ["no answer", "bad"]
    : shard.paused ? [isCluster() && shard.master ? `${shard.master}, paused` : "paused", "bad"]
      : !isCluster() ? [shard.role, shard.role === "master" ? "good" : "warn"]
        : shard.master === null ? ["no master", "bad"] : leads ? [shard.master, "good"] : [`${shard.master}, taking over`, "warn"];
  return [badge(...word), shard.master_since && h("div", { class: "soft", title: timeText(shard.master_since, "full") }, `for ${duration(nowMs() - ms(shard.master_since))}`), shardTroubles(shard).map((text) => h("div", { class: "why" }, text))];
}

function followers(shard) {
  const held = shard.replicas.filter((replica) => replica.role !== "none" && (replica.role !== "master" || replica.node !== shard.master));
  if (!held.length) return "–";
  return h("div", { class: "chips" }, held.map((replica) => {
    const isSettled = replica.role === "master" || replica.role === "follower";
    const notes = [isSettled ? "" : replica.role, replica.lag ? `${number(replica.lag)} behind` : replica.lag === null ? "lag not known" : ""].filter(Boolean).join(", ");
    return h("span", { class: `chip ${isSettled ? "" : "bad"}` }, replica.node, notes && h("small", null, notes));
  }));
}

async function transfer(shard) {
  const others = shard.replicas.filter((replica) => replica.node !== shard.master && replica.role !== "none").map((replica) => {
    const node = service.nodes.nodes.find((each) => each.node === replica.node);
    const notes = [replica.lag === null ? "lag not known" : replica.lag ? `${number(replica.lag)} records behind` : "in step", node?.drained && "drained", node && !node.ready && "not ready", !node && "away"].filter(Boolean);
    return { name: replica.node, text: `${replica.node} (${notes.join(", ")})`, isFit: Boolean(node?.ready) && !node.drained, lag: replica.lag ?? Infinity };
  }).sort((one, other) => Number(other.isFit) - Number(one.isFit) || one.lag - other.lag);
  if (!others.length) {
    await dialog({ title: `Shard ${shard.shard} cannot be transferred`, action: "Close", back: null, body: "No other node has a replica of it." });
    return;
  }
  const choice = h("select", { id: "transfer-to" }, others.map((each) => h("option", { value: each.name }, each.text)));
  const to = await dialog({
    title: `Transfer shard ${shard.shard}?`, action: `Transfer shard ${shard.shard}`, read: () => choice.value,
    body: h("div", null,
      h("p", null, `${shard.master ?? "No node"} is its master. ${number(shard.pending)} messages are pending in it; they wait for the moment that the transfer takes.`),
      h("label", { for: "transfer-to" }, "New master"), choice),
  });
  if (to) await send(`/v1/shards/${shard.shard}/transfer`, { to });
}
