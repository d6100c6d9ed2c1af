// What can be done with one message, and what became of it, in words.

import { del, get, patch, post, reason } from "../../lib/api.js";
import { dialog, h, segment } from "../../lib/dom.js";
import { DURATION, fieldInstant, timeField, wholeSecond, zoned } from "../../lib/fields.js";
import { plural, relative, time, timeText } from "../../lib/format.js";
import { nowMs } from "../../lib/state.js";

const SHOWN = 5; // Ids that a dialog names.
const AT_ONCE = 4; // Requests on their way.
const SETTLE_MS = 30e3; // How long an action is followed that was not applied within the request.

export const pathOf = (id) => `/v1/messages/${segment(id)}`;

/** A text as one word of a shell. */
export const shell = (text) => (/^[\w.:/-]+$/.test(text) && !text.startsWith("-") ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** Ask for a new time: { deliver_at } or { delay }, or false. The field opens at `dueAt`. */
export function askTime(title, action, dueAt, body) {
  const at = timeField(dueAt, { id: "new-time" });
  const delay = h("input", { id: "new-delay", value: "1h", spellcheck: "false", required: true, ...DURATION });
  const how = h("select", { id: "new-how" }, h("option", { value: "at" }, "at a time"), h("option", { value: "in" }, "after a delay"));
  const parts = { at: h("div", { class: "field" }, h("label", { for: "new-time" }, zoned("Time")), at), in: h("div", { class: "field" }, h("label", { for: "new-delay" }, "From now"), delay) };
  const show = () => {
    for (const [name, part] of Object.entries(parts)) part.hidden = how.value !== name;
    at.required = how.value === "at";
    delay.disabled = how.value === "at";
  };
  how.addEventListener("change", show);
  show();
  return dialog({
    title, action,
    body: h("div", null, body, h("div", { class: "field" }, h("label", { for: "new-how" }, "Deliver"), how), parts.at, parts.in),
    read: () => (how.value === "at" ? { deliver_at: fieldInstant(at) } : { delay: delay.value.trim() }),
  });
}

/** Ask until when to pause: { until }, or {} for no end; false if it is called off. */
export function askPause(title, action, body) {
  const at = timeField(wholeSecond(nowMs()), { id: "pause-end" });
  const how = h("select", { id: "pause-how" }, h("option", { value: "open" }, "until it is resumed"), h("option", { value: "at" }, "until a time"));
  const end = h("div", { class: "field" }, h("label", { for: "pause-end" }, zoned("Time")), at);
  const show = () => {
    end.hidden = how.value === "open";
    at.required = how.value === "at";
  };
  how.addEventListener("change", show);
  show();
  return dialog({
    title, action,
    body: h("div", null, body, h("p", { class: "soft" }, "Nothing is delivered meanwhile. Then it goes on with the next time of its rhythm."),
      h("div", { class: "field" }, h("label", { for: "pause-how" }, "Pause"), how), end),
    read: () => (how.value === "at" ? { until: fieldInstant(at) } : {}),
  });
}

/** The actions; the last two are for series. `confirm` asks for a confirmation whose result `send` takes. */
export const ACTS = {
  cancel: {
    verb: "Cancel", all: "Cancel all that match", some: (count) => `Cancel ${count} selected`,
    kind: "danger", done: "cancelled", job: "cancel",
    send: (id) => del(pathOf(id)),
  },
  reschedule: {
    verb: "Reschedule", all: "Reschedule all that match", some: (count) => `Reschedule ${count} selected`,
    done: "rescheduled", job: "reschedule",
    send: (id, chosen) => patch(pathOf(id), chosen),
  },
  fire: {
    verb: "Deliver now", all: "Deliver all that match now", some: (count) => `Deliver ${count} selected now`,
    done: "made due", job: "fire",
    send: (id) => post(`${pathOf(id)}/fire`),
  },
  pause: {
    verb: "Pause", all: "Pause all that match", done: "paused", job: "pause",
    send: (id, chosen) => post(`${pathOf(id)}/pause`, chosen),
  },
  resume: {
    verb: "Resume", all: "Resume all that match", done: "resumed", job: "resume",
    send: (id) => post(`${pathOf(id)}/resume`),
  },
};

/** Ask whether to do it with these messages; the dialog names the action and the count. */
export function confirm(name, messages) {
  const { verb, kind } = ACTS[name];
  const count = messages.length;
  const things = count === 1 ? "this message" : plural(count, "message");
  const endsPause = ["fire", "reschedule"].includes(name) && messages.some((message) => message.paused);
  const ids = h("ul", { class: "ids" }, messages.slice(0, SHOWN).map((message) => h("li", null,
    h("span", { class: "id", dir: "auto" }, message.id), " ",
    h("span", { class: "soft" }, message.target ? `for ${message.target.topic}, ` : "", "due ", relative(message.due_at)))),
  count > SHOWN && h("li", { class: "soft" }, `and ${plural(count - SHOWN, "more", "more")}`));
  const list = h("div", null, ids, endsPause && h("p", null, "A pause ends with it: the series goes on after this delivery."));
  if (name === "pause") return askPause("Pause this series?", "Pause the series", list);
  if (name === "resume") return dialog({ title: "Resume this series?", action: "Resume the series", body: list });
  const action = count === 1 ? { cancel: "Cancel the message", reschedule: "Reschedule the message", fire: "Deliver it now" }[name] : name === "fire" ? `Deliver ${plural(count, "message")} now` : `${verb} ${plural(count, "message")}`;
  if (name === "reschedule") return askTime(`Reschedule ${things}`, action, messages[0].due_at, list);
  const title = name === "fire" ? `Deliver ${things} now?` : `${verb} ${things}?`;
  return dialog({ title, action, danger: kind === "danger", body: list });
}

/** What an action on one message came to: { text, kind }. Asks the service what became of the message where that tells more. */
export async function outcome(name, message, answer) {
  const detail = answer.detail ? ` ${answer.detail}.` : "";
  const warnings = (answer.warnings ?? []).map((text) => ` ${text}.`).join("");
  if (answer.result === "cancelled") return { text: "Cancelled in time: it will not be delivered.", kind: "good" };
  if (answer.result === "fired") return { text: "It is due now and will be delivered at once.", kind: "good" };
  if (answer.result === "rescheduled") return { text: `Rescheduled.${warnings}`, kind: "good" };
  if (answer.result === "paused") return { text: `Paused. It goes on once it is resumed, and otherwise at ${timeText(answer.due_at)}.`, kind: "good" };
  if (answer.result === "resumed") return { text: `Resumed. Its next time is ${timeText(answer.due_at)}.`, kind: "good" };
  if (answer.result === "too_late") return { text: `Too late: ${await ending(message.id)}.`, kind: "bad" };
  if (answer.result === "unknown") return { text: "Unknown: no message has this id.", kind: "bad" };
  if (answer.result === "refused") return { text: `Refused.${detail}`, kind: "bad" };
  return follow(name, message);
}

async function ending(id) {
  const found = await get(pathOf(id)).catch(() => null);
  if (found === null || found.state === "pending") return "it was delivered or changed before";
  const when = found.settled_at === null ? "" : ` at ${timeText(found.settled_at, "full")}`;
  return { delivered: `it was delivered${when}`, dead: `it was dead-lettered${when}`, expired: `it expired${when}`, cancelled: `it was cancelled${when}` }[found.state];
}

/** An action that the log has, and that its shard has not applied within 5 s: look until the message shows its effect. */
async function follow(name, before) {
  const until = performance.now() + SETTLE_MS;
  while (performance.now() < until) {
    const found = await get(pathOf(before.id)).catch((error) => (error.status === 503 || error.status === 404 ? null : Promise.reject(error)));
    if (found?.state === "cancelled") return { text: "Cancelled in time: it will not be delivered.", kind: "good" };
    if (found !== null && found.state !== "pending") {
      return name === "fire" && found.state === "delivered" ? { text: "It was delivered.", kind: "good" } : { text: `Too late: ${await ending(before.id)}.`, kind: "bad" };
    }
    if (found !== null && name !== "cancel" && found.due_at !== before.due_at) return { text: "It has its new time.", kind: "good" };
    await new Promise((done) => setTimeout(done, 1000));
  }
  return { text: "Not known yet: the action is in the log, and the shard of the message has not applied it. It will; look at the message again before you repeat it.", kind: "bad" };
}

/** Do it with each message; the promise is of the counts in words. */
export async function actOnEach(name, messages, chosen, onProgress = () => {}) {
  const counts = new Map();
  const errors = new Set();
  const queue = [...messages];
  let done = 0;
  const work = async () => {
    for (let message = queue.shift(); message; message = queue.shift()) {
      let result = "failed";
      try {
        ({ result } = await ACTS[name].send(message.id, chosen));
      } catch (error) {
        errors.add(reason(error));
        if ([401, 403].includes(error.status)) queue.length = 0;
      }
      counts.set(result, (counts.get(result) ?? 0) + 1);
      done += 1;
      onProgress(done);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  const words = { cancelled: "cancelled", rescheduled: "rescheduled", fired: "due now", too_late: "too late, no longer pending", unknown: "unknown", refused: "refused", accepted: "in the log, not applied yet", failed: "failed" };
  const text = [...counts].map(([result, count]) => `${plural(count, "message")} ${words[result]}`).join(", ");
  const isGood = [...counts.keys()].every((result) => ["cancelled", "rescheduled", "fired"].includes(result));
  return { text: [text, ...errors].join(". "), kind: isGood ? "good" : "bad" };
}

/** "in 5 min" above the time itself. */
export function when(instant) {
  return [relative(instant), " ", h("span", { class: "soft" }, time(instant))];
}

/** By how much a pending message is late, in ms; 0 if it is not. */
export function overdueMs(message) {
  if (message.state !== "pending") return 0;
  const due = message.reason && message.next_try_at ? message.due_at : message.planned_at;
  const late = nowMs() - Date.parse(due);
  return late >= 1000 ? late : 0;
}
