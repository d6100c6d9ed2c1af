// Requests that replay or discard dead letters, part by part.

import { get, post, reason } from "./api.js";
import { address, dialog, h, notice, replace, segment } from "./dom.js";
import { number, plural } from "./format.js";

/** Add up the results of several requests. */
function added(total, found) {
  total.matched += found.matched;
  total.resolved += found.resolved;
  for (const each of found.refused) {
    const known = total.refused.find((other) => other.reason === each.reason && other.final === each.final);
    if (known) known.letters += each.letters;
    else total.refused.push({ ...each });
  }
  return total;
}
const nothing = () => ({ matched: 0, resolved: 0, refused: [] });

/** Send one action about everything that a selection names, part by part, until it is stopped. */
async function send(action, selection, more, told, isStopped) {
  const total = nothing();
  let after;
  try {
    do {
      const found = await post(`/v1/dead-letters/${action}`, { ...selection, ...more, after });
      added(total, found);
      told(total);
      after = found.after ?? undefined;
    } while (after !== undefined && !isStopped());
  } catch (failed) {
    return { total, failed };
  }
  return { total, failed: null };
}

const VERBS = { replay: ["Replay", "replayed"], discard: ["Discard", "discarded"] };

/**
 * Replay or discard: count first, show what it will hit, ask, do it, and say what came of it. `selection`: the body of
 * the API, with positions or a filter. `what`: what is selected, in words. `told(text)` is called with the progress, at last
 * with ""; `isStopped()` ends it between two requests. The promise is of whether something was done.
 */
export async function resolveLetters(action, selection, what, { told = () => {}, isStopped = () => false } = {}) {
  const [verb, done] = VERBS[action];
  try {
    const { total: found, failed } = await send(action, selection, { dry_run: true }, (total) => told(`${number(total.matched)} counted so far.`), isStopped);
    if (failed) throw failed;
    told("");
    if (isStopped()) return false;
    if (found.matched === 0) {
      notice(`No dead letter is left to ${action}: ${what}.`, "bad");
      return false;
    }
    const answer = await confirm(action, verb, found, what);
    if (!answer) return false;
    const more = action === "replay" ? { anyway: answer.anyway } : {};
    const { total: result, failed: ending } = await send(action, selection, more, (total) => told(`${number(total.resolved)} ${done} so far.`), isStopped);
    const why = ending ? `Ended early, because of an error: ${reason(ending)}. ` : isStopped() ? "Stopped. " : "";
    notice(why + outcome(result, done), ending || result.refused.length ? "bad" : "good");
    return true;
  } catch (error) {
    notice(`${verb}: ${reason(error)}`, "bad");
    return false;
  } finally {
    told("");
  }
}

function outcome(result, done) {
  const left = result.refused.reduce((total, each) => total + each.letters, 0);
  const stay = left ? ` ${plural(left, "dead letter stays", "dead letters stay")} as ${left === 1 ? "it is" : "they are"}: ${result.refused.map(refusal).join("; ")}.` : "";
  return `${plural(result.resolved, "dead letter was", "dead letters were")} ${done}.${stay}`;
}

const refusal = (each) => `${number(each.letters)} × ${each.reason}, ${each.detail}`;

function confirm(action, verb, found, what) {
  const count = (each) => each.reduce((total, { letters }) => total + letters, 0);
  const never = found.refused.filter((each) => each.final);
  const again = found.refused.filter((each) => !each.final);
  const left = found.matched - count(found.refused);
  const label = (letters) => `${verb} ${plural(letters, "dead letter")}`;
  const anyway = again.length > 0 && h("input", { type: "checkbox", id: "anyway" });
  const causes = (refused) => h("ul", null, refused.map((each) => h("li", null, h("strong", null, `${number(each.letters)} × ${each.reason}`), `: ${each.detail}`,
    each.id && h("span", { class: "soft" }, " (first: ", h("span", { class: "id" }, each.id), ")"))));
  const one = count(again) === 1;
  const body = h("div", null,
    h("p", null, `${plural(found.matched, "dead letter")}: ${what}.`),
    h("p", null, action === "replay"
      ? "Each message is scheduled again, due at once, with its id, target, key, headers and payload. Nothing is delivered twice."
      : "They are no longer listed and can no longer be replayed. Their records stay in the dead-letter topic."),
    never.length > 0 && h("div", { class: "causes" },
      h("p", { class: "why" }, `${plural(count(never), "of them cannot be replayed", "of them cannot be replayed")}:`), causes(never)),
    anyway && h("div", { class: "causes" },
      h("p", { class: "why" }, left ? `${plural(count(again), "of them would fail", "of them would fail")} again, and ${one ? "stays as it is" : "stay as they are"}:` : "The cause is still there, so that they would fail again:"),
      causes(again),
      h("label", { class: "check", for: "anyway" }, anyway, ` Replay ${one ? "it" : "these"} too, although the cause is still there`)));
  const asked = dialog({ title: `${verb} dead letters?`, body, action: label(left), danger: action === "discard", read: () => ({ anyway: Boolean(anyway?.checked) }) });
  const button = body.closest("form").querySelector(".main");
  const show = () => {
    const letters = left + (anyway?.checked ? count(again) : 0);
    replace(button, label(letters));
    button.disabled = letters === 0;
  };
  if (anyway) anyway.addEventListener("change", show);
  show();
  return asked;
}

/** The position of a dead letter in its topic: an id may have several. */
export const positionOf = (letter) => `${letter.partition}:${letter.offset}`;

/** The address of a dead letter: its id, for people, and its position, by which it is found. One without an id is named by its record. */
export const letterPath = (letter) => address(`/ui/dead-letters/${segment(letter.id || letter.source)}`, { at: positionOf(letter) });

/** The dead letter at a position; without one the newest of the id. */
export const getLetter = (id, at) => get(at ? `/v1/dead-letters/at/${encodeURIComponent(at)}` : `/v1/dead-letters/${segment(id)}`);

/** A dead letter in words, for a question about it alone. */
export const letterWords = (letter) => `${letter.id ? `that of ${letter.id}` : `without its id, from ${letter.source}`}, at ${positionOf(letter)}`;
