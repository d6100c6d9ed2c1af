// What is wrong with the service, in the words and with the judgement of `chronos top` and `chronos doctor`.

import { duration, number, plural } from "./format.js";
import { nowMs } from "./state.js";
import { growth, isCluster, service } from "./service.js";

const RUNS = 8; // Runs of shards named in one line.
const CAUSES = 3; // Named in one line.
const OVERDUE_MS = 60e3; // A shard whose next message is overdue by more is a problem.

// What to do next: the view that shows it, the command, and the runbook in docs/operations.
const NOT_READY = { view: "Cluster", path: "/ui/cluster", command: "chronos doctor", runbook: "not-ready" };
const PAUSED = { view: "Cluster", path: "/ui/cluster", query: { state: "trouble" }, command: "chronos doctor", runbook: "paused" };
const LATE = { view: "Cluster", path: "/ui/cluster", query: { state: "trouble" }, command: "chronos doctor", runbook: "late" };
const UNITLESS = { ...LATE, view: "Targets", path: "/ui/targets", query: null };
const ROLES = { view: "Cluster", path: "/ui/cluster", command: "chronos failover status", runbook: "roles" };
const DEAD = { view: "Dead letters", path: "/ui/dead-letters", command: "chronos dead-letters list", runbook: "dead-letters" };
const REJECTED = { view: "Rejected", path: "/ui/rejected", command: "chronos rejected count --by reason,target", runbook: "dead-letters" };

/** "shard 3", or "shards 0 to 3, 7"; of many runs the first ones. */
export function shardsText(numbers) {
  const runs = [];
  for (const each of [...numbers].sort((one, other) => one - other)) {
    const last = runs.at(-1);
    if (last && each === last[1] + 1) last[1] = each;
    else runs.push([each, each]);
  }
  const named = runs.length > RUNS + 1 ? runs.slice(0, RUNS) : runs;
  const names = named.map(([from, to]) => (to - from > 1 ? `${from} to ${to}` : to > from ? `${from}, ${to}` : `${from}`));
  const rest = runs.slice(named.length).reduce((all, [from, to]) => all + to - from + 1, 0);
  return `${numbers.length === 1 ? "shard" : "shards"} ${names.join(", ")}${rest ? ` and ${number(rest)} more` : ""}`;
}

/** The shards by a text that says what is wrong with each; shards without one are left out. */
function byText(shards, tell) {
  const found = new Map();
  for (const shard of shards) {
    const text = tell(shard);
    if (text) found.set(text, [...(found.get(text) ?? []), shard.shard]);
  }
  return [...found].map(([text, numbers]) => `${shardsText(numbers)}: ${text}`);
}

const tooFew = (shard) => shard.in_sync_missing
  && `${shard.in_sync_needed - shard.in_sync_missing} of ${shard.in_sync_needed} followers in sync (replication.min_in_sync): ${(shard.in_sync ?? []).join(", ") || "none"}. Start the nodes that are down`;
const overdue = (shard) => !shard.paused && shard.oldest_overdue_ms > OVERDUE_MS
  && `its next message is overdue by ${duration(shard.oldest_overdue_ms)}, ${number(shard.pending)} are pending`;
const unhealthy = (shard) => shard.unhealthy && `the probes of ${shard.unhealthy.join(", ")} find the master unhealthy`;
const heldBack = (shard) => shard.held_back && `${plural(shard.held_back.records, "record is", "records are")} held back by a producer's open transaction, for ${duration(nowMs() - Date.parse(shard.held_back.since))}`;
const unitless = (shard) => shard.unitless && `records have a delay or a spread from 1 to 999 without a unit, which is milliseconds: ${
  Object.entries(shard.unitless).map(([target, count]) => `${target || "actions"} (${number(count)})`).join(", ")}. If their producers mean seconds, have them write 30s`;

/** What was dead-lettered in the last 10 minutes, all shards together: { messages, lastAt, cases }; null: nothing. */
export function deadRecently(shards) {
  const dying = shards.map((shard) => shard.dead_recently).filter(Boolean);
  if (!dying.length) return null;
  const cases = new Map();
  for (const each of dying.flatMap((found) => found.cases)) {
    const key = `${each.reason} for ${each.target || "no target"}`;
    cases.set(key, { ...each, messages: each.messages + (cases.get(key)?.messages ?? 0) });
  }
  const sorted = [...cases.values()].sort((one, other) => other.messages - one.messages);
  const messages = dying.reduce((all, found) => all + found.messages, 0);
  return { messages, lastAt: dying.map((found) => found.last_at).sort().at(-1), cases: sorted };
}

function failed(shards) {
  const found = deadRecently(shards);
  if (found === null) return [];
  const causes = found.cases.slice(0, CAUSES).map((each) => `${each.reason} for ${each.target || "no target"} (${number(each.messages)})`);
  return [`${plural(found.messages, "message was", "messages were")} dead-lettered in the last 10 min: ${causes.join(", ")}`];
}

/** What is wrong with one shard, as short texts; for its row in a table. */
export function shardTroubles(shard) {
  if (shard.node === null) return ["no node with a replica of it answers"];
  return [shard.paused, shard.master === null && isCluster() && "its messages wait for a master", overdue(shard), tooFew(shard), unhealthy(shard), shard.waits_for, heldBack(shard), shard.dead_recently?.text].filter(Boolean);
}

/**
 * All that is wrong, problems first: { text, next, isProblem, kind }. kind says what it means for the messages: "down",
 * "wait" or "fail".
 */
export function troubles() {
  const { nodes: found, shards } = service;
  if (found === null) return [];
  const made = [];
  const add = (next, texts, kind = "wait", isProblem = true) => texts.forEach((text) => made.push({ text, next, kind, isProblem }));
  const many = isCluster();
  const named = found.nodes.flatMap((node) => node.reasons);
  const here = shards.filter((shard) => shard.node !== null);
  const vacant = many ? here.filter((shard) => shard.master === null).map((shard) => shard.shard) : [];
  if (!found.sure) add(ROLES, ["The coordinator does not answer; roles stay as they are, and no node gets a new one."], "down");
  add(NOT_READY, found.nodes.flatMap((node, at) => node.reasons.map((reason) => (at === 0 && !many ? reason : `node ${node.node}: ${reason}`))), "down");
  add(ROLES, found.away.map((away) => `node ${away.node} holds ${shardsText(away.shards)}, and has been away for ${duration(nowMs() - Date.parse(away.since))}. Start it, or forget it if it will not come back.`), "down");
  if (vacant.length) add(ROLES, [`no node is master of ${shardsText(vacant)}: their messages wait`]);
  add(ROLES, byText(shards, (shard) => shard.node === null && "no node with a replica of it answers"));
  add(PAUSED, byText(here, (shard) => shard.paused && !named.some((reason) => reason.includes(shard.paused)) && `paused: ${shard.paused}`));
  add(DEAD, failed(here), "fail");
  add(LATE, byText(here, overdue));
  add(LATE, byText(here, tooFew));
  add(ROLES, byText(here, unhealthy));
  add(LATE, byText(here, (shard) => shard.waits_for));
  add(LATE, byText(here, heldBack));
  add(NOT_READY, found.nodes[0].switched_off ?? [], "wait", false);
  add(LATE, (found.nodes[0].brokers ?? []).filter((broker) => broker.unavailable_until).map((broker) => `broker ${broker.broker} took ${duration(broker.latency_ms)}: messages without a key avoid it`), "wait", false);
  add(UNITLESS, byText(here, unitless), "wait", false);
  const rejected = growth("rejected");
  if (rejected?.grown) add(REJECTED, [`${plural(rejected.grown, "record was", "records were")} rejected in the last ${duration(Math.max(1000, rejected.ms))}`], "fail", false);
  const paired = new Map(made.map((trouble) => [trouble.text, trouble]));
  return [...paired.values()].sort((one, other) => Number(other.isProblem) - Number(one.isProblem));
}

/** The state in one or two words, and whether it is good: it is only if messages arrive. */
export function health(wrong) {
  const { nodes: found, silentSince, refused } = service;
  if (silentSince !== null) return { text: "no answer", kind: "bad" };
  if (refused !== null) return { text: refused.status === 401 ? "no token" : refused.status === 403 ? "not permitted" : "error", kind: "bad" };
  if (found === null) return { text: "connecting", kind: "" };
  const problems = wrong.filter((trouble) => trouble.isProblem);
  const notReady = found.nodes.filter((node) => !node.ready).length;
  const all = found.nodes.length + found.away.length;
  if (!found.nodes[0].ready && !isCluster()) return { text: "not ready", kind: "bad" };
  if (notReady + found.away.length > 0) return { text: `${found.nodes.length - notReady} of ${all} nodes ready`, kind: "bad" };
  if (problems.some((trouble) => trouble.kind === "fail")) return { text: "messages fail", kind: "bad" };
  if (problems.some((trouble) => trouble.kind === "wait")) return { text: "messages wait", kind: "bad" };
  if (problems.length) return { text: "needs attention", kind: "bad" };
  return { text: all > 1 ? `${all} of ${all} nodes ready` : "ready", kind: "good" };
}
