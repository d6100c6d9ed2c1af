// The console: draws the view that the address names, and keeps it fresh while it is looked at.
//
// A view is a module of views/ with `mount(root, { path, query, id }) -> { refresh, close, live, title }`: query is a
// URLSearchParams, id the rest of the path, decoded. `refresh()` is called once after `mount` and then by the one loop,
// unless `live` is false.

import { reason } from "./lib/api.js";
import { identify } from "./lib/caller.js";
import { h, replace } from "./lib/dom.js";
import { frame, showState } from "./lib/frame.js";
import { onNavigate, resolve } from "./lib/router.js";
import { look, service } from "./lib/service.js";

const EVERY_MS = 2000;
const root = document.getElementById("main");

let view = null; // What `mount` returned.
let turns = 0; // Grows with every navigation: an answer for a view that was left is dropped.
let refreshing = null;
let edited = null; // The form of the view in which something was entered that was not sent.

async function draw({ isNew }) {
  turns += 1;
  const turn = turns;
  const before = document.activeElement;
  const found = resolve(location);
  frame(found.view);
  // What a view offers depends on the token.
  const [module] = await Promise.all([load(found.module), identify()]);
  if (turn !== turns) return;
  view?.close?.();
  view = null;
  edited = null;
  const focused = root.contains(document.activeElement) ? document.activeElement.id : null;
  // An element of its own: what a view that was left still writes is not seen.
  const place = h("div", { class: "view" });
  replace(root, place);
  const mounted = await module.mount(place, found.params) ?? {};
  if (turn !== turns) {
    mounted.close?.();
    return;
  }
  view = mounted;
  document.title = `${view.title ?? root.querySelector("h1")?.textContent ?? "Overview"} · Chronos`;
  // Whoever has gone on to another field while the view was loaded stays there.
  const now = document.activeElement;
  const hasLeft = now !== before && now !== document.body && !root.contains(now);
  if (isNew && !hasLeft) {
    const again = focused && document.getElementById(focused);
    if (again && root.contains(again)) again.focus({ preventScroll: true });
    else {
      root.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
  }
  refreshing = null;
  await refresh(turn);
}

/** The module of a view; one that says so if there is none, or if it cannot be fetched at the moment. */
async function load(name) {
  if (name === null) return { mount: unknown };
  try {
    return await import(`./views/${name}.js`);
  } catch (error) {
    return { mount: (place) => unreachable(place, error) };
  }
}

function unreachable(place, error) {
  let wasSilent = false;
  replace(place, h("h1", null, "This view cannot be loaded"),
    // Modules that do not fit together are those of two versions.
    h("p", null, error instanceof SyntaxError ? "The service has another version than this page, which has to be loaded again. " : "It is loaded again as soon as the service answers. ", error.message),
    h("p", null, h("button", { type: "button", onclick: () => location.reload() }, "Load the console again")));
  return {
    title: "Not loaded",
    async refresh() {
      await look();
      if (service.silentSince !== null) wasSilent = true;
      else if (wasSilent) location.reload();
    },
  };
}

function unknown(place, { path }) {
  replace(place, h("h1", null, "There is no such view"), h("p", null, `The console has no view at ${path}. `, h("a", { href: "/", "data-route": true }, "Go to the overview"), "."));
  return { live: false, title: "No such view" };
}

/** Refresh the view; at most one request of it is on its way. */
function refresh(turn = turns) {
  refreshing ??= run(turn).finally(() => { if (turn === turns) refreshing = null; });
  return refreshing;
}

async function run(turn) {
  const [, problem] = await Promise.all([look(), Promise.resolve(view?.refresh?.()).then(() => null, caught)]);
  if (turn !== turns) return;
  showState();
  showProblem(problem);
}

function caught(error) {
  if (error.name === "AbortError") return null;
  if (error.status === undefined) throw error;
  return error;
}

/** Say why the view cannot be filled. That the service does not answer is said by the banner. */
function showProblem(problem) {
  let place = document.getElementById("problem");
  const text = problem === null || problem.status === 0 || problem.status === 401 ? null : reason(problem);
  if (text === null) {
    place?.remove();
    return;
  }
  if (place === null || !root.contains(place)) {
    place = h("p", { id: "problem", class: "notice bad", role: "alert" });
    root.querySelector("h1")?.after(place);
    if (!place.isConnected) root.prepend(place);
  }
  if (place.textContent !== text) replace(place, text);
}

async function loop() {
  for (;;) {
    await new Promise((done) => setTimeout(done, EVERY_MS));
    if (document.hidden) continue;
    // An error in a view is reported, and does not end the loop.
    await (view?.live === false && service.silentSince === null ? look().then(showState) : refresh()).catch(reportError);
  }
}

document.addEventListener("visibilitychange", () => { if (!document.hidden && view?.live !== false) refresh(); });
// What was entered into a form is not lost. Filters are in the address.
root.addEventListener("input", ({ target }) => { if (target.form && target.form.getAttribute("role") !== "search") edited = target.form; });
document.addEventListener("chronos-redraw", () => (edited?.isConnected ? refresh() : draw({ isNew: false })));
document.addEventListener("chronos-refresh", () => refresh());
onNavigate(draw);
draw({ isNew: false });
loop();
