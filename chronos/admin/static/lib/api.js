// Requests to the service, and what it answers when it refuses one.

import { BASE, address, placed } from "./dom.js";

const TOKEN = `chronos-token ${BASE}`; // Of this service only: others may be at other paths of the host. Kept until this tab is closed; where storage is forbidden, until the page is.

/** An answer that is a problem document (RFC 9457), or no answer at all, whose status is 0. */
export class ApiError extends Error {
  constructor({ status, code, title, detail, hint, faults }) {
    super(detail ? (hint ? `${detail} (${hint})` : detail) : title);
    Object.assign(this, { status, code, title, detail, hint, faults: faults ?? [] });
  }
}

let askForToken = async () => false;

/** How a token is asked for when the service needs one: a function whose promise is of whether one was given. */
export function onTokenNeeded(ask) { askForToken = ask; }

function stored() {
  try { return sessionStorage.getItem(TOKEN); } catch { return null; }
}
let held = stored();

export const token = () => held;
export function setToken(text) {
  held = text || null;
  try {
    if (held) sessionStorage.setItem(TOKEN, held);
    else sessionStorage.removeItem(TOKEN);
  } catch { /* see above */ }
}

let asking = null;
function askOnce() {
  asking ??= askForToken().finally(() => { asking = null; });
  return asking;
}

/** Send a request; the promise is of the decoded JSON, or of the text of an answer that is none. Asks for a token where one is needed. */
export async function request(method, path, { query, body, signal } = {}) {
  const sent = token();
  const headers = sent ? { Authorization: `Bearer ${sent}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(placed(address(path, query)), { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) }).catch(() => noAnswer(signal));
  if (answer.status === 401) {
    // Another request may have asked in the meantime.
    const isGiven = asking === null && token() !== sent ? true : await askOnce();
    if (isGiven && token()) return request(method, path, { query, body, signal });
  }
  const isText = answer.ok && answer.headers.get("Content-Type")?.startsWith("text/plain");
  const found = await (isText ? answer.text() : answer.json()).catch(() => null);
  // An answer that breaks off is none.
  if (answer.ok) return found ?? noAnswer(signal);
  signal?.throwIfAborted();
  throw new ApiError({
    status: answer.status, code: String(found?.type ?? "").split(":").pop(), title: found?.title ?? `Status ${answer.status}`,
    detail: found?.detail, hint: found?.hint, faults: found?.errors,
  });
}

function noAnswer(signal) {
  signal?.throwIfAborted();
  throw new ApiError({ status: 0, code: "no-answer", title: "The service does not answer.", detail: "The service does not answer." });
}

export const get = (path, query, signal) => request("GET", path, { query, signal });
export const post = (path, body, query) => request("POST", path, { body, query });
export const put = (path, body, query) => request("PUT", path, { body, query });
export const patch = (path, body, query) => request("PATCH", path, { body, query });
export const del = (path, query) => request("DELETE", path, { query });

/** What a problem is about, in words for people: which role is missing, or what was wrong. */
export function reason(error) {
  if (!(error instanceof ApiError)) throw error;
  const faults = error.faults.map((fault) => (fault.field ? `${fault.field}: ${fault.detail}` : fault.detail));
  return [error.message, ...faults.filter((text) => !error.message.includes(text))].join("; ");
}
