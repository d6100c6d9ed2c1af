// The history of a message, from its acceptance to its end, as far as the service keeps it.

import { h } from "../../lib/dom.js";
import { duration, ms, number, plural, relative, time, timeText } from "../../lib/format.js";
import { nowMs } from "../../lib/state.js";

const GENERATED = /^\d+-(\d+)-\d+$/;
const SAME_MS = 1000; // Times that differ by less are told as one.

/** The steps in their order: { at (instant or null), title, detail, kind }; a step that is to come has kind "next". */
function steps(message) {
  const made = [];
  const add = (at, title, detail = null, kind = "") => made.push({ at, title, detail, kind });
  const due = ms(message.due_at);
  add(message.accepted_at, "Accepted", `by the log, as offset ${number(message.offset)} of partition ${message.shard}`, "good");
  moved(message, due, add);
  if (message.state === "pending") waiting(message, due, add);
  else ended(message, due, add);
  return made;
}

function moved(message, due, add) {
  const first = GENERATED.exec(message.id);
  if (first && message.state === "pending" && message.occurrence === 1 && Math.abs(Number(first[1]) - due) >= SAME_MS) {
    add(null, "Moved", `it was first due ${timeText(Number(first[1]))}; its time was changed to ${timeText(due)}`);
  }
  if (message.repetition && message.occurrence > 1) {
    add(null, "Repeated", `${plural(message.occurrence - 1, "occurrence")} before this one ended`);
  }
}

function tried(message, add) {
  if (!message.reason) return;
  const words = message.detail ? `${message.reason}: ${message.detail}` : message.reason;
  const times = message.attempts > 0 ? `${plural(message.attempts, "attempt")} failed${message.attempts_max ? ` of at most ${number(message.attempts_max)}` : ""}. ` : "";
  add(message.last_try_at, message.parked ? "Deferred" : "Tried", `${times}${words}`, message.parked ? "warn" : "bad");
}

function waiting(message, due, add) {
  const isPast = due <= nowMs();
  if (isPast) add(message.due_at, "Due", null);
  tried(message, add);
  if (message.waits_for) {
    add(null, message.overdue_ms ? `Overdue by ${duration(message.overdue_ms)}` : "Waits", `Waits for: ${message.waits_for}`, "bad");
  } else if (message.parked) {
    add(null, "Parked", "It leaves its lane as soon as that is open", "warn");
  }
  if (message.next_try_at) add(message.next_try_at, "Next try", null, "next");
  else if (ms(message.planned_at) > nowMs()) add(message.planned_at, isPast ? "To be delivered" : message.repetition ? `Due, occurrence ${number(Math.max(1, message.occurrence))}` : "Due", shift(message, due), "next");
  if (message.expire_at) add(message.expire_at, "Expires", "not delivered after this time, but dead-lettered", "next");
}

/** Why a message is delivered later than it asked for, if it is known before. */
function shift(message, due) {
  const later = ms(message.planned_at) - due;
  if (later < SAME_MS) return null;
  return message.spread ? `${duration(later)} after its due time, by its spread of ${message.spread}` : `${duration(later)} after its due time ${timeText(due)}`;
}

function ended(message, due, add) {
  const settled = message.settled_at === null ? null : ms(message.settled_at);
  if (message.state !== "cancelled" && (settled === null || due <= settled)) add(message.due_at, "Due");
  if (message.state === "cancelled" && message.target) add(message.due_at, "Due", "it would have been delivered then");
  tried(message, add);
  const late = settled === null ? null : settled - due;
  const lateness = late === null ? "the time is not kept" : late < 0 ? `${duration(-late)} before its due time` : `${duration(late)} after its due time`;
  const names = {
    delivered: ["Delivered", `${message.target ? `to ${message.target.topic}, ` : ""}${lateness}`, "good"],
    cancelled: ["Cancelled", "it is not delivered", ""],
    dead: ["Dead-lettered", lateness, "bad"],
    expired: ["Expired", "dead-lettered, because its expiry had passed", "bad"],
    settled: ["Ended", "a later message has its id", ""],
  };
  add(message.settled_at, ...names[message.state]);
}

/** A list in the order of time. */
export function historyOf(message) {
  return h("ol", { class: "history" }, steps(message).map(({ at, title, detail, kind }) => h("li", { class: kind || null },
    h("div", { class: "step" }, h("b", null, title), at && [" ", h("span", { class: "soft" }, relative(at))]),
    at && h("div", { class: "soft" }, time(at, "full")),
    detail && h("div", { class: kind === "bad" ? "why" : null }, detail))));
}
