"""Faults planted in the real code that the oracle must find: see `faults` for how they are planted.

Among them is one for each promise that was found broken where brokers have clocks of their own,
where a delay topic begins above 0, where a record comes late through another partition, and where a
delete worker runs at another time on each replica."""

from __future__ import annotations

from chronos.core.shard import parsing, staging
from chronos.core.shard.lanes import Lanes
from chronos.core.shard.staging import _Staging
from chronos.workers.push import decisions, push
from chronos.workers.push.letters import Forwards, LetterRecords
from chronos.workers.replica import replica
from chronos.workers.replica.held import HeldQueues
from chronos.workers.replica.master import Master
from chronos.workers.replica.retention import Deleter, Horizon
from tests.sim.faults import Change

FAULTS: dict[str, list[Change]] = {
    "a hop is refused for its time": [
        (
            parsing,
            "hop_of",
            "return partition, first_ms if is_believed else timestamp_ms",
            "if first_ms <= timestamp_ms:\n    return partition, first_ms",
        ),
    ],
    "a first timestamp far ahead is believed": [
        (
            parsing,
            "hop_of",
            "if is_believed else timestamp_ms",
            "",
        ),
    ],
    "the order of two partitions is taken for exact": [
        (staging, "overtaken", "each_ms >= first_ms - CLOCK_TOLERANCE_MS", "each_ms >= first_ms"),
    ],
    "a cancel wins over what came after it to the same partition": [
        (staging, "overtaken", " and each != partition", ""),
    ],
    "one cancel of each id is remembered": [
        (staging, "with_cancel", "[:2]", "[:1]"),
    ],
    "the cancels of an id are forgotten when a message takes it": [
        (staging, "succeeding", "if not cancels:", "if True:"),
    ],
    "a message that is older than the one that has the id replaces it": [
        (staging, "overtaken", "if has_message and", "if False and"),
    ],
    "an action that is older than the message changes it": [
        (staging, "precedes", "first_ms < id_state.first_ms - CLOCK_TOLERANCE_MS", "False"),
    ],
    "a shard whose log begins late begins at 0 when its store is lost": [
        (
            replica,
            "begun",
            "if state.applied or progress.start or not delay.start:",
            "if state.applied or progress.high or not delay.start:",
        ),
    ],
    "the deduplication window counts from the copy": [
        (
            _Staging,
            "_check_conflict",
            "command.entry.timestamp_ms - self",
            "record.timestamp_ms - self",
        ),
    ],
    "ids are forgotten before the other shards have read": [
        (Horizon, "at", "unpulled_ms(state), self._arrived_ms)", "unpulled_ms(state))"),
    ],
    "ids are forgotten by the clock": [
        (Horizon, "at", "min(state.progress_ms, unpulled_ms(state), self._arrived_ms)", "now_ms"),
    ],
    "it depends on the delete worker what is forgotten": [
        (
            staging,
            "is_forgotten",
            "0 < id_state.settled_ms < horizon_ms and kept_from_ms(id_state) < horizon_ms",
            "False",
        ),
    ],
    "the delete worker deletes ids by a setting": [
        (Deleter, "step", "if state.rules == 1:", "if True:"),
    ],
    "the first timestamp of a forwarded record is that of its copy": [
        (
            Forwards,
            "_headers",
            "hop(self._source_prefix, record)",
            "hop(self._source_prefix, record).replace(b';', b';1')",
        ),
    ],
    "a record does not go behind those that wait for its home": [
        (
            HeldQueues,
            "_closed",
            "for destination in destinations - self._shard.queues.states.keys()",
            "for destination in destinations",
        ),
    ],
    "a held record is not written on": [
        (
            HeldQueues,
            "_stage",
            "if forward[0].offset not in too_large]",
            "if forward[0].offset not in too_large][1:]",
        ),
    ],
    "a header is lost": [
        (LetterRecords, "rejected", "record.headers", "record.headers[1:]"),
    ],
    "an occurrence that was missed is delivered late": [
        (
            decisions,
            "decide_series",
            "last_until(repetition, planned, occurrence, reached_ms, next_cron)",
            "next_ms",
        ),
    ],
    "a retried series is judged as late": [
        (decisions, "decide_series", "if repetition.planned_ms:", "if False:"),
    ],
    "a message leaves its lane although an action has taken it out": [
        (Lanes, "select", "items = _remaining(rows, staged)", "items = rows"),
    ],
    "an expired message is delivered": [
        (push, "decide", "now_ms > expire_at_ms", "now_ms > expire_at_ms + 600_000"),
    ],
    "messages are selected before they are due": [
        (Master, "step", "until_ms = min(now_ms, ", "until_ms = 2_000 + min(now_ms, "),
    ],
    "messages are selected beyond the watermark": [
        (Master, "step", "min(now_ms, max(reached_ms, staged.watermark_ms))", "now_ms"),
    ],
    "a header in another case is the producer's own": [
        (parsing, "_header", "rules.number <= 2", "name[:8] != PREFIX"),
    ],
    "a mistyped header is the producer's own": [
        (
            parsing,
            "_header",
            "return Rejection(Reason.UNKNOWN_HEADER, str(error))",
            "return name if name[:8] == PREFIX else None",
        ),
    ],
    "a time long ago is accepted": [
        (parsing, "_past", "past_ms <= rules.max_past_ms", "True"),
    ],
    "a backfill is refused for its time": [
        (
            parsing,
            "_message",
            "verb not in (Verb.REPLAY, Verb.BACKFILL)",
            "verb is not Verb.REPLAY",
        ),
    ],
    "fire-now delays a message": [
        (_Staging, "_move", "min(", "max("),
    ],
}
