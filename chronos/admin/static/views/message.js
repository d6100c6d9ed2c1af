// One message: its history, why it waits or failed, what it carries, and what can be done with it.

import { get, reason } from "../lib/api.js";
import { actButton, actLink } from "../lib/caller.js";
import { copyButton } from "../lib/copy.js";
import { badge, card, facts, h, link, replace, segment } from "../lib/dom.js";
import { bytes, duration, ms, number, plural, timeText } from "../lib/format.js";
import { headerList } from "../lib/headers.js";
import { letterPath, letterWords, positionOf, resolveLetters } from "../lib/letters.js";
import { payload } from "../lib/payload.js";
import { nowMs } from "../lib/state.js";
import { ACTS, confirm, outcome, pathOf, shell, when } from "./messages/acts.js";
import { composeFrom, isReplaceable } from "./messages/compose.js";
import { historyOf } from "./messages/history.js";
import { nextTimes, rhythm } from "./messages/rhythm.js";
import { unknown } from "./messages/unknown.js";

const KINDS = { pending: "", delivered: "good", cancelled: "plain", expired: "bad", dead: "bad" };
const NEXT = 10; // Times of a series that are shown.
const UNKNOWN_MS = 10e3;
const DYING_MS = 60e3; // How long after the end of a message its dead letter may still come.

export function mount(root, { path, query, id }) {
  const name = h("span", { class: "id", dir: "auto" }, id);
  const title = h("h1", null, h("span", { class: "hidden-text" }, "Message "), name);
  const state = h("span");
  const told = h("div", { role: "status" });
  const why = h("div");
  const acts = h("div", { class: "acts" });
  const left = card("History", { class: "half" });
  const right = card("Message", { class: "half" });
  const carried = card("Payload", { class: "half" });
  const headers = card("Headers", { class: "half" });
  const times = card("Next times", { class: "wide" });
  const grid = h("div", { class: "grid" }, left, right, carried, headers, times);
  const copyId = copyButton("Copy the id", () => name.textContent);
  copyId?.classList.add("quiet");
  replace(root, h("div", { class: "head message" }, h("div", { class: "acts" }, title, state, copyId)), told, why, acts, grid);
  let turns = 0; // Requests so far,
  let drawn = 0; // and the one whose answer was the last to be shown.
  let askAt = 0; // When the service is asked again; an unknown id is not worth a request every 2 s.
  let shown = null; // The message as it was last shown, as text,
  let read = null; // and the one whose payload is shown.
  let letter = null; // Its dead letter; null: not known, undefined: there is none.
  let latest = null; // The message to which the buttons belong,
  let offered = null; // and what they depend on, as text.

  async function refresh() {
    if (performance.now() < askAt) return;
    // An action refreshes too, so that two of these may be on their way: what was asked for last is shown.
    const known = read;
    turns += 1;
    const turn = turns;
    let found;
    try {
      found = await get(pathOf(id), { payload: known === null ? "true" : null, occurrences: NEXT, rejections: "true" });
    } catch (error) {
      if (error.status !== 404) throw error;
      await showUnknown(error);
      return;
    }
    if (turn < drawn) return;
    drawn = turn;
    if (isDead(found) && letter === null) letter = await letterOf(found);
    // Another message that has the id by now has another payload.
    if (known !== null && (found.offset !== known.offset || found.shard !== known.shard || Boolean(found.target) !== Boolean(known.target))) {
      read = null;
      return refresh();
    }
    if (known === null) {
      read = found;
      showPayload(found);
    }
    show(found);
  }

  async function showUnknown(error) {
    askAt = performance.now() + UNKNOWN_MS;
    if (shown === error.message) return;
    shown = error.message;
    read = null;
    offered = null;
    replace(state, badge("unknown", "warn"));
    replace(why);
    replace(acts);
    grid.hidden = true;
    await unknown(why, id, error);
  }

  function show(message) {
    const { value, value_base64, overdue_ms, ...rest } = message;
    const text = JSON.stringify([rest, letterText(letter), Math.floor((overdue_ms ?? 0) / 10e3)]);
    const steps = historyOf(message);
    // Only what differs is drawn again, so that a selection of text stays.
    if (!left.lastChild.isEqualNode(steps)) replace(left, left.firstChild, steps);
    if (text === shown) return;
    shown = text;
    grid.hidden = false;
    // The address of some ids has them in base64.
    name.textContent = message.id;
    replace(state, badge(message.parked ? "pending, parked" : message.paused ? "pending, paused" : message.overdue_ms ? "pending, overdue" : message.state, message.parked ? "warn" : message.overdue_ms ? "bad" : KINDS[message.state]));
    replace(why, explanation(message, letter), message.rejection && laterRejection(message));
    showActs(message);
    replace(right, right.firstChild, details(message));
    times.hidden = !message.repetition || message.state !== "pending";
    replace(times, times.firstChild, nextTimes(message));
  }

  function showPayload(message) {
    const isHidden = Boolean(message.target) && message.value === undefined && message.value_base64 === undefined;
    const gone = h("p", { class: "soft" }, message.state === "cancelled" ? "A cancelled message is not kept." : "It is no longer kept: the retention of the message is over.", isDead(message) ? " The dead letter has it." : "");
    replace(carried, carried.firstChild, message.target
      ? payload(message, { mode: query.get("as"), onMode: (mode) => history.replaceState(null, "", `${location.pathname}?as=${mode}`) }) : gone);
    const own = message.target?.headers;
    const copyHeaders = own && copyButton("Copy as JSON", () => JSON.stringify(own, null, 2));
    copyHeaders?.classList.add("quiet");
    replace(headers, headers.firstChild, message.target ? headerList(own, { isHidden }) : gone.cloneNode(true), own && h("div", { class: "acts" }, copyHeaders));
  }

  /** The buttons are drawn again only if others are needed, so that the focus stays on them. */
  function showActs(message) {
    latest = message;
    const next = JSON.stringify([message.state, message.paused, Boolean(message.target), letterText(letter), isReplaceable(message)]);
    if (next === offered) return;
    offered = next;
    const act = (name) => actButton(name, { class: ACTS[name].kind, onclick: () => perform(name, latest) }, ACTS[name].verb);
    const again = message.target && actLink("schedule", composeFrom(id), "Edit and send again");
    const change = isReplaceable(message) && actLink("schedule", composeFrom(id, true), "Edit and replace");
    const made = message.state === "pending"
      ? [act("fire"), act("reschedule"), message.repetition && act(message.paused ? "resume" : "pause"), change, again, act("cancel")] : [again];
    if (isDead(message) && letter && !letter.resolution) {
      made.unshift(actButton("replay", { class: "main", onclick: replay }, "Replay"), link(letterPath(letter), null, "Dead letter"));
    } else if (isDead(message) && letter) made.unshift(link(letterPath(letter), null, `Dead letter, ${letter.resolution}`));
    replace(acts, made);
  }

  async function perform(name, message) {
    const chosen = await confirm(name, [message]);
    if (!chosen) return;
    replace(told, h("p", { class: "soft" }, "Sent; waiting for its result."));
    let result;
    try {
      result = await outcome(name, message, await ACTS[name].send(id, chosen === true ? undefined : chosen));
    } catch (error) {
      result = { text: reason(error), kind: "bad" };
    }
    replace(told, h("p", { class: `notice ${result.kind}` }, result.text));
    await refresh();
  }

  async function replay() {
    if (!await resolveLetters("replay", { positions: [positionOf(letter)] }, letterWords(letter))) return;
    letter = null;
    await refresh();
  }

  return { refresh, close() {}, title: id };
}

const isDead = (message) => message.state === "dead" || message.state === "expired";

/** The dead letter of a message; undefined if there is none, null if that is not known now. */
async function letterOf(message) {
  try {
    return await get(`/v1/dead-letters/${segment(message.id)}`);
  } catch (error) {
    if (error.status === undefined) throw error;
    const mayCome = message.settled_at !== null && nowMs() - ms(message.settled_at) < DYING_MS;
    return error.status === 404 && !mayCome ? undefined : null;
  }
}

const letterText = (letter) => (letter === undefined ? "none" : letter && ["known", letter.resolution]);

/** Why a message was not delivered, in one sentence above everything else; null for one that is well. */
function explanation(message, letter) {
  const words = message.detail ? `${message.reason}: ${message.detail}` : message.reason;
  if (isDead(message)) {
    const resolved = letter?.resolution ? ` The dead letter was ${letter.resolution}.` : letter === undefined ? " Its dead letter was not found." : "";
    return h("p", { class: "notice bad" }, message.state === "expired" && !words ? "Not delivered: it expired." : `Not delivered, ${words}.`, resolved);
  }
  if (message.overdue_ms) {
    const last = message.reason && !message.parked ? ` Last try: ${words}.` : "";
    return h("p", { class: "notice bad" }, `Overdue by ${duration(message.overdue_ms)}. Waits for: ${message.waits_for}.${last}`);
  }
  if (message.reason) return h("p", { class: "notice bad" }, `Not delivered yet, ${words}.`);
  return null;
}

/** A later record with the id: who sent it may expect a message that is not there. */
function laterRejection({ id, rejection }) {
  return h("p", { class: "notice warn" }, `A later record with this id was rejected at ${timeText(rejection.at)}, ${rejection.reason}: ${rejection.detail}. `, link(`/ui/rejected/${segment(id)}`, null, "Rejected records"));
}

function details(message) {
  const { target, repetition } = message;
  return facts([
    [message.paused ? "Paused until" : "Due", when(message.due_at)],
    ["Planned", message.planned_at === message.due_at ? null : when(message.planned_at)],
    ["Target", target && [link("/ui/messages", { target: target.topic }, h("span", { dir: "auto" }, target.topic)), target.partition !== undefined && h("span", { class: "soft" }, ` partition ${target.partition}`)]],
    ["Kafka key", target?.key !== undefined ? h("span", { class: "id", dir: "auto" }, target.key) : (target?.key_base64 && `base64 ${target.key_base64}`) ?? (target ? h("span", { class: "soft" }, "none") : null)],
    ["Payload", target && (message.value_bytes === null ? "null" : bytes(message.value_bytes))],
    ["Expires", message.expire_at && when(message.expire_at)],
    ["Series", repetition && rhythm(repetition)],
    ["Occurrence", repetition && `${number(message.occurrence)}${repetition.times ? ` of ${number(repetition.times)}` : ""}`],
    ["Spread", message.spread],
    ["Attempts", message.attempts || message.attempts_max ? `${plural(message.attempts, "failed attempt")}${message.attempts_max ? `, at most ${number(message.attempts_max)}` : ""}` : null],
    ["Stored", [link("/ui/cluster", { shard: message.shard }, `shard ${message.shard}`), `, offset ${number(message.offset)}`]],
    ["Requests", link("/ui/audit", { id: message.id }, "audit of this id")],
    ["Command", h("code", null, `chronos get ${shell(message.id)}`)],
  ]);
}
