// What a console can say of an id of which no message is known: where it looked, and where to look next.

import { get, reason } from "../../lib/api.js";
import { card, h, link, replace, segment } from "../../lib/dom.js";
import { timeText } from "../../lib/format.js";
import { shell } from "./acts.js";

/** Say what the answer says, look for a dead letter and a rejected record, and name the other places. */
export async function unknown(place, id, error) {
  const wasRejected = error.faults.length > 0;
  const elsewhere = h("ul", { class: "plain" }, h("li", { class: "soft" }, "Looking for a dead letter and a rejected record."));
  replace(place, h("p", { class: "notice bad" }, wasRejected ? `Not accepted: ${error.detail}.` : "No message with this id is known: it was never scheduled, its record was rejected, or its retention is over."),
    card(wasRejected ? "Where it is" : "Where to look next", null, elsewhere));
  const [letter, record] = await Promise.all([look(`/v1/dead-letters/${segment(id)}`), look(`/v1/rejected/${segment(id)}`)]);
  replace(elsewhere,
    h("li", null, link(`/ui/dead-letters/${segment(id)}`, null, "Dead letters"), ": ", letter.found
      ? h("span", { class: "why" }, `dead-lettered at ${timeText(letter.found.dead_at)}, ${letter.found.reason}: ${letter.found.detail}${letter.found.resolution ? ` (${letter.found.resolution})` : ""}`) : letter.text),
    h("li", null, link(`/ui/rejected/${segment(id)}`, null, "Rejected records"), ": ", record.found
      ? h("span", { class: "why" }, `rejected at ${timeText(record.found.rejected_at)}, ${record.found.reason}: ${record.found.detail}`) : record.text),
    h("li", null, "Messages whose id begins so: ", link("/ui/messages", { "id-prefix": id }, "pending"), ", ", link("/ui/messages", { "id-prefix": id, state: "settled" }, "ended")),
    h("li", null, "The ", link("/ui/audit", { id }, "audit"), " of requests about this id"),
    h("li", null, "An archive, which has what is beyond the retention: ", h("code", null, `chronos archive find ${shell(id)} --location PATH`)));
}

/** What is found at a path: { found } or { text }. */
async function look(path) {
  try {
    return { found: await get(path) };
  } catch (error) {
    if (error.status === undefined) throw error;
    return { text: error.status === 404 ? `none; ${error.detail}` : reason(error) };
  }
}
