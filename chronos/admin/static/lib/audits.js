// Results of audits of the archive, in words.

import { badge } from "./dom.js";
import { duration, number, timeText } from "./format.js";

const BROKEN = ["missing", "duplicated", "early"];

export const messages = (counts) => Object.values(counts).reduce((sum, count) => sum + count, 0);

export const late = (ms) => (ms === null ? "–" : duration(ms));

export const period = (audit) => `${timeText(audit.from, "minute")} to ${timeText(audit.to, "minute")}`;

/** What an audit found, as words with a colour. A clean one may end with messages that were due right before its end. */
export function verdict(audit) {
  if (audit.verdict === "clean") return badge(audit.counts.pending ? `nothing wrong before ${timeText(audit.judged_until, "minute")}` : "all accounted for", "good");
  if (audit.verdict === "not-proved") return badge("not everything is proved", "warn");
  return badge(BROKEN.filter((outcome) => audit.counts[outcome]).map((outcome) => `${number(audit.counts[outcome])} ${outcome}`).join(", "), "bad");
}
