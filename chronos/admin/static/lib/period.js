// A period in the address: since and until are times, or how long ago, such as 2h.

import { nowMs } from "./state.js";

const UNITS = { ms: 1, s: 1e3, m: 60e3, h: 3600e3, d: 86400e3, w: 7 * 86400e3 };
const PARTS = /([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)/g;
const LENGTH = /^-?(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d|w))+$/;

/** The fields of the two ends for a filter form. */
export const PERIOD = ["since", "until"].map((name) => ({
  name, label: name === "since" ? "Since" : "Until", placeholder: "2h, or a time", suggestions: ["15m", "1h", "6h", "1d", "7d"],
  title: "How long ago, such as 90s, 15m, 2h or 7d; or a time with its offset, such as 2030-01-31T08:00:00Z",
}));

/** An end of a period for the API: a time in RFC 3339, which stays the same on the next page; undefined without one; the text itself if the service has to refuse it. */
export function instant(text) {
  if (!text) return undefined;
  if (LENGTH.test(text)) {
    const length = [...text.matchAll(PARTS)].reduce((total, [, count, unit]) => total + Number(count) * UNITS[unit], 0);
    return new Date(Math.max(0, nowMs() - length)).toISOString();
  }
  const at = Date.parse(text);
  // A time without an offset would be read in the zone of this browser, which a colleague may not share.
  return /(z|[+-]\d\d:?\d\d)$/i.test(text) && !Number.isNaN(at) ? new Date(at).toISOString() : text;
}

/** The conditions of the address for the API: these names of the query, and the period. */
export const conditions = (query, names) => ({
  ...Object.fromEntries(names.map((name) => [name, query.get(name) || undefined])), since: instant(query.get("since")), until: instant(query.get("until")),
});
