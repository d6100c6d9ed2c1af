// What the whole console needs to know of the service: its nodes and its shards, asked for once for everybody.

import { get, token } from "./api.js";
import { identify } from "./caller.js";
import { nowMs, setClock } from "./state.js";

const GAP_MS = 1900; // Time between two looks,
const COSTS = 8; // but at least so many times what the last one took: 1,000 shards are a large answer.
const GAP_MAX_MS = 15e3;
const WINDOW_MS = 60e3; // How far back the samples go.

/** The last answers. `nodes` is null until there is one. */
export const service = {
  nodes: null,
  shards: [],
  /** { at, totals, lateness: by shard } of the last minute, the oldest first. */
  samples: [],
  /** When the first request failed after the last answer, in ms; null: the service answers. */
  silentSince: null,
  /** Why the last request was refused (ApiError); null: it was not. */
  refused: null,
};

let looking = null;
let lookedAt = -Infinity;
let costMs = 0;

/** Ask for the nodes and the shards, unless that was done just now. Never throws. */
export function look({ force = false } = {}) {
  if (!force && service.silentSince === null && performance.now() - lookedAt < Math.min(GAP_MAX_MS, Math.max(GAP_MS, COSTS * costMs))) return looking ?? Promise.resolve();
  looking ??= ask().finally(() => { looking = null; });
  return looking;
}

async function ask() {
  const [began, sent] = [performance.now(), token()];
  try {
    const [nodes, { shards }] = await Promise.all([get("/v1/nodes"), get("/v1/shards", { copies: "masters" }), identify()]);
    setClock(nodes.nodes[0].now);
    Object.assign(service, { nodes, shards, silentSince: null, refused: null });
    // Of a shard of which no node answers, the totals are not known.
    if (shards.some((shard) => shard.node === null)) service.samples = [];
    else sample(shards);
  } catch (error) {
    if (error.status === undefined) throw error;
    if (error.status === 0) service.silentSince ??= nowMs();
    else Object.assign(service, { silentSince: null, refused: error });
  }
  lookedAt = performance.now();
  // The time in which somebody entered a token is no cost.
  costMs = token() === sent && service.refused === null ? lookedAt - began : 0;
}

/** A function that calls `ask` unless that was done in the last `gapMs`, or with `force`; after a failure it is done at once again. */
export function seldom(gapMs, ask) {
  let at = -Infinity;
  return async ({ force = false } = {}) => {
    if (!force && performance.now() - at < gapMs) return;
    at = performance.now();
    try {
      await ask();
    } catch (error) {
      at = -Infinity;
      throw error;
    }
  };
}

const READ_EVERY_MS = 30e3; // Reading a topic costs the service more than its counters: only so often, or when its total is another one,
const READ_COSTS = 8; // but then at least after so many times what the last reading took.

/** A function that calls `read(total)` to read a topic, but not more often than it is worth; `total()`: what the counters say of it, null if that is not known. With `force`, or after a failure, it is read at once. */
export function topicReader(total, read) {
  let [readAt, costMs, seen] = [-Infinity, 0, null];
  return async ({ force = false } = {}) => {
    const now = total();
    const isOther = seen !== null && now !== seen;
    if (!force && performance.now() - readAt < (isOther ? Math.min(READ_EVERY_MS, READ_COSTS * costMs) : READ_EVERY_MS)) {
      seen ??= now;
      return;
    }
    seen = now;
    readAt = performance.now();
    try {
      await read(now);
    } catch (error) {
      readAt = -Infinity;
      throw error;
    }
    costMs = performance.now() - readAt;
  };
}

/** The sum over all shards. */
export const sum = (pick) => service.shards.reduce((total, shard) => total + pick(shard), 0);

function sample(shards) {
  const at = performance.now();
  const total = (name) => shards.reduce((all, shard) => all + shard.totals[name], 0);
  const made = { at, rejected: total("rejected"), delivered: total("delivered"), dead: total("dead") + total("expired") };
  service.samples = [...service.samples.filter((each) => at - each.at <= WINDOW_MS), made];
}

/** How much a total ("delivered", "rejected", "dead") grew, and in how many ms, of at most the last minute; null: not known. */
export function growth(name) {
  const [first, last] = [service.samples[0], service.samples.at(-1)];
  if (first === last) return null;
  return { grown: Math.max(0, last[name] - first[name]), ms: last.at - first.at };
}

/** Whether it is a cluster, or a node that has not to share anything. */
export function isCluster(found = service.nodes) {
  return found.controller !== null || found.nodes.length > 1 || found.away.length > 0 || found.nodes[0].coordinator !== "standalone";
}
