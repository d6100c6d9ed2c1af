// Whose token the console sends, and what it permits: what it does not permit is not offered.

import { get, token } from "./api.js";
import { h, notice } from "./dom.js";

const KEPT_MS = 60e3; // The file of tokens may change.

/** The answer of /v1/whoami; null: not known, and then everything is offered, which the service may refuse. */
let known = null;
let askedFor; // The token of the last question,
let askedAt = -Infinity; // and when it was asked.
let asking = null;

/** Ask who the caller is, unless that is known. Never throws. */
export function identify() {
  if (askedFor === token() && performance.now() - askedAt < KEPT_MS) return asking ?? Promise.resolve();
  asking ??= ask().finally(() => { asking = null; });
  return asking;
}

async function ask() {
  const before = JSON.stringify(known?.actions);
  // A node that answers with an error is asked again after a while, one that does not answer with the next look.
  const found = await get("/v1/whoami").catch((error) => (error.status === undefined ? Promise.reject(error) : error));
  const isOther = askedFor !== token();
  const isSilent = found.status === 0;
  [askedFor, askedAt] = [token(), isSilent ? -Infinity : performance.now()];
  if (!(found instanceof Error)) known = found;
  else if (isOther || !isSilent) known = null;
  if (!isOther && before !== JSON.stringify(known?.actions)) document.dispatchEvent(new Event("chronos-redraw"));
}

/** The name of the token; null: there is none, or it is not known. */
export const callerName = () => known?.token ?? null;

/** The token in words: its roles, and its targets if it is limited to some. */
export function callerWords() {
  const targets = known.targets.includes("*") ? "" : `, for ${known.targets.join(", ")}`;
  return `Token ${known.token}: ${known.roles.join(", ")}${targets}`;
}

/** Why an action of the API is not offered, in words; null if it is. `action`: its name in the audit trail, or several. */
export function refusal(...actions) {
  if (known === null || actions.every((action) => known.actions.includes(action))) return null;
  return `Not permitted to the token ${known.token}, whose ${known.roles.length === 1 ? "role is" : "roles are"} ${known.roles.join(", ")}${known.targets.includes("*") ? "" : ", for some targets only"}`;
}

/** A button of actions. One that the token does not permit can be reached, so that its reason is read, and does nothing. */
export function actButton(actions, attributes, ...text) {
  const why = refusal(...[actions].flat());
  const given = { type: "button", ...attributes };
  return h("button", why === null ? given : { ...given, disabled: false, "aria-disabled": "true", title: why, onclick: () => notice(why, "bad") }, ...text);
}

/** A link to a form of an action, shown as a button; a button that says why it is none if the token does not permit it. */
export function actLink(action, href, text) {
  return refusal(action) === null ? h("a", { class: "button", href, "data-route": true }, text) : actButton(action, null, text);
}
