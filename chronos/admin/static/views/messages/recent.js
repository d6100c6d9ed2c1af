// The bulk operations of the node asked.

import { del, get, reason } from "../../lib/api.js";
import { actButton } from "../../lib/caller.js";
import { badge, card, h, link, notice } from "../../lib/dom.js";
import { number, relative } from "../../lib/format.js";
import { table } from "../../lib/table.js";
import { filterWords } from "./jobs.js";

const SHOWN = 5;
const EVERY_MS = 10e3;
const KINDS = { running: "", done: "good", stopped: "plain", failed: "bad" };

/** The card, which is hidden if there was none. */
export function recentJobs() {
  const grid = table({
    caption: "Bulk operations", key: (job) => job.id, columns: [
      { name: "Began", cell: (job) => relative(job.started_at) }, { name: "Action", cell: (job) => link("/ui/messages", { job: job.id }, job.action) },
      { name: "Filter", grow: true, cell: (job) => filterWords(job.filter) },
      { name: "State", cell: (job) => [badge(job.state, KINDS[job.state]), job.error && h("div", { class: "why" }, job.error)] },
      { name: "Matched", numeric: true, cell: (job) => number(job.matched) }, { name: "Done", numeric: true, cell: (job) => number(job.done) },
      { name: "Too late", numeric: true, cell: (job) => number(job.too_late) }, { name: "Failed", numeric: true, cell: (job) => number(job.failed) },
      { name: "", cell: (job) => job.state === "running" && actButton("stop", { class: "small", onclick: () => stop(job) }, "Stop") },
    ],
  });
  const element = card("Bulk operations of this node", { class: "wide" }, grid.element);
  element.hidden = true;
  let askedAt = -Infinity;
  let isRunning = false;

  async function refresh() {
    if (!isRunning && performance.now() - askedAt < EVERY_MS) return;
    askedAt = performance.now();
    // A count is the dry run of one of the others.
    const found = (await get("/v1/jobs")).jobs.filter((job) => job.action !== "count");
    isRunning = found.some((job) => job.state === "running");
    grid.update(found.slice(0, SHOWN));
    element.hidden = found.length === 0;
  }

  async function stop(job) {
    try {
      const ended = await del(`/v1/jobs/${encodeURIComponent(job.id)}`);
      notice(`The ${ended.action} of ${number(ended.matched)} messages is stopped; ${number(ended.done)} were done.`);
    } catch (error) {
      notice(reason(error), "bad");
    }
    askedAt = -Infinity;
    await refresh();
  }

  return { element, refresh };
}
