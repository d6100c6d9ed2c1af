// The messages that could not be delivered: how many by reason and target, a list, and what to do with them.

import { get } from "../lib/api.js";
import { actButton } from "../lib/caller.js";
import { countNote, counter } from "../lib/counts.js";
import { badge, h, link, replace } from "../lib/dom.js";
import { facet, isLike, showFacets, sums } from "../lib/facets.js";
import { filterForm } from "../lib/filters.js";
import { bytes, number, plural, relative } from "../lib/format.js";
import { letterPath, positionOf, resolveLetters } from "../lib/letters.js";
import { askPage, pager } from "../lib/pages.js";
import { conditions, PERIOD } from "../lib/period.js";
import { aboutReason, deadReasons, whyDead } from "../lib/reasons.js";
import { service, sum, topicReader } from "../lib/service.js";
import { nowMs } from "../lib/state.js";
import { table } from "../lib/table.js";

const PATH = "/ui/dead-letters";
const PAGE = 100;

export function mount(root, { query }) {
  const chosen = () => conditions(query, ["target", "reason", "id"]);
  const isResolved = query.get("resolved") === "true";
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
    caption: "Dead letters", key: positionOf, empty: "No dead letters match. Messages that cannot be delivered appear here with the reason.",
    selectable: (letter) => `Select ${letter.id || letter.source}`, onSelect: showActs,
    columns: [
      { name: "Failed", cell: (letter) => relative(letter.dead_at) },
      { name: "Id", grow: true, cell: letterLink },
      { name: "Target", cell: (letter) => (letter.topic ? link(PATH, { ...Object.fromEntries(query), after: null, target: letter.topic }, letter.topic) : h("span", { class: "soft" }, "–")) },
      { name: "Reason", cell: (letter) => [badge(letter.reason, "bad"), letter.resolution && [" ", badge(letter.resolution, "plain")]] },
      { name: "Detail", grow: true, cell: (letter) => letter.detail },
      { name: "Position", cell: (letter) => h("span", { class: "soft" }, positionOf(letter)) },
      { name: "Attempts", numeric: true, cell: (letter) => number(letter.attempt) },
      { name: "Size", numeric: true, cell: (letter) => bytes(letter.value_bytes) },
    ],
  });

  function showActs(selected) {
    const positions = selected.filter((letter) => !letter.resolution).map(positionOf);
    selectedActs.hidden = selected.length === 0;
    const act = (action) => run(action, { positions }, positions.length === 1 ? "the one selected" : "those selected");
    const left = selected.length - positions.length;
    replace(selectedActs,
      actButton("replay", { disabled: positions.length === 0, onclick: () => act("replay") }, `Replay ${number(positions.length)} selected`),
      actButton("discard", { class: "danger", disabled: positions.length === 0, onclick: () => act("discard") }, `Discard ${number(positions.length)} selected`),
      left > 0 && h("span", { class: "soft" }, `${plural(left, "other is", "others are")} resolved`));
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
  async function run(action, selection, what) {
    let isStopped = false;
    const stop = h("button", { type: "button", class: "small", onclick: () => { isStopped = true; } }, "Stop");
    const isDone = await resolveLetters(action, selection, what, {
      told: (text) => (text ? replace(progress, text, " ", stop) : replace(progress)), isStopped: () => isStopped || isLeft,
    });
    if (!isDone || isLeft) return;
    list.clear();
    counts.forget();
    await refresh({ force: true });
  }

  replace(allActs,
    !query.get("id") && [
      actButton("replay", { onclick: () => run("replay", whole(), inWords()) }, "Replay all that match…"),
      actButton("discard", { class: "danger", onclick: () => run("discard", whole(), inWords()) }, "Discard all that match…"),
    ]);
  replace(root,
    h("h1", null, "Dead letters"),
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

  const refresh = topicReader(() => service.nodes && sum((shard) => shard.totals.dead + shard.totals.expired), (total) => {
    counts.refresh(total);
    return page();
  });

  async function page() {
    const asked = chosen();
    const found = await askPage(() => get("/v1/dead-letters", { ...asked, resolved: isResolved || undefined, limit: PAGE, after: query.get("after") }), { path: PATH, query });
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
  const made = link(letterPath(letter), null, letter.id || `without its id, from ${letter.source}`);
  made.setAttribute("class", "id");
  made.setAttribute("dir", "auto");
  return [made, letter.occurrence > 1 && h("span", { class: "soft" }, ` occurrence ${number(letter.occurrence)}`)];
}

function reasons(query) {
  const given = query.get("reason");
  return given && !deadReasons.includes(given) ? [...deadReasons, given] : deadReasons;
}
