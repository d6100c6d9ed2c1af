"""Faults of a shard and of its cluster: the simulator must find each of them; `planting` plants
them."""

from __future__ import annotations

from tests.sim.planting import Change, Faults

FAULTS: Faults = {
    "a reader of progress records stops at one of another program": [
        Change("record.key is not None or bool(record.headers)", "False", "is_foreign")
    ],
    "a record is forwarded twice": [
        Change(
            "for record, partition in forwards:",
            "for record, partition in [*forwards, *forwards[:1]]:",
            "records",
        )
    ],
    "a forwarded record is not written": [
        Change(
            "self.forwards.records(letters.forwards)",
            "self.forwards.records(letters.forwards[1:])",
        )
    ],
    "a held record is not written on": [
        Change(
            "if forward[0].offset not in too_large]", "if forward[0].offset not in too_large][1:]"
        )
    ],
    "queues are not read after a restart": [Change("held=state.held)", "held=0)")],
    "nothing is pulled while records cannot be forwarded or rejected": [
        Change("if not is_full(self._shard.state):", "if not self._shard.state.held:", "pausing")
    ],
    "a record is forwarded and executed here too": [
        Change("staged.letters.refuse(offset, Reason.FORWARDED)", "pass")
    ],
    "the first timestamp of a forwarded record is lost": [
        Change(
            "hop(self._source_prefix, record)",
            "hop(self._source_prefix, record).replace(b';', b';1')",
        )
    ],
    "a forwarded record is accepted after a later cancel of its id": [
        Change("if any(", "if False and any(", "overtaken")
    ],
    "the order of two partitions is taken for exact": [
        Change("each_ms >= first_ms - CLOCK_TOLERANCE_MS", "each_ms >= first_ms")
    ],
    "a cancel refuses what came after it through the same partition": [
        Change(" and each != partition", "")
    ],
    "a message that is older by more than the tolerance replaces a younger one": [
        Change("if is_later and", "if False and")
    ],
    "a message is refused after a younger one that came through the same partition": [
        Change("if is_later and _partition(id_state, own) != partition:", "if is_later:")
    ],
    "an action through the same partition is refused for its time": [
        Change(" and _partition(id_state, own) != partition", "", "precedes")
    ],
    "one cancel of an id is remembered, not two": [Change("[:2]", "[:1]", "with_cancel")],
    "a new message forgets the cancels of its id": [
        Change("succeeding(command.entry, id_state)", "command.entry")
    ],
    "a message forgets the partition that it came through": [
        Change("source, first_ms = found", "source, first_ms = None, found[1]", "_forwarded")
    ],
    "a hop from the future is refused": [
        Change(
            "is_believed = first_ms <= timestamp_ms + CLOCK_TOLERANCE_MS",
            "is_believed = first_ms <= timestamp_ms\nif not is_believed:\n    "
            "return Rejection(Reason.BAD_VALUE, '')",
        )
    ],
    "a hop from the far future is believed": [
        Change("first_ms if is_believed else timestamp_ms", "first_ms")
    ],
    "a replica remembers what was forgotten until it is deleted": [
        Change("if horizon_ms:", "if False:")
    ],
    "an id is deleted that is not forgotten": [
        Change(" and is_forgotten(id_state, before_ms)", "")
    ],
    "a repetition of an id is judged by the time of the copy": [
        Change("command.entry.timestamp_ms", "record.timestamp_ms", "_check_conflict")
    ],
    "a cancel that finds nothing leaves no trace": [
        Change(
            "if reason == Reason.UNKNOWN:",
            "if reason == Reason.UNKNOWN:\n    return\nif False:",
            "_note_cancel",
        )
    ],
    "a cancel that comes after the end of its message leaves no trace": [
        Change("if noted != id_state:", "if False:")
    ],
    "a replica does not note the cancels that changed nothing": [
        Change("if replayed[offset] in CHANGED_NOTHING:", "if False:")
    ],
    "a forwarded action changes a message that was scheduled after it": [
        Change(
            "if self.replayed is None and self._precedes(record, command, id_state):", "if False:"
        )
    ],
    "a hop that cannot be true is believed": [
        Change(
            "if isinstance(found, Rejection):",
            "found = (0, record.timestamp_ms) if isinstance(found, Rejection) else found\nif "
            "False:",
            "_forwarded",
        )
    ],
    "a record is forwarded again": [
        Change("if isinstance(command, Misplaced):", "if False:"),
        Change("return record.headers is not None", "return False"),
    ],
    "the hop is passed on to the rejected topic": [Change("return name == FORWARDED or", "return")],
    "a record is placed by the time of its own partition": [
        Change("Record(record.offset, first_ms,", "Record(record.offset, record.timestamp_ms,")
    ],
    "the end of the log counts as reached before it is": [
        Change("if reached:", "if True:", "take")
    ],
    "messages are delivered in the transaction that forwards records": [
        Change("or letters.are_written:", "or letters.rejections:")
    ],
    "the end of the log counts as reached though a rest is not staged": [
        # A step stages two records, as it does where each has a cron expression.
        Change("range(0, len(records), PARSED_AT_ONCE)", "range(0, len(records), 2)"),
        Change("records[at : at + PARSED_AT_ONCE]", "records[at : at + 2]"),
        Change("if checks >= CRON_CHECKS_MAX:", "if True:"),
        Change(
            "reached_ms = pulled.reached_ms if parsed_all else self._puller.reached_ms",
            "reached_ms = pulled.reached_ms",
        ),
    ],
    "a record whose partition takes none is rejected, not held": [
        Change(
            "letters.hold_forwards(closed)",
            "letters.reject_forwards({record.offset: '' for record, home in letters.forwards "
            "if home in closed})",
        )
    ],
    "a retry or deferral is forgotten on apply": [
        Change(
            "elif decision.next_due_ms:",
            "elif decision.next_due_ms:\n    continue\nelif 0:",
            "settle",
        )
    ],
    "a step is applied before its commit": [
        Change(
            "appended = self._finish(produced_ms, self._prepare_next(draft, progress))",
            "appended = Appended(partition=0, offset=self._shard.state.applied, "
            "timestamp_ms=produced_ms)\n"
            "self._apply(staged, selection, progress, appended)\n"
            "self._finish(produced_ms)\n"
            "return plan.due_ms",
        )
    ],
    "a new master replays nothing": [
        Change(
            "if (caught_up := self._catch_up(now_ms)) is not None:", "if False:", "ResolvePhase"
        ),
        Change(
            "if watermarks.stable < watermarks.high or not follower.has_reached(watermarks.high):",
            "if False:",
        ),
    ],
    "messages are selected beyond the watermark": [
        Change(
            "return Pulled(records=records, reached_ms=reached_ms)",
            "return Pulled(records=records, reached_ms=now_ms)",
        )
    ],
    "a replica decides again": [
        Change("staged = stage(", "staged = self.stage(records) or stage(")
    ],
    "an entry is placed behind the cursor": [
        Change(
            "placed_ms(entry.due_ms + shift, first_ms, self.state.cursor_due_ms)",
            "max(entry.due_ms, first_ms)",
        )
    ],
    "the pull offset counts records, not offsets": [
        Change(
            "staged.pull_offset = parsed.records[-1].offset + 1",
            "staged.pull_offset = self.state.pull_offset + len(parsed.records)",
        )
    ],
    "a failed apply is taken for done": [Change("raise ApplyFailed(...) from error", "pass")],
    "a failed apply is retried on the old state": [
        Change("raise ApplyFailed(...) from error", "raise")
    ],
    "a committed step is retried when the store cannot be read": [
        Change(
            "except Retry as error:",
            "except __import__('chronos').errors.NoSpace as error:",
            "_apply",
        )
    ],
    "the role epoch is not compared": [
        Change("if state.role_epoch >= assignment.epoch + is_own:", "if False:"),
        Change("if assignment.continues(leadership):", "if True:"),
    ],
    "a master obeys roles whose epoch is below that of the log": [
        Change("and self.epoch < other.epoch:", "and False:", "continues")
    ],
    "a node takes a role again that is older than its own last one": [
        Change("if state.role_epoch >= assignment.epoch + is_own:", "if not is_own:")
    ],
    "a replica that was frozen before it fenced leads under an old role": [
        Change("if not self._may_lead(self._fence.assignment, now_ms):", "if False:")
    ],
    "a new master replays only to the last stable offset": [
        Change(
            "if watermarks.stable < watermarks.high or not follower.has_reached(watermarks.high):",
            "if not follower.has_reached(watermarks.stable):",
        )
    ],
    "a cancelled message is delivered": [Change("if staged.removed:", "if False:")],
    "clocks are not compared": [
        Change("<= CLOCK_TOLERANCE_MS", "<= 10**9"),
        Change("raise ClockDisagrees(", "ClockDisagrees(", "_check_pulled"),
    ],
    "an abort drops the staged records": [
        Change(
            "search.failed(StepFailure(error=error, draft=draft, plan=plan), letters=letters, "
            "pusher=self._pusher, shard=self._shard.rules.shard)",
            "self._puller._waiting.clear()\nraise",
        )
    ],
    "the wheel keeps removed entries": [Change("wheel.forget(due_ms, offset)", "pass")],
    "the cursor passes messages beyond the batch limit": [
        Change(
            "items[-1][:2], complete=False",
            "max(known, self.state.cursor), complete=False",
            "select",
        )
    ],
    "a selection computed early is used without a check": [
        Change("and not staged.removed", ""),
        Change("and self.edits == shard.wheel.edits", ""),
    ],
    "an id state read early is used after it changed": [Change("if changed:", "if False:")],
    "two masters in one epoch": [
        Change("log_epoch=self._state.log_epoch + 1", "log_epoch=max(1, self._state.log_epoch)")
    ],
    "a lost producer is taken for an abort": [
        Change(
            "appended = self._finish(produced_ms, self._prepare_next(draft, progress))",
            "try:\n"
            "    appended = self._finish(produced_ms)\n"
            "except ProducerLost:\n"
            "    raise TransactionAborted('lost', poison_likely=False)",
        )
    ],
    "a lost producer is taken for a commit": [
        Change(
            "appended = self._finish(produced_ms, self._prepare_next(draft, progress))",
            "try:\n"
            "    appended = self._finish(produced_ms)\n"
            "except ProducerLost:\n"
            "    appended = Appended(partition=0, offset=self._shard.state.applied, "
            "timestamp_ms=produced_ms)",
        )
    ],
    "the retention deletes pending messages": [
        Change(
            "self._store.delete_range(ENTRY, cursor_key",
            "self._store.delete_range(ENTRY, entry_key(before_ms + 90_000, 0)",
        )
    ],
    "id states are deleted by the clock": [
        Change("self._drop_id_states(state.horizon_ms)", "self._drop_id_states(now_ms)")
    ],
    "a producer's timestamp moves the watermark": [Change(" and not record.create_time", "")],
    "a message is moved beyond its expiry": [
        Change("if self.replayed is None and _is_beyond_expiry(action, entry, shift):", "if False:")
    ],
    "a follower runs ahead of the progress record": [
        Change("if record.offset >= pull_offset", "if record.offset > pull_offset")
    ],
    "a poison record stops its shard": [
        Change("if self.failures >= POISON_FAILURES:", "if False:")
    ],
    "a topic that refused records is never tried again": [
        Change(
            "return not now_ms < self.until_ms <= now_ms + REFUSED_PAUSE_MS",
            "return self.failures == 0",
        ),
        Change("self.took()", "pass"),
    ],
    "a shard that moves or has no work is called stalled": [
        Change("not waiting or position != self._position", "False")
    ],
    "a lost producer is used again": [
        Change("except (ProducerLost, ApplyFailed) as error:", "except ApplyFailed as error:")
    ],
    "a target that is set aside is not attempted again": [
        Change("return not", "return False and not", "is_ready")
    ],
    "a refusal counts for a message that an action has moved since": [
        Change("attempt_of(due_ms, offset, entry) == poison", "offset == poison[0]"),
        Change("self.attempts[offset] == attempt_of(due_ms, offset, entry)", "True"),
    ],
    "a target counts as refusing every message after one refusal": [
        Change(
            "len(self.messages) >= PROVEN_AT and now_ms - self.since_ms >= retries.total_ms()",
            "True",
        )
    ],
    "the text of a decision's reason is not recorded": [
        Change("details=tuple(texts)", "details=()")
    ],
    "one description is enough to dead-letter": [
        Change("target.is_missing and known_ms <=", "known_ms <=")
    ],
    "messages are selected before they are due": [
        Change("until_ms = min(now_ms, ", "until_ms = 2_000 + min(now_ms, ")
    ],
    "an end found under a wrong clock counts after the clock was corrected": [
        Change("return abs", "return False and abs"),
        Change("self._puller.reached_ms = 0 ", "pass ", "_beat_if_late"),
        Change("self._puller.reached_ms = 0 ", "pass ", "_scope"),
    ],
    "an expired message is delivered": [
        Change("now_ms <= expire_at_ms", "now_ms <= expire_at_ms + 600_000", "fate_of")
    ],
    "the replicas of a lost node are not replaced": [
        Change("if now_ms - since_ms >= self._view.replace_after_ms", "if False")
    ],
    "a log is trimmed behind the newest checkpoint alone": [
        Change(
            "checkpoints=checkpoints,",
            "checkpoints=[max(checkpoints)] * CHECKPOINTS_MIN,",
            "Checkpointer",
        )
    ],
    "a log is trimmed ahead of other replicas": [
        Change("replicas=positions,", "replicas=positions[:1],")
    ],
    "an empty store replays trimmed logs without a checkpoint": [
        Change(
            "restored = self._context.restore(cost)",
            "restored = not cost.store_empty and self._context.restore(cost)",
        )
    ],
    "a store older than the start of the logs is kept": [
        Change("cost.store_empty or not cost.logs_complete or", "cost.store_empty or")
    ],
    "where a shard begins is not read from its log": [
        Change("or not delay.start:", "or not delay.start or progress.high:")
    ],
    "a replay begins with the first record of the delay log": [
        Change("if shard.state.applied == 0:", "if False:")
    ],
    "a node is known by its id, not by its data directory": [
        Change('state.instance in ("", self.instance)', 'state.node in ("", self.node)')
    ],
    "a node that returns with a new data directory never gets a later role": [
        Change('in_instance not in ("", instance)', "False")
    ],
    "a node that leaves keeps its shards": [
        Change("member.stays", "not member.retiring", "_may_stay")
    ],
    "a message leaves its lane although an action has taken it out": [
        Change("items = _remaining(_items(rows), staged)", "items = _items(rows)")
    ],
    "a replica empties a lane beyond its cursor": [
        Change("stop = _after(lane, (cursor.due_ms, cursor.offset))", "_, stop = self._range(lane)")
    ],
    "lanes are not read after a restart": [Change("parked=state.parked)", "parked=0)")],
    "a message stays in the lane that it left": [
        Change(
            "change[lane] -= len(leaving.items)",
            "change[lane] -= len(leaving.items)\ndeletes.clear()",
        )
    ],
    "a closed lane is taken for open": [Change("or is_open(lane[1], targets[lane[0]])", "or True")],
    "a lane stays closed": [Change("or is_open(lane[1], targets[lane[0]])", "or False")],
    "the messages that leave a lane take nothing of the rate": [
        Change("self._spend(spent)", "pass")
    ],
    "what waits for a rate waits for ever": [
        Change("open_now.update(first)", "open_now.update(first if rate is None else ())")
    ],
    "a message is parked again in the lane of a limited target": [
        Change(
            "before = terms.unlimited if left_lane == LIMITED",
            "before = {(target.topic, LIMITED)} if left_lane == LIMITED",
        )
    ],
    "the next occurrence of a series is counted from a time of its own": [
        Change("outcome.next_ms, entry", "outcome.next_ms + 1, entry")
    ],
    "the occurrences of a series are not counted": [
        Change("entry.occurrence + 1, 1)", "entry.occurrence, 1)")
    ],
    "a message with a spread is placed at its due time": [
        Change("entry.due_ms + shift", "entry.due_ms", "_place_at")
    ],
    "a dead letter is replayed a second time": [
        Change(
            "if id_state is None or",
            "if id_state is None or command.verb is Verb.REPLAY or",
            "_check_conflict",
        )
    ],
    "a replay is ignored for a message that is not a replay of the same dead letter": [
        Change("_replayed(unpack_entry(data)) == _replayed(command.entry)", "True")
    ],
    "a message's own limit of attempts is not known": [
        Change(
            "if entry.options is not None and entry.options.attempts_max:",
            "if False:",
            "_decide_refused",
        )
    ],
    "what another master committed before a step is not looked at": [
        Change("if not is_foreign(record):", "if False:", "_check_successor")
    ],
    "a master goes on after a silence that its own clock does not show": [
        Change("if since_ms > TENURE_MS:", "if False:")
    ],
    "a replica goes on after its shard was assigned elsewhere": [
        Change('kind="follower" if is_holder else "none"', 'kind="follower"')
    ],
}
