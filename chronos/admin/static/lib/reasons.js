// The reasons of docs/reference/headers.md in plain words: what happened, and what to do.

import { h } from "./dom.js";

/** Of dead letters. */
const DEAD = {
  "expired": ["The message could not be delivered before its expiry (chronos-expire-at).", "Nothing, if it is worthless now: discard it. A replay delivers it all the same."],
  "target-missing": ["The target topic does not exist, or Chronos may not describe it.", "Create the topic, or grant access to it, and replay the dead letter."],
  "too-large": ["The message is larger than its target takes (max.message.bytes).", "Raise the limit of the topic and replay the dead letter, or send a smaller payload as a new message."],
  "no-key": ["The target is compacted (cleanup.policy), and takes no message without a key.", "Send it again as a new message with a Kafka key; have the producer set chronos-target-key."],
  "refused-by-broker": ["The broker refused the message as often as it was tried.", "Remove the cause that the detail names, and replay the dead letter."],
  "forbidden-target": ["The target is not permitted any more by targets.allow and targets.deny, or Kafka's ACLs do not allow Chronos to write to it.", "Permit the target, or grant the right to write to it, and replay the dead letter."],
  "bad-value": ["The next time of a cron series cannot be computed, because the node does not know its time zone.", "Install the time zone data on the node, and schedule the series again."],
};

/** Of rejected records: what was wrong, and how the producer is corrected. */
const REJECTED = {
  "unreadable-headers": ["A name of a header is not UTF-8. The record was copied without its headers.", "Have the producer write names of headers in UTF-8."],
  "unknown-header": ["A header begins with chronos-, or is one edit away from a header of Chronos, and is none.", "Correct the name as the detail says, or use another prefix for headers of your own."],
  "repeated-header": ["A header of Chronos occurs more than once.", "Have the producer write it once."],
  "contradictory-headers": ["Headers exclude each other, such as two times.", "Have the producer write only one of those that the detail names."],
  "bad-value": ["A value is not valid: a time, a duration, a topic, an action, a repetition or a time zone.", "Write the value in the form that the detail gives."],
  "beyond-max-delay": ["The message is due further ahead than limits.max_delay.", "Correct the unit: usually the time is in micro- or nanoseconds. Raise limits.max_delay if the time is intended."],
  "past": ["The message was due longer ago than limits.max_past.", "Correct the year or the unit. Raise limits.max_past if the time is intended."],
  "no-time": ["The record has neither chronos-deliver-at nor chronos-delay.", "Have the producer write one of them."],
  "no-target": ["The record has no chronos-target-topic.", "Have the producer write it."],
  "reserved-target": ["The target is a topic of Chronos or of Kafka itself.", "Choose another topic."],
  "forbidden-target": ["The target is not permitted by targets.allow and targets.deny.", "Correct the name of the topic, or permit it."],
  "bad-id": ["The id is empty or longer than 1,024 bytes.", "Choose a shorter key."],
  "reserved-id": ["The key looks like an id that Chronos makes, <shard>-<due>-<offset>.", "Choose another key: any prefix is sufficient."],
  "no-id": ["A replacement has no key, or an action names no message.", "Give the id of the message as the key, or in chronos-id."],
  "wrong-shard": ["The id belongs to another partition of the delay topic.", "Send it to the right partition: set partitioner=murmur2_random in clients of librdkafka."],
  "conflict": ["The id is taken by another message.", "Nothing, if it is a duplicate. Otherwise use another id, or chronos-on-conflict."],
  "too-late": ["The action came when the message was no longer pending.", "Nothing: the message was delivered, cancelled or dead-lettered before."],
  "unknown": ["The action names an id that no message has.", "Correct the id. The message may be older than the retention."],
  "unreadable": ["A batch cannot be decompressed, or is damaged. The record here has no payload.", "Send the messages of the batch again, in smaller batches."],
  "create-time": ["The record has the producer's timestamp, because message.timestamp.type of the delay topic was CreateTime.", "Write it again: the topic has the right setting now."],
  "beyond-expiry": ["A reschedule to a time after the expiry of the message, which keeps its time.", "Choose an earlier time, or replace the message."],
  "too-large": ["The record is too large to be written on to the partition of its id.", "Send a smaller payload, or send it to the right partition."],
};

const OTHER = ["The detail says what happened.", "See docs/reference/headers.md."];

/** [what happened, what to do] of a dead letter. */
export const whyDead = (reason) => DEAD[reason] ?? OTHER;

/** [what was wrong, how to correct it] of a rejected record. */
export const whyRejected = (reason) => REJECTED[reason] ?? OTHER;

/** A line about the chosen reason above a list; null if none is chosen. `why`: whyDead or whyRejected. */
export const aboutReason = (reason, why) => reason && h("p", { class: "about-reason" }, h("strong", null, reason), `: ${why(reason).join(" ")}`);

export const deadReasons = Object.keys(DEAD);
export const rejectedReasons = Object.keys(REJECTED);
