// What waits, for what, and until when.

import { get } from "./api.js";
import { card, link } from "./dom.js";
import { duration, number, relative } from "./format.js";
import { isCluster, seldom, service } from "./service.js";
import { nowMs } from "./state.js";
import { table } from "./table.js";
import { LANES_MAX } from "./targets.js";
import { shardsText } from "./trouble.js";

const ROWS = 20;
const EVERY_MS = 10e3;
const OVERDUE_MS = 1000;

/** The card, which is hidden while nothing waits. */
export function waiting() {
  const grid = table({
    caption: "What waits", key: (row) => row.key, columns: [
      { name: "What", cell: (row) => row.what }, { name: "Waits for", grow: true, cell: (row) => row.waitsFor },
      { name: "Number", numeric: true, cell: (row) => row.count }, { name: "Until", numeric: true, cell: (row) => row.until ?? "–" },
    ],
  });
  const element = card("What waits", { class: "wide" }, grid.element);
  element.hidden = true;
  let lanes = [];
  const ask = seldom(EVERY_MS, async () => {
    lanes = (await get("/v1/rates")).lanes;
    draw();
  });

  /** The shards are known already, also while the lanes cannot be asked for. */
  async function refresh() {
    const isParked = service.shards.some((shard) => shard.parked > 0);
    if (!isParked) lanes = [];
    draw();
    if (isParked) await ask();
  }

  function draw() {
    const causes = ofShards();
    const shown = [...causes.slice(0, ROWS).map(ofCause), ...lanes.slice(0, Math.max(0, ROWS - causes.length)).map(ofLane)];
    const rest = causes.length + lanes.length - shown.length;
    if (rest > 0) shown.push({ key: "more", what: `${lanes.length < LANES_MAX ? "" : "at least "}${number(rest)} more`, waitsFor: link("/ui/targets", null, "Targets"), count: "" });
    grid.update(shown);
    element.hidden = shown.length === 0;
  }

  return { element, refresh };
}

function ofLane(lane) {
  const name = lane.partition === null || lane.partition < 0 ? lane.topic : `${lane.topic}, partition ${lane.partition}`;
  return {
    key: `lane ${name} ${lane.waits_for}`, what: ["Messages for ", link("/ui/targets", { target: lane.topic }, name)],
    waitsFor: lane.waits_for === "rate" ? `its rate, ${lane.rate}` : "a leader of the partition",
    count: number(lane.messages), until: lane.empty_at && relative(lane.empty_at),
  };
}

/** What shards wait for; those that wait for the same are together. */
function ofShards() {
  const rows = new Map();
  const add = (what, waitsFor, shard, count) => {
    const key = `${what} ${waitsFor}`;
    const row = rows.get(key) ?? rows.set(key, { key, what, waitsFor, shards: [], total: 0 }).get(key);
    row.shards.push(shard.shard);
    row.total += count;
  };
  for (const shard of service.shards) {
    if (shard.node === null) add("All messages", "a node with a replica", shard, shard.pending);
    else if (shard.paused) add("All messages", `the end of a pause: ${shard.paused}`, shard, shard.pending);
    else if (isCluster() && shard.master === null) add("All messages", "a master", shard, shard.pending);
    else if (shard.waits_for) add("Deliveries", shard.waits_for, shard, shard.pending);
    else if (shard.oldest_overdue_ms > OVERDUE_MS) add("Due messages", "their turn", shard, shard.pending);
    if (shard.held) add("Records", "a partition that takes them, to be forwarded or rejected", shard, shard.held);
    if (shard.held_back) add("Records", `the end of a producer's transaction, open for ${duration(nowMs() - Date.parse(shard.held_back.since))}`, shard, shard.held_back.records);
  }
  return [...rows.values()];
}

function ofCause(row) {
  return {
    key: row.key, what: [`${row.what} of `, link("/ui/cluster", row.shards.length === 1 ? { shard: row.shards[0] } : { state: "trouble" }, shardsText(row.shards))],
    waitsFor: row.waitsFor, count: number(row.total),
  };
}
