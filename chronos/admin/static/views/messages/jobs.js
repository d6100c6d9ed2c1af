// Bulk operations: what they would hit, how far they are, and what they did.

import { del, get, post, reason } from "../../lib/api.js";
import { actButton } from "../../lib/caller.js";
import { address, badge, dialog, h, link, notice, replace } from "../../lib/dom.js";
import { wholeSecond } from "../../lib/fields.js";
import { duration, number, plural, timeText } from "../../lib/format.js";
import { navigate } from "../../lib/router.js";
import { nowMs } from "../../lib/state.js";
import { ACTS, askPause, askTime } from "./acts.js";
import { filterText } from "./search.js";

const POLL_MS = 400; // Between two looks at a count,
const COSTS = 8; // but at least so many times what the last one took: one with 10,000 targets is a large answer.
const TARGETS = 10; // Targets that are listed; the rest is counted.

/** A filter of a job in words, with its due window. */
export function filterWords(filter) {
  const due = [filter.due_from && `due from ${timeText(filter.due_from)}`, filter.due_to && `due before ${timeText(filter.due_to)}`].filter(Boolean);
  return [filterText(filter), ...due].join(", ");
}

const targetList = (job) => h("ul", { class: "counts" },
  (job.targets ?? []).slice(0, TARGETS).map((each) => h("li", null, h("span", { dir: "auto" }, each.topic), " ", h("b", null, number(each.messages)))),
  (job.targets ?? []).length > TARGETS && h("li", { class: "soft" }, `and ${plural(job.targets.length - TARGETS, "more target")}`));

/** Count what a filter hits: a dry run. The promise is of the job; null if it was stopped. */
async function count(filter) {
  let job = await post("/v1/jobs", { action: "count", filter });
  const progress = h("progress", { "aria-label": "Messages read" });
  const text = h("p", { role: "status" }, "Counting the messages.");
  let isStopped = false;
  const waiting = h("dialog", { class: "counting", "aria-label": "Counting" }, text, progress,
    h("div", { class: "acts" }, h("button", { type: "button", onclick: () => { isStopped = true; waiting.close(); } }, "Stop")));
  waiting.addEventListener("close", () => { isStopped = true; });
  const opens = setTimeout(() => { document.body.append(waiting); waiting.showModal(); }, POLL_MS);
  let gapMs = POLL_MS / 4;
  try {
    while (job.state === "running" && !isStopped) {
      await new Promise((done) => setTimeout(done, gapMs));
      const began = performance.now();
      job = await get(`/v1/jobs/${job.id}`);
      gapMs = Math.max(POLL_MS, COSTS * (performance.now() - began));
      progress.max = Math.max(1, job.expected);
      progress.value = Math.min(job.scanned, progress.max);
      text.textContent = `${number(job.scanned)} of about ${number(job.expected)} messages read, ${number(job.matched)} match.`;
    }
  } finally {
    clearTimeout(opens);
    waiting.remove();
    if (job.state === "running") await del(`/v1/jobs/${job.id}`).catch(() => null);
  }
  if (job.state === "running") return null;
  if (job.state !== "done") throw new Error(job.error ?? `the count has the state ${job.state}`);
  return job.targets === undefined ? get(`/v1/jobs/${job.id}`) : job;
}

/** Count first, ask, then start the job, which the address names from then on. */
export async function startJob(name, filter, query) {
  try {
    const found = await count(filter);
    if (found === null) return;
    if (found.matched === 0) {
      notice("No pending message matches: there is nothing to do.", "bad");
      return;
    }
    const things = filter.series ? plural(found.matched, "series", "series") : plural(found.matched, "message");
    const body = h("div", null, h("p", null, `${things} ${filterWords(filter)}:`), targetList(found),
      h("p", { class: "soft" }, "Messages that are scheduled after the start are left alone."));
    const action = name === "fire" ? `Deliver ${things} now` : `${ACTS[name].verb} ${things}`;
    const chosen = name === "pause" ? await askPause(`${action}?`, action, body) : name === "reschedule" ? await askTime(`Reschedule ${things}?`, action, filter.due_from ?? wholeSecond(nowMs()), body)
      : await dialog({ title: `${action}?`, action, danger: name === "cancel", body });
    if (!chosen) return;
    const job = await post("/v1/jobs", { action: ACTS[name].job, filter, ...(chosen === true ? {} : chosen) });
    navigate(address("/ui/messages", { ...query, job: job.id }));
  } catch (error) {
    notice(error.status === undefined ? error.message : reason(error), "bad");
  }
}

/** Count the messages of a filter by target; the address names the count from then on. */
export async function startCount(filter, query) {
  try {
    const found = await count(filter);
    if (found !== null) navigate(address("/ui/messages", { ...query, count: found.id }));
  } catch (error) {
    notice(error.status === undefined ? error.message : reason(error), "bad");
  }
}

/** Counts by target, each a link to its messages. `query`: the conditions of the list. */
export function facets(job, query) {
  return h("section", { class: "card", "aria-label": "Messages by target" },
    h("div", { class: "head" }, h("h2", null, `${plural(job.matched, "message")} by target`), h("span", { class: "soft" }, `counted at ${timeText(job.ended_at ?? job.started_at)}`)),
    h("ul", { class: "facets" }, (job.targets ?? []).slice(0, 5 * TARGETS).map((each) => h("li", null,
      link("/ui/messages", { ...query, target: each.topic }, h("span", { dir: "auto" }, each.topic)), " ", h("b", null, number(each.messages))))),
    (job.targets ?? []).length > 5 * TARGETS && h("p", { class: "soft" }, `and ${plural(job.targets.length - 5 * TARGETS, "more target")}`));
}

function reasonsText(reasons) {
  const texts = Object.entries(reasons).map(([why, times]) => `${why}: ${number(times)}`);
  return texts.length ? ` (${texts.join(", ")})` : "";
}

/** The result of a job, or how far it is, in words. */
function progressText(job) {
  const name = Object.keys(ACTS).find((each) => ACTS[each].job === job.action);
  const parts = [`${job.filter.series ? plural(job.done, "series", "series") : plural(job.done, "message")} ${name ? ACTS[name].done : "counted"}`];
  if (job.action === "count") parts[0] = `${plural(job.matched, "message")} counted`;
  if (job.too_late) parts.push(`${number(job.too_late)} too late: delivered, changed or ended before`);
  if (job.failed) parts.push(`${number(job.failed)} failed${reasonsText(job.reasons)}`);
  const left = job.matched - job.done - (job.too_late ?? 0) - (job.failed ?? 0);
  if (job.action === "resume" && job.state === "done" && left) parts.push(`${number(left)} not paused`);
  if (job.error) parts.push(job.error);
  return parts.join(", ");
}

const TONES = { running: "", done: "good", stopped: "warn", failed: "bad" };

/** The panel of a job; `update(job)`. */
export function jobPanel(onStop) {
  const element = h("section", { class: "card job", "aria-label": "Bulk operation" });
  const bar = h("progress", { "aria-label": "Progress" });
  const state = h("span");
  const words = h("p", { role: "status" });
  const about = h("p", { class: "soft" });
  const stop = actButton("stop", { class: "danger", onclick: onStop }, "Stop");
  const title = h("h2");
  replace(element, h("div", { class: "head" }, title, state, stop), words, bar, about);
  return {
    element,
    update(job) {
      const name = Object.values(ACTS).find((each) => each.job === job.action);
      title.textContent = `${name?.verb ?? "Count"} messages ${filterWords(job.filter)}`;
      replace(state, badge(job.state, TONES[job.state]));
      stop.hidden = job.state !== "running";
      bar.hidden = job.state !== "running";
      bar.max = Math.max(1, job.expected);
      bar.value = Math.min(job.scanned, bar.max);
      const text = `${progressText(job)}.`;
      if (words.textContent !== text) words.textContent = text;
      about.textContent = `${number(job.scanned)} of about ${number(job.expected)} messages read in ${duration(job.elapsed_ms)}, ${number(Math.round(job.rate))} per second, on node ${job.node}. Job ${job.id}.`;
    },
  };
}

export const readJob = (id) => get(`/v1/jobs/${encodeURIComponent(id)}`);
export const stopJob = (id) => del(`/v1/jobs/${encodeURIComponent(id)}`);
