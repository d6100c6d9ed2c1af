// The targets that the service knows of, put together from their counts, lanes, limits and recent dead letters.

import { isLike } from "./facets.js";
import { service } from "./service.js";

/** Lanes in an answer of the service, at most. */
export const LANES_MAX = 1000;

const WILDCARDS = /[*?[]/;

/**
 * One row for each known target: { topic, counters, perSecond, waiting, leaderless (partitions, -1 for all), emptyAt,
 * dead: [{ reason, messages }] of the last 10 minutes, unitless }.
 */
export function targetRows({ rates, lanes }, counters, before) {
  const rows = new Map();
  const row = (topic) => {
    if (!rows.has(topic)) rows.set(topic, { topic, counters: counters.of.get(topic) ?? null, perSecond: perSecond(topic, counters, before), waiting: 0, leaderless: [], emptyAt: null, dead: [], unitless: 0 });
    return rows.get(topic);
  };
  counters.of.forEach((_, topic) => row(topic));
  rates.filter((each) => !WILDCARDS.test(each.pattern)).forEach((each) => row(each.pattern));
  for (const lane of lanes) {
    const found = row(lane.topic);
    found.waiting += lane.messages;
    if (lane.waits_for === "leader") found.leaderless.push(lane.partition);
    else found.emptyAt = lane.empty_at;
  }
  for (const shard of service.shards) {
    for (const each of shard.dead_recently?.cases ?? []) addDead(row(each.target).dead, each);
    for (const [topic, count] of Object.entries(shard.unitless ?? {})) if (topic) row(topic).unitless += count;
  }
  return [...rows.values()];
}

function addDead(known, each) {
  const same = known.find((other) => other.reason === each.reason);
  if (same) same.messages += each.messages;
  else known.push({ reason: each.reason, messages: each.messages });
}

/** The limit in force: the service lists them in the order in which they are looked for. */
export const limitOf = (topic, rates) => rates.find((each) => isLike(topic, each.pattern)) ?? null;

function perSecond(topic, now, before) {
  const [last, first] = [now.of.get(topic)?.delivered, before?.of.get(topic)?.delivered];
  return last === undefined || first === undefined || now.at === before.at ? null : Math.max(0, last - first) / ((now.at - before.at) / 1000);
}
