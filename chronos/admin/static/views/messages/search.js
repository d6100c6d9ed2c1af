// What the address of a list of messages means: which messages, in words, for the list, and for a job.

import { get } from "../../lib/api.js";
import { ms } from "../../lib/format.js";
import { nowMs } from "../../lib/state.js";

/** The states of the list. "overdue" is that of a pending message whose time has passed. */
export const STATES = [
  ["", "Pending"], ["overdue", "Overdue"], ["delivered", "Delivered"], ["dead", "Dead"], ["expired", "Expired"],
  ["cancelled", "Cancelled"], ["settled", "All that ended"],
];

/** Names of the query that choose messages, besides `state`. */
export const CONDITIONS = ["target", "id-prefix", "due-from", "due-to", "key", "header", "contains", "series"];

/** Rows of a page. */
export const PAGE = 100;

const PART = 1000; // Messages of one request, at most.
const SEARCH_MS = 1500; // How long a search goes on by itself while it finds few messages,
const REQUESTS_MAX = 12; // and how many requests it makes.

export const isPending = (query) => ["", "pending", "overdue"].includes(query.get("state") ?? "");

/** The conditions of the address as a query of a link: without the page. */
export function chosen(query) {
  return Object.fromEntries(["state", ...CONDITIONS].map((name) => [name, query.getAll(name)]));
}

/** The end of the due window: that of overdue messages is the present, unless the address has an earlier one. */
function dueTo(query) {
  const given = query.get("due-to");
  if (query.get("state") !== "overdue") return given;
  const now = nowMs();
  return given && ms(given) < now ? given : new Date(Math.floor(now)).toISOString();
}

/** The parameters of `GET /v1/messages`. */
function parameters(query) {
  const state = query.get("state");
  return {
    state: state === "overdue" ? "pending" : state,
    target: query.get("target"), id_prefix: query.get("id-prefix"), key: query.get("key"),
    due_from: query.get("due-from"), due_to: dueTo(query), header: query.getAll("header"),
    contains: query.get("contains"), series: query.get("series") === "true" ? "true" : null,
  };
}

/** The filter of a job: null if a job cannot have these conditions. */
export function jobFilter(query) {
  if (!isPending(query)) return null;
  const { target, id_prefix, key, due_from, due_to, header, contains, series } = parameters(query);
  const pairs = header.filter(Boolean).map((text) => [text.split("=", 1)[0], text.slice(text.indexOf("=") + 1)]);
  // A job has one value for each name.
  if (new Set(pairs.map(([name]) => name)).size < pairs.length) return null;
  const all = {
    target, id_prefix, key, due_from, due_to, headers: pairs.length ? Object.fromEntries(pairs) : null, contains, series: series && true,
  };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== null && value !== ""));
}

/** A filter of a job in words. */
export function filterText(filter) {
  const words = {
    target: (value) => `for ${value}`, id_prefix: (value) => `with an id that begins with ${value}`, key: (value) => `with the key ${value}`,
    contains: (value) => `with ${value} in its id, key or headers`, series: () => "that are series",
    headers: (value) => Object.entries(value).map(([name, text]) => `with the header ${name}=${text}`).join(", "),
  };
  const found = Object.keys(words).filter((name) => filter[name] !== undefined).map((name) => words[name](filter[name]));
  return found.join(", ") || "of every target";
}

/**
 * One page of messages. Where few match, a request finds less than a page: the search goes on for SEARCH_MS, and
 * `through` is the due time up to which it has read; null: to the end.
 */
export async function search(query, { signal, limit = PAGE } = {}) {
  const began = performance.now();
  const asked = { ...parameters(query), limit: Math.min(limit, PART) };
  const found = { messages: [], after: query.get("after"), through: null, keptFrom: null, requests: 0, ms: 0, dueTo: asked.due_to };
  do {
    const page = await get("/v1/messages", { ...asked, after: found.after, limit: Math.min(PART, limit - found.messages.length) }, signal);
    found.messages.push(...page.messages);
    Object.assign(found, { after: page.after, through: page.through ?? null, keptFrom: page.kept_from ?? null });
    found.requests += 1;
    found.ms = performance.now() - began;
  } while (found.after !== null && found.messages.length < limit && found.ms < SEARCH_MS && found.requests < REQUESTS_MAX);
  return found;
}
