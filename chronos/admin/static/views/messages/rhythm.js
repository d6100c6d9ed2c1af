// The rhythm of a series in words, and its next times in its own zone.

import { h } from "../../lib/dom.js";
import { plural, relative, time, timeText, zoneWords } from "../../lib/format.js";

const MISSED = { "fire-once": "missed occurrences are delivered as one", "fire-all": "missed occurrences are all delivered", skip: "missed occurrences are left out" };

/** "cron 0 9 * * 1-5 in Europe/Berlin, at most 10 occurrences; missed occurrences are left out" */
export function rhythm(repetition) {
  const zone = repetition.repeat.startsWith("cron") ? ` in ${repetition.time_zone ?? "UTC"}` : "";
  const bounds = [repetition.times && `at most ${plural(repetition.times, "occurrence")}`, repetition.until && `until ${timeText(repetition.until)}`].filter(Boolean);
  return [h("code", null, repetition.repeat), `${zone}${bounds.map((text) => `, ${text}`).join("")}`, `; ${MISSED[repetition.late_policy]}`];
}

/** A time as a clock in this zone shows it, with the day of the week; null if this browser does not know the zone. */
function zonedText(instant, zone) {
  try {
    const format = new Intl.DateTimeFormat("en-CA", { timeZone: zone, weekday: "short", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
    const part = Object.fromEntries(format.formatToParts(new Date(instant)).map(({ type, value }) => [type, value]));
    return `${part.weekday} ${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second}`;
  } catch {
    return null;
  }
}

/** The next times of a series that the service answered. */
export function nextTimes(message) {
  const { repetition, occurrences_at: times } = message;
  if (!repetition) return null;
  if (times === undefined) return h("p", { class: "soft" }, "The next times are not known: the node that was asked does not know the time zone of the series.");
  const zone = repetition.time_zone ?? "UTC";
  return h("div", { class: "scroll", role: "group", "aria-label": "Next times", tabindex: "0" }, h("table", null,
    h("caption", { class: "hidden-text" }, "Next times of the series"),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, `In ${zone}`), h("th", { scope: "col" }, `In ${zoneWords()}`), h("th", { scope: "col" }, "From now"))),
    h("tbody", null, times.map((at) => h("tr", null, h("td", { class: "num" }, zonedText(at, zone) ?? "zone not known to this browser"), h("td", { class: "num" }, time(at)), h("td", null, relative(at)))))));
}
