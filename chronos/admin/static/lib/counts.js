// Counts that the service makes part by part, for the facets of a list: shown as they grow, and kept while the list is
// filtered by them.

import { get } from "./api.js";

const PARTS_MAX = 100; // A million records are so many parts, of up to 2 s each.
const COSTS = 30; // A count is repeated after so many times what it took,
const KEPT_MS = 15 * 60e3; // and after this time at the latest.

const kept = new Map(); // By path: the last count, of which period it is, and how much there was to count.

/**
 * Counts at a path of the API, whose answers have `counts` with the number in the field `size`. `period`: text that tells
 * periods apart; `query()`: that of the request. `show({ rows, isWhole, problem })` is called with each part.
 * `refresh(total)`: count if that is not known for this total, which grows with each record. Does not wait for it.
 */
export function counter({ path, size, period, query, show }) {
  const leaving = new AbortController();
  let isRunning = false;

  function refresh(total) {
    const known = kept.get(path);
    const now = performance.now();
    const isFresh = known?.period === period && now - known.at < KEPT_MS && (known.total === total || now - known.at < COSTS * known.took);
    if (isFresh) show(known);
    else if (!isRunning) {
      isRunning = true;
      run(total).finally(() => { isRunning = false; });
    }
  }

  async function run(total) {
    const began = performance.now();
    const rows = new Map();
    const asked = query(); // The same for all parts: a page key is bound to it.
    let [after, parts] = [undefined, 0];
    try {
      do {
        const found = await get(path, { ...asked, after }, leaving.signal);
        for (const row of found.counts) add(rows, row);
        after = found.after;
        parts += 1;
        const isWhole = after === null;
        const known = { rows: [...rows.values()], isWhole, isCounting: !isWhole && parts < PARTS_MAX, period, total, at: performance.now(), took: performance.now() - began };
        if (!known.isCounting) kept.set(path, known);
        show(known);
      } while (after !== null && parts < PARTS_MAX);
    } catch (error) {
      // That the service does not answer is said by the banner; the next refresh counts again.
      if (error.status === undefined && error.name !== "AbortError") throw error;
    }
  }

  function add(rows, row) {
    const key = JSON.stringify([row.reason, row.topic, row.source, row.header]);
    const known = rows.get(key);
    if (known) known[size] += row[size];
    else rows.set(key, row);
  }

  return { refresh, forget: () => kept.delete(path), close: () => leaving.abort() };
}

/** What is said about counts that are not whole; null if they are. */
export const countNote = ({ isWhole, isCounting }) => (isWhole ? null : isCounting ? "Counting; there are more." : "There are more: these are the oldest. Give a period to count fewer.");
