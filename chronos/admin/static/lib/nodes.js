// The nodes of a cluster, and what an operator may do with one.

import { post, reason } from "./api.js";
import { actButton } from "./caller.js";
import { badge, dialog, h, link, notice } from "./dom.js";
import { bytes, duration, number, plural, relative, time } from "./format.js";
import { look, service } from "./service.js";
import { nowMs } from "./state.js";
import { table } from "./table.js";

const NAMED = 12; // Shards named in one row; more are a number with a link.

/** A table of the nodes; `update()` takes the last answer. */
export function nodeTable() {
  const grid = table({
    caption: "Nodes", key: (row) => row.name, columns: [
      { name: "Node", cell: nameOf }, { name: "State", cell: (row) => [badge(...row.state), row.reasons.map((text) => h("div", { class: "why" }, text))], grow: true },
      { name: "Master of", grow: true, cell: ledBy }, { name: "Replicas", numeric: true, wide: true, cell: (row) => number(row.replicas) },
      { name: "Behind", numeric: true, cell: (row) => (row.behind === null ? "not known" : row.behind === undefined ? "–" : number(row.behind)) },
      { name: "Up", numeric: true, wide: true, cell: (row) => (row.startedAt ? duration(nowMs() - Date.parse(row.startedAt)) : "–") },
      { name: "Version", wide: true, cell: (row) => row.version ?? "–" }, { name: "", cell: actions },
    ],
  });
  return { element: grid.element, update: () => grid.update(rows(service.nodes)) };
}

function rows(found) {
  const most = new Map();
  for (const node of found.nodes) for (const { shard, applied } of node.shards) most.set(shard, Math.max(most.get(shard) ?? 0, applied ?? 0));
  const present = found.nodes.map((node, at) => {
    const held = node.shards.filter((replica) => replica.role !== "none");
    const state = node.leaving ? ["leaving", "warn"] : !node.ready ? ["not ready", "bad"] : node.drained ? ["drained", "warn"] : ["ready", "good"];
    return {
      name: node.node, address: at > 0 ? node.address : null, isAsked: at === 0, isController: node.node === found.controller, state, reasons: node.reasons,
      led: held.filter((replica) => replica.role === "master").map((replica) => replica.shard), replicas: held.length,
      behind: held.some((replica) => replica.applied === null) ? null : held.reduce((all, replica) => all + most.get(replica.shard) - replica.applied, 0),
      startedAt: node.started_at, version: node.version, isDrained: node.drained,
    };
  });
  const away = found.away.map((node) => ({ name: node.node, state: ["away", "bad"], reasons: [], since: node.since, led: [], replicas: node.shards.length }));
  const isWell = (row) => Number(row.state[1] === "good");
  return [...away, ...present.sort((one, other) => isWell(one) - isWell(other))];
}

function nameOf(row) {
  // The address that another node reports becomes a link only if it is an HTTP URL.
  const name = row.address && /^https?:\/\//.test(row.address) ? h("a", { href: row.address, rel: "noreferrer" }, row.name) : h("strong", null, row.name);
  const notes = [row.isAsked && "this node", row.isController && "controller"].filter(Boolean).join(", ");
  return [name, notes && h("span", { class: "soft" }, ` ${notes}`), row.since && h("div", { class: "soft" }, "since ", time(row.since))];
}

function ledBy(row) {
  if (!row.led.length) return "–";
  const text = row.led.length > NAMED ? `${number(row.led.length)} shards` : `${row.led.length === 1 ? "shard" : "shards"} ${row.led.join(", ")}`;
  return link("/ui/cluster", { node: row.name }, text);
}

function actions(row) {
  const button = (text, act) => actButton(text.toLowerCase(), { class: "small", onclick: () => act(row), "aria-label": `${text} ${row.name}` }, text);
  if (row.since) return button("Forget", forget);
  return row.isDrained ? button("Undrain", undrain) : button("Drain", drain);
}

async function drain(row) {
  const isSure = await dialog({
    title: `Drain ${row.name}?`, action: row.led.length ? `Hand over ${plural(row.led.length, "shard")}` : `Drain ${row.name}`, danger: true,
    body: row.led.length
      ? `${row.name} is master of ${plural(row.led.length, "shard")}. It hands them over to nodes in sync, and gets none until the drain is ended. Its replicas stay.`
      : `${row.name} is master of no shard, and gets none until the drain is ended. Its replicas stay.`,
  });
  if (isSure) await operate(row.name, "drain");
}

async function undrain(row) {
  const isSure = await dialog({ title: `End the drain of ${row.name}?`, action: `End the drain of ${row.name}`, body: `${row.name} may be master of shards again. The controller moves some to it.` });
  if (isSure) await operate(row.name, "undrain");
}

async function forget(row) {
  const isSure = await dialog({
    title: `Forget ${row.name}?`, action: `Forget ${row.name} and ${plural(row.replicas, "replica")}`, danger: true,
    body: h("div", null, h("p", null, `${row.name} is away (`, relative(row.since), `) and holds replicas of ${plural(row.replicas, "shard")}. No replica is kept in its place any longer, and the logs are no longer kept for it.`),
      h("p", null, "Forget only a node that will not come back with this data.")),
  });
  if (isSure) await operate(row.name, "forget");
}

const operate = (node, verb) => send(`/v1/nodes/${encodeURIComponent(node)}/${verb}`);

/** Send an operator's request, and say what came of it. */
export async function send(path, query) {
  notice("The request is on its way; it may take up to 13 s.");
  try {
    const { result, what } = await post(path, undefined, query);
    notice(result === "done" ? `Done: ${what}.` : `The controller has the request: ${what}. It is not done yet.`);
  } catch (error) {
    notice(reason(error), "bad");
  }
  await look({ force: true });
  document.dispatchEvent(new Event("chronos-refresh"));
}

/** The brokers that this node has sent messages to. */
export function brokerTable() {
  const grid = table({
    caption: "Brokers", key: (broker) => broker.broker, empty: "This node has sent nothing to a broker yet.", columns: [
      { name: "Broker", cell: (broker) => number(broker.broker) }, { name: "Acknowledges in", numeric: true, cell: (broker) => duration(broker.latency_ms) },
      { name: "State", cell: (broker) => (broker.unavailable_until ? [badge("avoided", "bad"), " until ", time(broker.unavailable_until)] : badge("in use", "good")) },
    ],
  });
  return { element: grid.element, update: (brokers) => grid.update(brokers) };
}

/** What a node says of itself, as pairs for a definition list. */
export function nodeFacts(node) {
  return [
    ["Node", node.node], ["State", badge(node.ready ? "ready" : "not ready", node.ready ? "good" : "bad")], ["Cluster", node.cluster],
    ["Log", node.log], ["Delay topic", node.delay_topic], ["Coordinator", node.coordinator], ["Version", node.version],
    ["Started", [time(node.started_at), " (", relative(node.started_at), ")"]], ["Free disk", bytes(node.disk_free_bytes)], ["Address", node.address], ["Instance", h("span", { class: "id" }, node.instance)],
  ];
}
