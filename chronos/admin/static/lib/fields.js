// Times in fields of a form: they are entered in the zone in which the console shows times.

import { h } from "./dom.js";
import { ms, zoneWords } from "./format.js";
import { currentZone } from "./state.js";

/** The value of a datetime-local field for an instant, to the millisecond; "" for none. */
export function fieldText(instant) {
  if (instant === null || instant === undefined || instant === "") return "";
  const at = new Date(ms(instant));
  if (Number.isNaN(at.getTime())) return "";
  const offsetMs = currentZone() === "utc" ? 0 : at.getTimezoneOffset() * 60e3;
  return new Date(at.getTime() - offsetMs).toISOString().replace(/(\.000)?Z$/, "");
}

/** Field -> its text as it was set, and the instant of it: an hour of local time that comes twice a year has two. */
const shown = new WeakMap();

function show(field, instant) {
  field.value = fieldText(instant);
  shown.set(field, { text: field.value, instant: instant ? new Date(ms(instant)) : null });
}

/** The instant, in RFC 3339, of such a field; "" for none. */
export function fieldInstant(field) {
  const text = field.value, before = shown.get(field);
  if (!text) return "";
  const at = before?.text === text ? before.instant : new Date(currentZone() === "utc" ? `${text}Z` : text);
  return Number.isNaN(at.getTime()) ? "" : at.toISOString();
}

/** A field for a time, at first the one of an instant. It takes seconds, or milliseconds if the instant has some. */
export function timeField(instant, attributes) {
  const value = fieldText(instant);
  const field = h("input", { type: "datetime-local", step: value.includes(".") ? "0.001" : "1", value, ...attributes });
  show(field, instant);
  return field;
}

/** The instant rounded up to a whole second, in ms. */
export const wholeSecond = (atMs) => Math.ceil(atMs / 1000) * 1000;

/** The label of a field for a time, with the zone. */
export const zoned = (label) => `${label} (${zoneWords()})`;

/** Switch the zone by `change`; what is entered below `root` stays the same instant, in a field that names the new zone. */
export function keepInstants(root, change) {
  const entered = [...root.querySelectorAll("input[type=datetime-local]")].map((field) => [field, fieldInstant(field)]);
  const before = zoneWords();
  change();
  for (const [field, instant] of entered) {
    show(field, instant);
    for (const label of field.labels) label.textContent = label.textContent.replace(before, zoneWords());
  }
}

/** What the service takes as a length of time. */
export const DURATION = {
  pattern: "[0-9]+(\\.[0-9]+)?(ms|s|m|h|d|w)|([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?",
  title: "A number and a unit: 250ms, 90s, 15m, 2h, 7d, 2w; or several: 1h30m",
};
