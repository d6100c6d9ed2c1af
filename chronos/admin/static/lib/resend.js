// A form that sends what a dead letter holds as a new message, once it was edited.

import { post, reason } from "./api.js";
import { card, h, link, messageLink, notice, replace } from "./dom.js";
import { timeText } from "./format.js";
import { editable, fromLines } from "./headers.js";

const GENERATED = /^\d+-\d+-\d+$/; // Ids that Chronos makes: a message cannot be given one.
const WAIT = "5s";

/** The card with the form; null unless the address asks for it. `redraw` is called after the dead letter was discarded. */
export function resend(letter, { path, query, redraw }) {
  if (!query.get("edit")) return null;
  if (letter.value === undefined && letter.value_base64 === undefined) {
    return card("Send as a new message", null, h("p", null, "The payload is hidden from this token: a token with the role payload can edit it, and one with the role write can send it."));
  }
  const isText = letter.value_base64 === undefined;
  const { text, kept } = editable(letter.target.headers);
  const keptNames = Object.keys(kept);
  const field = (id, label, made) => [made, h("div", { class: "field" }, h("label", { for: id }, label), made)];
  const [topic, topicField] = field("new-topic", "Target topic", h("input", { id: "new-topic", required: true, maxlength: 249, value: letter.topic, spellcheck: "false" }));
  const isFree = letter.id && !GENERATED.test(letter.id) && letter.occurrence === undefined;
  const [id, idField] = field("new-id", "Id, or none to have one made", h("input", { id: "new-id", class: "mono", maxlength: 1400, value: isFree ? letter.id : "", spellcheck: "false" }));
  const isTextKey = letter.target.key_base64 === undefined;
  const [key, keyField] = field("new-key", isTextKey ? "Kafka key" : "Kafka key in base64", h("input", { id: "new-key", class: "mono", value: letter.target.key ?? letter.target.key_base64 ?? "", spellcheck: "false" }));
  const [delay, delayField] = field("new-delay", "Due in", h("input", { id: "new-delay", value: "0s", required: true, title: "A number and a unit: 250ms, 90s, 15m, 2h, 7d", spellcheck: "false" }));
  const [headers, headersField] = field("new-headers", "Headers, one name=value a line", h("textarea", { id: "new-headers", rows: "3", spellcheck: "false", value: text }));
  const [value, valueField] = field("new-value", isText ? "Payload" : "Payload in base64", h("textarea", { id: "new-value", rows: "12", spellcheck: "false", value: isText ? letter.value ?? "" : letter.value_base64 }));
  const discards = h("input", { id: "new-discards", type: "checkbox", checked: !letter.resolution, disabled: Boolean(letter.resolution) || !letter.id });
  const told = h("p", { class: "notice bad", role: "alert", hidden: true });
  const button = h("button", { type: "submit", class: "main" }, "Send as a new message");

  const tell = (...content) => {
    replace(told, ...content);
    told.hidden = content.length === 0;
  };
  function body() {
    const target = { topic: topic.value.trim(), headers: fromLines(headers.value, kept) };
    if (key.value || letter.target.key === "") target[isTextKey ? "key" : "key_base64"] = key.value;
    const made = { target, delay: delay.value.trim() };
    if (id.value) made.id = id.value;
    // A payload that was null stays null as long as nothing is written into the field.
    if (isText) made.value = letter.value === null && value.value === "" ? null : value.value;
    else made.value_base64 = value.value.trim();
    return made;
  }

  async function send(event) {
    event.preventDefault();
    tell();
    button.disabled = true;
    try {
      const sent = await post("/v1/messages", body(), { wait: WAIT });
      if (sent.result !== "scheduled" && sent.result !== "accepted") {
        tell(`Not scheduled, ${sent.result}${sent.detail ? `: ${sent.detail}` : ""}. The dead letter is as it was.`);
        return;
      }
      const warnings = (sent.warnings ?? []).map((each) => ` Warning: ${each}.`).join("");
      notice(h("span", null, sent.result === "scheduled" ? "Scheduled as " : "Accepted, and not applied yet: ", messageLink(sent.id), `, due ${timeText(sent.due_at)}.${warnings}`), warnings ? "bad" : "good");
      if (discards.checked) await discard();
    } catch (error) {
      tell(error.status === undefined && error.constructor === Error ? error.message : reason(error));
    } finally {
      button.disabled = false;
    }
  }

  async function discard() {
    try {
      const found = await post("/v1/dead-letters/discard", { id: letter.id });
      if (found.resolved) notice("The dead letter was discarded.");
      await redraw();
    } catch (error) {
      notice(`The new message is scheduled, and the dead letter was not discarded: ${reason(error)}`, "bad");
    }
  }

  const form = h("form", { class: "stack", autocomplete: "off", onsubmit: send },
    h("div", { class: "filters" }, topicField, idField, keyField, delayField),
    valueField, headersField,
    keptNames.length > 0 && h("p", { class: "soft" }, `Kept as they are, because they are not one line of text: ${keptNames.join(", ")}`),
    h("label", { class: "check", for: "new-discards" }, discards, " Discard the dead letter once the message is scheduled"),
    told,
    h("div", { class: "acts" }, button, link(path, null, "Close")));
  return card("Send as a new message", null, form);
}
