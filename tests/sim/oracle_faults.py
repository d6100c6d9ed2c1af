"""Faults planted in the real code that the oracle must find.

Among them is one for each promise that was found broken where brokers have clocks of their own,
where a delay topic begins above 0, where a record comes late through another partition, and where a
delete worker runs at another time on each replica."""

from __future__ import annotations

from tests.sim.planting import Change, Faults

FAULTS: Faults = {
    "a hop is refused for its time": [
        Change(
            "return partition, first_ms if is_believed else timestamp_ms",
            "if first_ms <= timestamp_ms:\n    return partition, first_ms",
        )
    ],
    "a first timestamp far ahead is believed": [Change("if is_believed else timestamp_ms", "")],
    "the order of two partitions is taken for exact": [
        Change("each_ms >= first_ms - CLOCK_TOLERANCE_MS", "each_ms >= first_ms")
    ],
    "a cancel wins over what came after it to the same partition": [
        Change(" and each != partition", "")
    ],
    "one cancel of each id is remembered": [Change("[:2]", "[:1]", "with_cancel")],
    "the cancels of an id are forgotten when a message takes it": [
        Change("replace(before, source=source)", "replace(before, source=source, cancels=())")
    ],
    "a message that is older than the one that has the id replaces it": [
        Change("if is_later and", "if False and")
    ],
    "an action that is older than the message changes it": [
        Change("first_ms < id_state.first_ms - CLOCK_TOLERANCE_MS", "False", "precedes")
    ],
    "a shard whose log begins late begins at 0 when its store is lost": [
        Change(
            "if state.applied or progress.start or not delay.start:",
            "if state.applied or progress.high or not delay.start:",
        )
    ],
    "the deduplication window counts from the copy": [
        Change("command.entry.timestamp_ms", "record.timestamp_ms", "_check_conflict")
    ],
    "ids are forgotten before the other shards have read": [
        Change("unpulled_ms(state), self._arrived_ms)", "unpulled_ms(state))")
    ],
    "ids are forgotten by the clock": [
        Change("min(state.progress_ms, unpulled_ms(state), self._arrived_ms)", "now_ms")
    ],
    "it depends on the delete worker what is forgotten": [
        Change("if not is_forgotten(known, horizon_ms)", "if True")
    ],
    "the delete worker deletes ids by a setting": [
        Change("state.horizon_ms)", "now_ms - self.id_states_ms)", "step")
    ],
    "the first timestamp of a forwarded record is that of its copy": [
        Change(
            "hop(self._source_prefix, record)",
            "hop(self._source_prefix, record).replace(b';', b';1')",
        )
    ],
    "a record does not go behind those that wait for its home": [
        Change(
            "for destination in destinations - self._shard.queues.states.keys()",
            "for destination in destinations",
        )
    ],
    "a held record is not written on": [
        Change(
            "if forward[0].offset not in too_large]", "if forward[0].offset not in too_large][1:]"
        )
    ],
    "a header is lost": [Change("record.headers", "record.headers[1:]", "rejected")],
    "an occurrence that was missed is delivered late": [
        Change("last_until(repetition, planned, occurrence, reached_ms, next_cron)", "next_ms")
    ],
    "a retried series is judged as late": [Change("if repetition.planned_ms:", "if False:")],
    "a message leaves its lane although an action has taken it out": [
        Change("items = _remaining(_items(rows), staged)", "items = _items(rows)")
    ],
    "an expired message is delivered": [
        Change("now_ms <= expire_at_ms", "now_ms <= expire_at_ms + 600_000", "fate_of")
    ],
    "messages are selected before they are due": [
        Change("until_ms = min(now_ms, ", "until_ms = 2_000 + min(now_ms, ")
    ],
    "messages are selected beyond the watermark": [
        Change("min(now_ms, max(pulled.reached_ms, staged.watermark_ms))", "now_ms")
    ],
    "a header in another case is the producer's own": [
        Change(
            "header = header_of(name)",
            "header = header_of(name) if name[:8] == PREFIX else None",
            "_header",
        )
    ],
    "a mistyped header is the producer's own": [
        Change(
            "return Rejection(Reason.UNKNOWN_HEADER, str(error))",
            "return name if name[:8] == PREFIX else None",
        )
    ],
    "a time long ago is accepted": [Change("past_ms <= rules.max_past_ms", "True")],
    "a backfill is refused for its time": [
        Change("verb not in (Verb.REPLAY, Verb.BACKFILL)", "verb is not Verb.REPLAY")
    ],
    "fire-now delays a message": [Change("min(", "max(", "_move")],
    "an upsert of the same message puts it off": [
        Change("if is_unchanged(command.entry, self._pending_entry(id_state)):", "if False:"),
        Change("due_ms=pending.due_ms,", "due_ms=entry.due_ms,", "upserted"),
    ],
    "a series loses its count when its content is replaced": [
        Change("occurrence=pending.occurrence,", "occurrence=entry.occurrence,", "upserted")
    ],
    "an upsert with another rhythm puts a series off": [
        Change("latest_ms, is_late = pending.due_ms, False", "return entry", "upserted")
    ],
    "an upsert ends a pause": [
        Change("is_late = 0 < of_pending.planned_ms < pending.due_ms", "pass", "upserted")
    ],
    "a message in a lane goes to its end when its content is replaced": [
        Change("lane = self._lane(id_state)", "pass", "_schedule")
    ],
    "the call of a message is forgotten when it is delivered": [
        Change(
            "DELIVERED, place_ms, offset, 0, None, entry.timestamp_ms, entry.order",
            "DELIVERED, place_ms, offset, 0, None, entry.timestamp_ms, None",
        )
    ],
    "the calls of an id are forgotten when a message takes it": [
        Change("replace(before, source=source)", "replace(before, source=source, calls=None)")
    ],
    "the call of a change is forgotten": [
        Change("if action.call is not None:", "if False:", "_move")
    ],
    "a record that names its call is rejected with the name": [
        Change("name == FORWARDED or folded_name(name) == CALL", "name == FORWARDED")
    ],
    "a series that ended is begun again by an upsert": [
        Change("if is_broken or not self._ended_lately(", "if True or not self._ended_lately(")
    ],
    "new zone data move nothing": [
        Change("self._from is not None and", "False and", "is_unfinished")
    ],
    "older zone data move occurrences": [
        Change("self._rules.zone_data.version > state.zone_data", "True", "is_unfinished")
    ],
    "an occurrence that was moved by an action moves with the zone data": [
        Change("and repetition.planned_ms == 0", "", "keeps_wall_clock"),
        Change("assert options.repetition.planned_ms == 0,", "assert True,", "planned_again"),
    ],
    "the next occurrence is the one after the same instant by any zone data": [
        Change("planned_ms if repetition.offset_s is None else 0", "planned_ms", "following"),
        Change("None if offset_s is None else", "None if True else", "following_after"),
    ],
    "new zone data pass what is due behind the first occurrences": [
        Change("self._ahead = rest", "self._ahead = None", "ZoneWalk.add_moves"),
        Change("REPLANS_MAX, BYTES_MAX)", "1, BYTES_MAX)", "ZoneWalk.add_moves"),
    ],
    "new zone data leave the expiry of an occurrence where it was": [
        Change("expire_at_ms + next_ms - entry.due_ms", "expire_at_ms", "planned_again")
    ],
    "older zone data plan without a record of it": [
        Change(
            'zone_data == state.zone_data or zone_data > state.zone_data > ""',
            "state.zone_data",
            "recorded_version",
        )
    ],
}
