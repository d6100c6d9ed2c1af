// Numbers, sizes and times as every view shows them.

import { h } from "./dom.js";
import { currentZone, nowMs } from "./state.js";

const groups = new Intl.NumberFormat("en");
const DAY_MS = 86400e3;

/** 1234567 as 1,234,567; a dash for null. */
export const number = (value) => (value === null || value === undefined ? "–" : groups.format(value));

/** "1 message", "2 messages". */
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (count < 1024 || unit === "TiB") return `${unit === "B" || count >= 100 ? Math.round(count) : count.toFixed(1)} ${unit}`;
    count /= 1024;
  }
  return "";
}

/** A length of time in one unit: "450 ms", "12 s", "5 min", "3 h", "9 d". */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const seconds = ms / 1000;
  if (seconds < 0.9995) return `${Math.round(ms)} ms`;
  if (seconds < 9.95) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** Epoch milliseconds of an instant of the API: RFC 3339, or milliseconds beyond the year 9999. */
export const ms = (instant) => (typeof instant === "number" ? instant : /^-?\d+$/.test(instant) ? Number(instant) : Date.parse(instant));

/** "in 5 min" or "3 h ago", by the clock of the service. */
export function ago(instant) {
  const away = ms(instant) - nowMs();
  if (Number.isNaN(away)) return "";
  return away >= 0 ? `in ${duration(away)}` : `${duration(-away)} ago`;
}

const pad = (value, digits = 2) => String(value).padStart(digits, "0");

function parts(at) {
  return currentZone() === "utc"
    ? [at.getUTCFullYear(), at.getUTCMonth() + 1, at.getUTCDate(), at.getUTCHours(), at.getUTCMinutes(), at.getUTCSeconds(), at.getUTCMilliseconds()]
    : [at.getFullYear(), at.getMonth() + 1, at.getDate(), at.getHours(), at.getMinutes(), at.getSeconds(), at.getMilliseconds()];
}

/** The name of the zone in which times are shown, such as "UTC" or "+02:00". */
export function zoneName(at = new Date(nowMs())) {
  if (currentZone() === "utc") return "UTC";
  const minutes = -at.getTimezoneOffset();
  return `${minutes < 0 ? "−" : "+"}${pad(Math.floor(Math.abs(minutes) / 60))}:${pad(Math.abs(minutes) % 60)}`;
}

/** Which of the two it is, in words. Its offset is that of a date: at a time nothing else than its own is right. */
export const zoneWords = () => (currentZone() === "utc" ? "UTC" : "local time");

/** A time as text with its zone. part: "full" with milliseconds, "second", or "minute". */
export function timeText(instant, part = "second") {
  const at = new Date(ms(instant));
  if (Number.isNaN(at.getTime())) return String(instant);
  const [year, month, day, hours, minutes, seconds, millis] = parts(at);
  const clock = `${pad(hours)}:${pad(minutes)}${part === "minute" ? "" : `:${pad(seconds)}`}${part === "full" ? `.${pad(millis, 3)}` : ""}`;
  return `${pad(year, 4)}-${pad(month)}-${pad(day)} ${clock} ${zoneName(at)}`;
}

/** The label of a point on an axis, without the zone, which the axis names once. */
export function tick(instant, spanMs) {
  const [year, month, day, hours, minutes] = parts(new Date(ms(instant)));
  const [date, clock] = [`${pad(month)}-${pad(day)}`, `${pad(hours)}:${pad(minutes)}`];
  if (spanMs <= DAY_MS * 1.01) return clock;
  if (spanMs <= 14 * DAY_MS) return `${date} ${clock}`;
  return spanMs <= 300 * DAY_MS ? date : `${pad(year, 4)}-${date}`;
}

/** A <time> element in the chosen zone, whose title has milliseconds and both forms; a dash for null. */
export function time(instant, part = "second") {
  if (instant === null || instant === undefined) return h("span", { class: "soft" }, "–");
  const at = new Date(ms(instant));
  if (Number.isNaN(at.getTime())) return h("span", null, String(instant));
  return h("time", { datetime: at.toISOString(), title: `${timeText(instant, "full")} (${at.toISOString()})` }, timeText(instant, part));
}

/** A <time> element that says how long ago it was, or how long it takes until then. */
export function relative(instant) {
  if (instant === null || instant === undefined) return h("span", { class: "soft" }, "–");
  const at = new Date(ms(instant));
  if (Number.isNaN(at.getTime())) return h("span", null, String(instant));
  return h("time", { datetime: at.toISOString(), title: timeText(instant, "full") }, ago(instant));
}
