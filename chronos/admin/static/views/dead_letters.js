// The messages that could not be delivered: how many by reason and target, a list, and what to do with them.

import { get } from "../lib/api.js";
import { actButton } from "../lib/caller.js";
import { countNote, counter } from "../lib/counts.js";
import { badge, h, link, replace } from "../lib/dom.js";
import { facet, isLike, showFacets, sums } from "../lib/facets.js";
import { filterForm } from "../lib/filters.js";
import { bytes, number, plural, relative } from "../lib/format.js";
import { letterPath, resolveLetters } from "../lib/letters.js";
import { askPage, pager } from "../lib/pages.js";
import { instant, PERIOD } from "../lib/period.js";
import { aboutReason, deadReasons, whyDead } from "../lib/reasons.js";
import { savedFilters } from "../lib/saved.js";
import { service, sum } from "../lib/service.js";
import { nowMs } from "../lib/state.js";
import { table } from "../lib/table.js";

const PATH = "/ui/dead-letters";
const PAGE = 100;
const EVERY_MS = 30e3; // Reading a topic costs the service more than its counters: only so often, or when another message failed.

export function mount(root, { query }) {
  const names = ["target", "reason", "id"];
  const chosen = () => ({ ...Object.fromEntries(names.map((name) => [name, query.get(name) || undefined])), since: instant(query.get("since")), until: instant(query.get("until")) });
  const isResolved = query.get("resolved") === "true";
  let readAt = -Infinity;
  let seen = null; // The total at the last reading; null: not known.
  let isLeft = false;
  const counts = counter({
    path: "/v1/dead-letter-counts", size: "letters", period: `${query.get("since")} ${query.get("until")}`, show: showCounts,
    query: () => ({ since: chosen().since, until: chosen().until }),
  });
  const facets = h("div", { class: "breakdown", hidden: true });
  const pages = h("div", { class: "pager", hidden: true });
  const progress = h("span", { class: "soft" });
  const selectedActs = h("div", { class: "acts picked", hidden: true });
  const allActs = h("div", { class: "acts" });
  const list = table({
    caption: "Dead letters", key: (letter) => `${letter.partition}/${letter.offset}`, empty: "No dead letters match. Messages that cannot be delivered appear here with the reason.",
    selectable: (letter) => `Select ${letter.id || letter.source}`, onSelect: showActs,
    columns: [
      { name: "Failed", cell: (letter) => relative(letter.dead_at) },
      { name: "Id", grow: true, cell: letterLink },
      { name: "Target", cell: (letter) => (letter.topic ? link(PATH, { ...Object.fromEntries(query), after: null, target: letter.topic }, letter.topic) : h("span", { class: "soft" }, "–")) },
      { name: "Reason", cell: (letter) => [badge(letter.reason, "bad"), letter.resolution && [" ", badge(letter.resolution, "plain")]] },
      { name: "Detail", grow: true, cell: (letter) => letter.detail },
      { name: "Attempts", numeric: true, cell: (letter) => number(letter.attempt) },
      { name: "Size", numeric: true, cell: (letter) => bytes(letter.value_bytes) },
    ],
  });

  function showActs(selected) {
    // The service resolves the newest dead letter of an id, as with the occurrences of a series.
    const ids = new Set(selected.filter((letter) => letter.id && !letter.resolution).map((letter) => letter.id));
    selectedActs.hidden = selected.length === 0;
    const act = (action) => run(action, [...ids].map((id) => ({ id })), `the newest of ${plural(ids.size, "selected id")}`);
    const left = selected.length - ids.size;
    replace(selectedActs,
      actButton("replay", { disabled: ids.size === 0, onclick: () => act("replay") }, `Replay ${number(ids.size)} selected`),
      actButton("discard", { class: "danger", disabled: ids.size === 0, onclick: () => act("discard") }, `Discard ${number(ids.size)} selected`),
      left > 0 && h("span", { class: "soft" }, `${plural(left, "other has", "others have")} no id, ${left === 1 ? "is" : "are"} resolved, or ${left === 1 ? "has" : "have"} the id of another one`));
  }

  /** What the filter selects, up to now: what fails later is not hit unseen. */
  function whole() {
    const { target, reason, since, until } = chosen();
    return { target, reason, since, until: until ?? Math.round(nowMs()) };
  }
  function inWords() {
    const { target, reason } = chosen();
    const period = ["since", "until"].filter((name) => query.get(name)).map((name) => `${name} ${query.get(name)}`);
    const parts = [reason && `with the reason ${reason}`, target && `for ${target}`, ...period].filter(Boolean);
    return parts.length ? `all that are not resolved, ${parts.join(", ")}` : "all that are not resolved";
  }
  async function run(action, selections, what) {
    let isStopped = false;
    const stop = h("button", { type: "button", class: "small", onclick: () => { isStopped = true; } }, "Stop");
    const isDone = await resolveLetters(action, selections, what, {
      told: (text) => (text ? replace(progress, text, " ", stop) : replace(progress)), isStopped: () => isStopped || isLeft,
    });
    if (!isDone || isLeft) return;
    list.clear();
    counts.forget();
    readAt = -Infinity;
    await refresh();
  }

  replace(allActs,
    !query.get("id") && [
      actButton("replay", { onclick: () => run("replay", [whole()], inWords()) }, "Replay all that match…"),
      actButton("discard", { class: "danger", onclick: () => run("discard", [whole()], inWords()) }, "Discard all that match…"),
    ]);
  replace(root,
    h("h1", null, "Dead letters"),
    savedFilters("dead-letters", PATH),
    h("section", { class: "card", "aria-label": "Dead letters" },
      filterForm({
        path: PATH, query, label: "Filter the dead letters",
        fields: [
          { name: "reason", label: "Reason", type: "select", options: [["", "any"], ...reasons(query).map((each) => [each, each])] },
          { name: "target", label: "Target", placeholder: "orders, or orders.*", maxlength: 249 },
          { name: "id", label: "Message id" }, ...PERIOD,
          { name: "resolved", label: "Also replayed and discarded ones", type: "checkbox" },
        ],
      }),
      facets, aboutReason(query.get("reason"), whyDead), h("div", { class: "head letter-acts" }, allActs, progress), selectedActs, list.element, pages));

  async function refresh() {
    const total = service.nodes && sum((shard) => shard.totals.dead + shard.totals.expired);
    const isOther = seen !== null && total !== seen;
    if (!isOther && performance.now() - readAt < EVERY_MS) {
      seen ??= total;
      return;
    }
    seen = total;
    readAt = performance.now();
    counts.refresh(total);
    await page();
  }

  async function page() {
    const asked = chosen();
    const found = await askPage(() => get("/v1/dead-letters", { ...asked, resolved: isResolved || undefined, limit: PAGE, after: query.get("after") }), { path: PATH, query })
      .catch((error) => { readAt = -Infinity; throw error; });
    if (found === null) return;
    list.update(found.letters);
    allActs.hidden = found.letters.every((letter) => letter.resolution);
    pager(pages, { path: PATH, query, found, count: found.letters.length, what: "dead letters", next: { since: asked.since, until: asked.until } });
  }

  function showCounts(known) {
    const [target, reason] = [query.get("target"), query.get("reason")];
    const byReason = sums(known.rows.filter((row) => isLike(row.topic, target)), "reason", "letters");
    const byTarget = sums(known.rows.filter((row) => !reason || row.reason === reason), "topic", "letters");
    const made = { path: PATH, query };
    showFacets(facets, known.rows.length === 0 ? [] : [
      facet({ ...made, label: "By reason", name: "reason", counts: byReason, title: (each) => whyDead(each)[0] }),
      facet({ ...made, label: "By target", name: "target", counts: byTarget }),
    ], countNote(known));
  }

  return { refresh, close() { counts.close(); isLeft = true; } };
}

function letterLink(letter) {
  if (!letter.id) return h("span", { class: "soft" }, `without its id, from ${letter.source}`);
  const made = link(letterPath(letter.id), null, letter.id);
  made.setAttribute("class", "id");
  made.setAttribute("dir", "auto");
  return [made, letter.occurrence > 1 && h("span", { class: "soft" }, ` occurrence ${number(letter.occurrence)}`)];
}

function reasons(query) {
  const given = query.get("reason");
  return given && !deadReasons.includes(given) ? [...deadReasons, given] : deadReasons;
}
