// One message that could not be delivered: why, what to do, what it holds, and its earlier dead letters.

import { get } from "../lib/api.js";
import { actButton, actLink } from "../lib/caller.js";
import { badge, card, facts, h, link, messageLink, replace, segment } from "../lib/dom.js";
import { number, relative, time } from "../lib/format.js";
import { headerList } from "../lib/headers.js";
import { getLetter, letterPath, letterWords, positionOf, resolveLetters } from "../lib/letters.js";
import { payload } from "../lib/payload.js";
import { whyDead } from "../lib/reasons.js";
import { table } from "../lib/table.js";
import { composeFromLetter } from "./messages/compose.js";

const EARLIER = 20; // Dead letters of the id that are listed.

export async function mount(root, { id, query }) {
  const content = h("div", { class: "letter" });
  replace(root, h("h1", null, "Dead letter ", h("span", { class: "id", dir: "auto" }, id)), content);

  /** Once: an answer with a payload makes an entry in the audit trail. */
  async function refresh() {
    const letter = await getLetter(id, query.get("at"));
    replace(content, summary(letter, refresh), h("div", { class: "grid" }, message(letter, query), past(letter)));
  }

  function past(letter) {
    const place = card("Dead letters of this id", { class: "half start" }, h("p", { class: "soft" }, "Looking for earlier ones"));
    earlier(letter).then((found) => replace(place, place.querySelector("h2"), found));
    return place;
  }

  return { refresh, close() {}, live: false, title: `Dead letter ${id}` };
}

function summary(letter, redraw) {
  const [what, todo] = whyDead(letter.reason);
  const run = async (action) => {
    if (await resolveLetters(action, { positions: [positionOf(letter)] }, letterWords(letter))) await redraw();
  };
  const state = letter.resolution ? badge(letter.resolution, letter.resolution === "replayed" ? "good" : "plain") : badge("not resolved", "bad");
  return card("Why it was not delivered", null,
    h("p", null, state, " ", badge(letter.reason, letter.resolution ? "plain" : "bad")),
    facts([
      ["What happened", what],
      ["Detail", h("span", { class: letter.resolution ? null : "why" }, letter.detail)],
      ["What to do", letter.resolution === "replayed" ? ["Nothing: it was scheduled again. ", link(`/ui/messages/${segment(letter.id)}`, null, "See what became of it"), "."]
        : letter.resolution === "discarded" ? "Nothing: it was discarded." : todo],
    ]),
    !letter.resolution && h("div", { class: "acts" },
      actButton("replay", { class: "main", onclick: () => run("replay") }, "Replay…"),
      letter.id && edit(letter),
      actButton("discard", { class: "danger", onclick: () => run("discard") }, "Discard…")),
    letter.resolution && letter.id && h("div", { class: "acts" }, edit(letter)));
}

const edit = (letter) => actLink("schedule", composeFromLetter(letter), "Edit and send as a new message");

function message(letter, query) {
  const isHidden = letter.value === undefined && letter.value_base64 === undefined;
  const key = letter.target.key_base64 !== undefined ? `base64 ${letter.target.key_base64}` : letter.target.key;
  const keepMode = (mode) => {
    query.set("as", mode);
    history.replaceState(null, "", `${location.pathname}?${query}`);
  };
  return h("div", { class: "half column" },
    card("Message", null,
      facts([
        ["Id", letter.id ? messageLink(letter.id) : h("span", { class: "soft" }, "lost: its record was too large to be passed on")],
        ["Target", letter.topic && link("/ui/dead-letters", { target: letter.topic }, letter.topic)],
        ["Kafka key", key === undefined ? null : h("span", { class: "id", dir: "auto" }, key ?? "null")],
        ["Due", letter.due_at && [time(letter.due_at), " ", h("span", { class: "soft" }, "(", relative(letter.due_at), ")")]],
        ["Failed", [time(letter.dead_at), " ", h("span", { class: "soft" }, "(", relative(letter.dead_at), ")")]],
        ["Attempts", `${number(letter.attempt)}, the last of which failed`],
        ["Occurrence", letter.occurrence > 1 ? number(letter.occurrence) : null],
        ["Replay of", letter.replayed ?? null],
        ["Its record", letter.source],
        ["Dead letter", `partition ${letter.partition}, offset ${number(letter.offset)}`],
      ])),
    card("Headers", null, headerList(letter.target.headers, { isHidden })),
    card("Payload", null, payload(letter, { mode: query.get("as") ?? undefined, onMode: keepMode })));
}

async function earlier(letter) {
  if (!letter.id) return h("p", { class: "soft" }, "Without its id they cannot be found.");
  let found;
  try {
    found = await get("/v1/dead-letters", { id: letter.id, resolved: true, limit: EARLIER });
  } catch (error) {
    if (error.status === undefined) throw error;
    return h("p", { class: "soft" }, error.message);
  }
  return [
    table({
      caption: "Dead letters of this id", rows: found.letters, key: positionOf, empty: "None in the part of the topic that was read.",
      columns: [
        { name: "Position", cell: (each) => (positionOf(each) === positionOf(letter) ? h("strong", null, positionOf(each)) : link(letterPath(each), null, positionOf(each))) },
        { name: "Failed", cell: (each) => time(each.dead_at) },
        { name: "Reason", grow: true, cell: (each) => each.reason },
        { name: "State", cell: (each) => each.resolution ?? badge("not resolved", "bad") },
      ],
    }).element,
    found.after !== null && h("p", null, link("/ui/dead-letters", { id: letter.id, resolved: "true" }, "Look for more")),
  ].filter(Boolean);
}
