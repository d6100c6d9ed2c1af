// What surrounds every view: the head, the navigation, the banner, the token, and the keys.

import { onTokenNeeded, setToken, token } from "./api.js";
import { callerName, callerWords, refusal as notPermitted } from "./caller.js";
import { dialog, h, link, replace, segment } from "./dom.js";
import { keepInstants } from "./fields.js";
import { duration, timeText, zoneName, zoneWords } from "./format.js";
import { navigate } from "./router.js";
import { isCluster, look, service } from "./service.js";
import { currentZone, nowMs, switchTheme, switchZone } from "./state.js";
import { health, troubles } from "./trouble.js";

const $ = (id) => document.getElementById(id);
// Addresses in the document are relative to the one with which it was loaded, which changes with the view.
for (const each of document.querySelectorAll('a[href^="."], link[rel="icon"]')) each.setAttribute("href", each.href);

const SHOWN = 4; // Troubles shown before the rest is opened.

// [view, address, name, the key after g]
const VIEWS = [
  ["overview", "/", "Overview", "o"], ["messages", "/ui/messages", "Messages", "m"], ["timeline", "/ui/timeline", "Timeline", "l"],
  ["series", "/ui/series", "Series", "s"], ["dead-letters", "/ui/dead-letters", "Dead letters", "d"], ["rejected", "/ui/rejected", "Rejected", "r"],
  ["targets", "/ui/targets", "Targets", "t"], ["cluster", "/ui/cluster", "Cluster", "c"], ["audit", "/ui/audit", "Audit", "a"],
];

/** Mark the view in the navigation. */
export function frame(current) {
  const links = VIEWS.map(([view, path, name]) => {
    const made = link(path, null, name);
    if (view === current) made.setAttribute("aria-current", "page");
    return made;
  });
  replace($("views"), links);
  linkPermitted();
  links.find((each) => each.hasAttribute("aria-current"))?.scrollIntoView?.({ block: "nearest", inline: "nearest" });
}

/** Hide the link to the audit trail from a token that may not read it, unless the view is shown. */
function linkPermitted() {
  const audit = $("views").querySelector('[href$="/ui/audit"]');
  audit.hidden = !audit.hasAttribute("aria-current") && notPermitted("audit") !== null;
}

let said = null; // What the banner says: it is drawn, and read aloud, only when it says something else.
let items = []; // Its lines, whose numbers change meanwhile.

// Numbers that are no part of a name, with their units, and the shards, which are names.
const NUMBERS = /\bshards? \d+(?:(?:, | to )\d+)*|(?<![\w.-])\d[\d.,]*(?![\w-])(?: (?:ms|s|min|h|d)\b)?/g;

/** A text without its numbers: that one changes is not worth an announcement. */
const gist = (text) => text.replace(NUMBERS, (found) => (found.startsWith("shard") ? found : ""));

/** Show the state of the service: the word in the head, the banner, and whether what is shown is out of date. */
export function showState() {
  const wrong = troubles();
  const state = health(wrong);
  const { nodes, silentSince, refused } = service;
  if ($("health").textContent !== state.text) $("health").textContent = state.text;
  $("health").className = `pill ${state.kind}`;
  $("main").classList.toggle("stale", silentSince !== null);
  $("sign-out").hidden = token() === null;
  showCaller();
  showClock();
  if (nodes !== null) {
    const node = nodes.nodes[0];
    $("about").textContent = `${node.node} · cluster ${node.cluster} · ${node.log} log${isCluster() ? "" : " · standalone"}`;
    $("version").textContent = `Chronos ${node.version}${node.zone_data ? `, ${node.zone_data}` : ""}`;
  }
  const lines = silentSince !== null ? [silence(silentSince)] : refused !== null ? [refusal(refused)] : wrong.map(line);
  const next = JSON.stringify(lines.map(({ text }) => gist(text)));
  $("banner").setAttribute("aria-live", next === said ? "off" : "polite");
  if (next !== said) drawBanner(lines, wrong);
  said = next;
  items.forEach(({ place }, at) => { if (place.textContent !== lines[at].text) place.textContent = lines[at].text; });
}

function drawBanner(lines, wrong) {
  const { silentSince, refused } = service;
  const isOpen = $("banner").querySelector("details")?.open ?? false;
  const hasProblem = silentSince !== null || refused !== null || wrong.some((trouble) => trouble.isProblem);
  $("banner").hidden = lines.length === 0;
  $("banner").className = `banner ${hasProblem ? "bad" : "warn"}`;
  const before = [...items];
  items = lines.map((each) => {
    const at = before.findIndex(({ key }) => key === gist(each.text));
    return at < 0 ? item(each) : before.splice(at, 1)[0];
  });
  const made = items.map(({ element }) => element);
  const focused = $("banner").contains(document.activeElement) ? document.activeElement : null;
  replace($("banner"), made.length > 0 && h("ul", null, made.slice(0, SHOWN)),
    made.length > SHOWN && h("details", { open: isOpen }, h("summary", null, `${made.length - SHOWN} more`), h("ul", null, made.slice(SHOWN))));
  if (focused?.localName === "summary") $("banner").querySelector("summary")?.focus({ preventScroll: true });
  else if (focused?.isConnected) focused.focus({ preventScroll: true });
}

/** A line of the banner, which is kept as long as it says the same, and with it the focus on its links. */
function item({ text, rest }) {
  const place = h("span", null, text);
  return { key: gist(text), place, element: h("li", null, place, rest && h("span", { class: "next" }, rest())) };
}

function line({ text, next }) {
  return { text, rest: () => ["Next: ", link(next.path, next.query, next.view), " · ", h("code", null, next.command), h("span", { class: "soft" }, ` · docs/operations/${next.runbook}.md`)] };
}

function silence(since) {
  const what = service.nodes === null ? "" : " What is shown is its last answer.";
  return { text: `The service has not answered since ${timeText(since)}.${what} It is asked again every 2 s.`,
    rest: () => ["Next: ", h("code", null, "chronos doctor"), h("span", { class: "soft" }, " on the machine · docs/operations/not-starting.md")] };
}

function refusal(error) {
  if (error.status !== 401) return { text: error.message };
  const again = () => h("button", { type: "button", onclick: () => { isDeclined = false; look({ force: true }).then(redraw); } }, "Enter a token");
  return { text: "This service needs a token.", rest: again };
}

function showCaller() {
  const name = callerName();
  linkPermitted();
  $("caller").hidden = name === null;
  if (name === null || $("caller").title === callerWords()) return;
  $("caller").title = callerWords();
  replace($("caller"), h("span", { "aria-hidden": "true" }, name), h("span", { class: "hidden-text" }, callerWords()));
}

function showClock() {
  $("zone").textContent = zoneName();
  $("zone").setAttribute("aria-label", `Times are in ${zoneWords()}: switch to ${currentZone() === "utc" ? "local time" : "UTC"}`);
  if (service.nodes !== null) $("clock").textContent = `Service time ${timeText(nowMs())}, up ${duration(nowMs() - Date.parse(service.nodes.nodes[0].started_at))}`;
}

const redraw = () => document.dispatchEvent(new Event("chronos-redraw"));

// --- The token

let isDeclined = false; // The dialog was closed without a token: it comes back only on request.

onTokenNeeded(async () => {
  const wasWrong = token() !== null;
  setToken(null);
  if (isDeclined) return false;
  const field = h("input", { id: "token", type: "password", autocomplete: "off", required: true });
  const given = await dialog({
    title: "This service needs a token", action: "Use it in this tab",
    body: h("div", null, wasWrong && h("p", { class: "why" }, "The token was not accepted."), h("label", { for: "token" }, "Token"), field),
    read: () => field.value.trim(),
  });
  isDeclined = !given;
  if (given) setToken(given);
  return Boolean(given);
});

$("sign-out").addEventListener("click", () => {
  setToken(null);
  location.reload();
});

// --- Switches and keys

$("zone").addEventListener("click", () => { keepInstants($("main"), switchZone); showClock(); said = null; showState(); redraw(); });
$("theme").addEventListener("click", switchTheme);
$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = $("search-id").value.trim();
  if (id) navigate(`/ui/messages/${segment(id)}`);
});

const GO_MS = 1200; // How long after g the letter may come.
let goUntil = 0;

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest?.("input, select, textarea, [contenteditable]")) return;
  const goes = performance.now() < goUntil && VIEWS.find(([, , , key]) => key === event.key);
  goUntil = 0;
  if (goes) navigate(goes[1]);
  else if (event.key === "g") goUntil = performance.now() + GO_MS;
  else if (event.key === "/") {
    event.preventDefault();
    $("search-id").focus();
    $("search-id").select();
  } else if (event.key === "?") {
    dialog({ title: "Keys", action: "Close", back: null, body: h("dl", { class: "facts" },
      [["/", "Find a message"], ...VIEWS.map(([, , name, key]) => [`g ${key}`, name])].map(([keys, what]) => [h("dt", null, h("kbd", null, keys)), h("dd", null, what)])) });
  }
});
