// The form that schedules a message, empty or with what another message or a dead letter has.

import { get, post, reason } from "../../lib/api.js";
import { refusal } from "../../lib/caller.js";
import { address, h, messageLink, notice, replace } from "../../lib/dom.js";
import { DURATION, fieldInstant, timeField, wholeSecond, zoned } from "../../lib/fields.js";
import { number, timeText } from "../../lib/format.js";
import { editable, fromLines } from "../../lib/headers.js";
import { getLetter, letterPath, positionOf } from "../../lib/letters.js";
import { nowMs } from "../../lib/state.js";
import { pathOf } from "./acts.js";

const SUGGESTED_MS = 600e3; // How far ahead the time is that the form suggests.
const GENERATED = /^\d+-\d+-\d+$/; // An id that the service makes.
const OUTCOME_MS = 30e3; // How long a message is followed that the shard has not applied yet.

export function compose(root, query) {
  const [from, dead] = [query.get("from"), query.get("dead")];
  const place = h("div");
  const title = from === null && dead === null ? "Schedule a message" : query.get("replace") ? "Edit and replace" : "Edit and send again";
  replace(root, h("h1", null, title), place);
  let isDrawn = false;
  const refresh = async () => {
    if (isDrawn) return;
    const message = dead ? await letterAsMessage(dead, query.get("at")) : from ? await get(pathOf(from), { payload: "true" }) : null;
    isDrawn = true;
    replace(place, form(query, message));
  };
  return { refresh, close() {}, live: false, title };
}

async function letterAsMessage(id, at) {
  const letter = await getLetter(id, at);
  return { ...letter, state: "dead letter", target: { ...letter.target, topic: letter.topic } };
}

const field = (id, label, input, attributes) => h("div", { class: "field", ...attributes }, h("label", { for: id }, label), input);
const choice = (id, options, value) => h("select", { id }, options.map(([each, text]) => h("option", { value: each, selected: each === value }, text)));

function form(query, message) {
  const isLetter = message?.state === "dead letter";
  const { text: lines, kept } = editable(message?.target?.headers);
  const replaces = message !== null && query.get("replace") === "true" && isReplaceable(message);
  const isHidden = message?.target && message.value === undefined && message.value_base64 === undefined;
  // A text field would change line ends.
  const isExact = !message?.value?.includes("\r");
  const kind = !isExact ? "base64" : message === null || message.value ? "text" : message.value_base64 !== undefined ? "base64" : message.value === null ? "null" : "text";
  const input = (id, value, more) => h("input", { id, value: value ?? "", spellcheck: "false", ...more });
  const at = {
    topic: input("send-topic", message?.target?.topic ?? (/[*?[]/.test(query.get("target") ?? "") ? "" : query.get("target")), { required: true, pattern: "[a-zA-Z0-9._\\-]{1,249}", title: "Letters, digits, '.', '_' and '-'", placeholder: "orders" }),
    kind: choice("send-kind", [["text", "text"], ["base64", "base64"], ["null", "null (a tombstone)"]], kind),
    value: h("textarea", { id: "send-value", rows: 6, spellcheck: "false", value: (isExact ? message?.value : base64(message.value)) ?? message?.value_base64 ?? "" }),
    how: choice("send-how", [["delay", "after a delay"], ["at", "at a time"], ["repeat", "repeatedly"]], replaces ? "at" : "delay"),
    delay: input("send-delay", isLetter ? "0s" : "10s", { required: true, ...DURATION }),
    time: timeField(replaces ? message.due_at : wholeSecond(nowMs() + SUGGESTED_MS), { id: "send-at" }),
    repeat: input("send-repeat", message?.repetition?.repeat, { placeholder: "every 30s, or cron 0 9 * * 1-5" }),
    zone: input("send-zone", message?.repetition?.time_zone, { placeholder: "UTC" }),
    times: h("input", { id: "send-times", type: "number", min: "1", value: (replaces ? timesLeft(message) : message?.repetition?.times) ?? "" }),
    id: input("send-id", replaces || (isLetter && isFree(message)) ? message.id : null, { maxlength: 1024, class: "mono" }),
    conflict: choice("send-conflict", [["", "reject this one"], ["replace", "replace the other one"], ["ignore", "drop this one"], ["upsert", "keep the other one's time (upsert)"]], replaces ? "replace" : ""),
    key: input("send-key", message?.target?.key ?? (message?.target?.key_base64 && `base64:${message.target.key_base64}`), { class: "mono" }),
    headers: h("textarea", { id: "send-headers", rows: 3, spellcheck: "false", value: lines }),
    discards: h("input", { id: "send-discards", type: "checkbox", checked: true }),
    expire: timeField(replaces ? message.expire_at : null, { id: "send-expire" }),
    attempts: h("input", { id: "send-attempts", type: "number", min: "1", max: "1000", value: message?.attempts_max ?? "" }),
    spread: input("send-spread", message?.spread, DURATION),
  };
  const parts = {
    delay: field("send-delay", "Delay", at.delay), at: field("send-at", zoned("Time"), at.time),
    repeat: h("div", { class: "row" }, field("send-repeat", "Rhythm", at.repeat), field("send-zone", "Time zone of a cron expression", at.zone), field("send-times", replaces && message.repetition?.times ? `Occurrences at most, ${number(timesLeft(message))} of ${number(message.repetition.times)} are left` : "Occurrences at most", at.times)),
  };
  if (message?.repetition) at.how.value = "repeat";
  const show = () => {
    for (const [name, part] of Object.entries(parts)) part.hidden = at.how.value !== name;
    at.delay.disabled = at.how.value !== "delay";
    at.time.required = at.how.value === "at";
    at.repeat.required = at.how.value === "repeat";
    at.value.disabled = at.kind.value === "null";
  };
  at.how.addEventListener("change", show);
  at.kind.addEventListener("change", show);
  show();
  const result = h("div", { role: "status" });
  const send = h("button", { type: "submit", class: "main", disabled: refusal("schedule") !== null }, replaces ? "Replace the message" : message ? "Schedule as a new message" : "Schedule");
  const made = h("form", { class: "card stack send", autocomplete: "off", "aria-label": "Schedule a message" },
    message && origin(message, isLetter, replaces),
    isHidden && h("p", { class: "notice bad" }, "The payload and the headers are hidden: a token with the role payload would have filled them in."),
    message && !message.target && h("p", { class: "notice bad" }, "The message itself is no longer kept: only its id is known."),
    field("send-topic", "Target topic", at.topic),
    h("div", { class: "row" }, field("send-how", "Deliver", at.how), parts.delay, parts.at), parts.repeat,
    h("div", { class: "row" }, field("send-kind", "Payload as", at.kind, { class: "field narrow" })),
    field("send-value", "Payload", at.value),
    h("div", { class: "row" }, field("send-id", "Id (a generated one, if empty)", at.id), field("send-conflict", "If the id is taken", at.conflict), field("send-key", "Kafka key", at.key)),
    field("send-headers", "Headers, one name=value per line", at.headers),
    Object.keys(kept).length > 0 && h("p", { class: "soft" }, `Kept as they are, because they are not one line of text: ${Object.keys(kept).join(", ")}`),
    h("details", null, h("summary", null, "Expiry, attempts, spread"),
      h("div", { class: "row" }, field("send-expire", zoned("Dead-letter it after"), at.expire), field("send-attempts", "Attempts", at.attempts), field("send-spread", "Spread", at.spread))),
    isLetter && !message.resolution && h("label", { class: "check", for: "send-discards" }, at.discards, " Discard the dead letter once the message is scheduled"),
    refusal("schedule") && h("p", { class: "notice bad" }, `${refusal("schedule")}.`),
    h("div", { class: "acts" }, send), result);
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    try {
      const isScheduled = await schedule(body(at, kept, message, replaces), result);
      if (isScheduled && isLetter && !message.resolution && at.discards.checked) await discard(message);
    } catch (error) {
      replace(result, h("div", { class: "notice bad" }, error.status === undefined ? error.message : reason(error),
        error.status === 0 && " The message may have been scheduled all the same: look before you repeat it."));
    } finally {
      send.disabled = false;
    }
  });
  return made;
}

function origin(message, isLetter, replaces) {
  if (isLetter) return h("p", { class: "soft" }, "A new message with what the ", h("a", { href: letterPath(message), "data-route": true }, "dead letter"), " ", h("span", { class: "id", dir: "auto" }, message.id), " holds.");
  return h("p", { class: "soft" }, replaces ? "This message takes the place of " : "A new message with what ", messageLink(message.id), replaces ? ", if that one is still pending." : " has. That one stays as it is.");
}

async function discard(letter) {
  try {
    await post("/v1/dead-letters/discard", { positions: [positionOf(letter)] });
    notice("The dead letter was discarded.");
  } catch (error) {
    notice(`The new message is scheduled, and the dead letter was not discarded: ${reason(error)}`, "bad");
  }
}

function base64(text) {
  let binary = "";
  for (const byte of new TextEncoder().encode(text)) binary += String.fromCharCode(byte);
  return btoa(binary);
}

const orNothing = (text) => (text === "" ? undefined : text);

/** How many of a series are left, the next one included: the series that takes its place counts anew. Null: there is no limit. */
const timesLeft = ({ repetition, occurrence }) => (repetition?.times ? repetition.times - Math.max(occurrence, 1) + 1 : null);

function body(at, kept, message, replaces) {
  const key = at.key.value;
  const made = {
    target: { topic: at.topic.value.trim(), headers: fromLines(at.headers.value, kept) },
    id: orNothing(at.id.value), on_conflict: at.id.value ? orNothing(at.conflict.value) : undefined,
    expire_at: orNothing(fieldInstant(at.expire)), spread: orNothing(at.spread.value.trim()),
    attempts: at.attempts.value === "" ? undefined : Number(at.attempts.value),
  };
  if (key.startsWith("base64:")) made.target.key_base64 = key.slice(7);
  else if (key) made.target.key = key;
  if (at.kind.value === "base64") made.value_base64 = at.value.value.trim();
  else made.value = at.kind.value === "null" ? null : at.value.value;
  if (at.how.value === "delay") made.delay = at.delay.value.trim();
  if (at.how.value === "at") made.deliver_at = fieldInstant(at.time);
  if (at.how.value === "repeat") {
    made.repeat = at.repeat.value.trim();
    made.time_zone = orNothing(at.zone.value.trim());
    made.repeat_times = at.times.value === "" ? undefined : Number(at.times.value);
    // Not in the form: they stay as they were.
    made.repeat_until = message?.repetition?.until ?? undefined;
    made.late_policy = message?.repetition?.late_policy ?? undefined;
    // A rhythm that was not changed keeps its next time. A cron expression has its own first time.
    const { repeat, time_zone: zone } = (replaces && message.repetition) || {};
    if (made.repeat === repeat && made.time_zone === (zone ?? undefined)) made.deliver_at = message.due_at;
    else if (!made.repeat.startsWith("cron")) made.delay = made.repeat.split(/\s+/)[1];
  }
  return made;
}

/** Send it, and say what became of it; a message that was scheduled is opened. */
async function schedule(message, place) {
  replace(place, h("p", { class: "soft" }, "Sending."));
  const sent = await post("/v1/messages", message, { wait: "5s" });
  const found = sent.result === "accepted" ? await follow(sent, place) : sent;
  const isScheduled = ["scheduled", "created", "unchanged", "changed"].includes(found.result);
  const due = timeText(found.due_at ?? sent.due_at);
  const told = {
    scheduled: `Scheduled for ${due}.`, created: `Scheduled for ${due}.`, unchanged: `Unchanged: the same message is due ${due}.`, changed: `Changed: it is due ${due}.`, conflict: "Not scheduled: the id is taken.", ignored: "Ignored: the id is taken.", rejected: "Rejected.",
    accepted: "In the log; the shard has not applied it yet.",
  }[found.result];
  const warnings = (sent.warnings ?? []).map((text) => ` Warning: ${text}.`).join("");
  replace(place, h("div", { class: isScheduled ? "notice" : "notice bad" }, told, found.detail ? ` ${found.detail}.` : "", warnings, " ", messageLink(sent.id)));
  place.querySelector("a").focus();
  return isScheduled;
}

/** Wait for the outcome of a message that its shard has not applied. */
async function follow(sent, place) {
  const until = performance.now() + OUTCOME_MS;
  let found = sent;
  replace(place, h("p", { class: "soft" }, "In the log; waiting until the shard has applied it."));
  while (found.result === "accepted" && performance.now() < until) {
    found = await get(`${pathOf(sent.id)}/outcome`, { offset: sent.offset, wait: "5s" });
  }
  return found;
}

/** The address of the form with what a message has. */
export const composeFrom = (id, isReplacing = false) => address("/ui/messages", { schedule: "true", from: id, replace: isReplacing ? "true" : null });

/** The same with what a dead letter holds. */
export const composeFromLetter = (letter) => address("/ui/messages", { schedule: "true", dead: letter.id, at: positionOf(letter) });

/** Whether the id is one that a user can give, and names no occurrence of a series. */
const isFree = (message) => !GENERATED.test(message.id) && message.occurrence === undefined;

/** Whether another message can take its place. */
export const isReplaceable = (message) => message.state === "pending" && message.target !== null && !GENERATED.test(message.id) && !message.paused;
