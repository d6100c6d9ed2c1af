"""A model of the service, written from docs/concepts, docs/reference/headers.md and docs/how-to
alone.

It knows ids, messages, cancels and queues, and no store, key or byte of one. It is told of each
transaction that a shard committed: the delay records that it took, the moment up to which it
selected, and everything that it wrote. The moments are the master's to choose, within what is
allowed; what becomes of each record and of each message is not, and is compared."""

from __future__ import annotations

from dataclasses import replace

from chronos.core.keys import partition_of
from chronos.core.message import Reason, Record
from chronos.core.series import spread_shift_ms
from chronos.core.shard.progress import Decision, Outcome
from tests.sim.oracle_output import Output
from tests.sim.oracle_values import (
    TOLERANCE_MS,
    Cancel,
    Command,
    Facts,
    Message,
    Position,
    Settled,
    Step,
    Terms,
    wrong,
)

REJECTED_TOPIC = -1
"""The destination of held records that are rejected."""


class ShardModel:
    """One shard: the ids that belong to it."""

    def __init__(self, service: Service, number: int) -> None:
        self.service = service
        self.terms = service.terms
        self.number = number
        self.applied = 0
        """Offset after the last progress record."""
        self.progress_ms = 0
        self.pull_offset = 0
        self.cursor: Position = (0, -1)
        self.horizon_ms = 0
        self.pending: dict[bytes, Message] = {}
        self.settled: dict[bytes, Settled] = {}
        self.forgotten: dict[bytes, Settled] = {}
        """Settled before the horizon: nothing depends on them, and lookups find them until a delete
        worker has run."""
        self.cancels: dict[bytes, list[Cancel]] = {}
        self.calls: dict[bytes, list[bytes]] = {}
        """The last four calls of each id that were executed."""
        self.forwards: dict[int, list[Record]] = {}
        """Records that are still to be written on, by partition, in order."""
        self.held: dict[int, int] = {}
        """The destination of every record that was ever held: a partition, or REJECTED_TOPIC."""
        self.refusals: list[tuple[Record, str]] = []
        """Refused records that are still to be written to the rejected topic, in order."""
        self.zone_data = ""
        """The version of the zone data that planned last."""
        self._fired: set[int] = set()
        """Source offsets of due messages that a `fire-now` of this step named."""
        self.delivered = 0
        self.totals: dict[str, int] = {}

    # --- one step

    def step(self, step: Step) -> None:
        """Follow one transaction; raises a Finding."""
        progress = step.progress
        if (
            progress.pull_offset < self.pull_offset
            or (progress.cursor_due_ms, progress.cursor_offset) < self.cursor
        ):
            raise wrong(f"shard {self.number} went back: {progress}")
        self._now = step
        self._fired.clear()
        refused = {offset: Reason(number).label for offset, number in progress.refused}
        unreadable = {first for first, _ in progress.unreadable}
        self._forget(step)
        for record in step.records:
            self._take(record, refused.pop(record.offset, None))
        for offset, reason in refused.items():
            if offset not in unreadable or reason != "unreadable":
                raise wrong(
                    f"{self.number}/{offset} is refused with {reason}, and is no record of this "
                    "step"
                )
            self.refusals.append((Record(offset, 0, None, None, ()), reason))
        self.held |= {hold.offset: hold.destination for hold in progress.held}
        output = Output(self.number, step.written)
        self._follow_forwards(output)
        output.refusals(self.refusals, self.held)
        self._check_held(step)
        self._plan_again(step)
        self._select(step, output)
        output.end()
        self._check_zone_data(step)
        self.pull_offset = progress.pull_offset
        self.cursor = (progress.cursor_due_ms, progress.cursor_offset)
        self.applied, self.progress_ms = step.offset + 1, step.timestamp_ms
        self._check_horizon(step)

    def _forget(self, step: Step) -> None:
        """Ids settled, and cancels noted, before the horizon count as forgotten."""
        horizon_ms = step.progress.horizon_ms
        if horizon_ms < self.horizon_ms:
            raise wrong(
                f"the horizon of shard {self.number} went back by {self.horizon_ms - horizon_ms} ms"
            )
        self.horizon_ms = horizon_ms
        for message_id in [*self.settled, *self.cancels]:
            # A cancel that came after the end of its message counts from when it was written, one
            # that found nothing from then.
            cancels, settled = self.cancels.get(message_id, []), self.settled.get(message_id)
            kept_ms = max((cancel.first_ms for cancel in cancels), default=0)
            if settled is None and cancels:
                kept_ms = max(kept_ms, cancels[-1].noted_ms)
            elif settled is not None and kept_ms <= settled.settled_ms + TOLERANCE_MS:
                kept_ms = settled.settled_ms
            if message_id not in self.pending and kept_ms < horizon_ms:
                if message_id in self.settled:
                    self.forgotten[message_id] = self.settled.pop(message_id)
                self.cancels.pop(message_id, None)
                self.calls.pop(message_id, None)

    def _check_horizon(self, step: Step) -> None:
        """No record can still come that was written within the window of an id that is
        forgotten."""
        unread_ms = self.service.unread_ms(self.number)
        if (
            step.progress.horizon_ms
            and step.progress.horizon_ms > unread_ms - self.terms.deduplication_ms
        ):
            raise wrong(
                f"shard {self.number} forgets ids up to {step.progress.horizon_ms}, and a record "
                f"of {unread_ms} is not read yet"
            )

    # --- what becomes of a record

    def _take(self, record: Record, found: str | None) -> None:
        """Compare the decision about one record, and follow it."""
        command = self.service.command(self.number, record)
        self._found = found
        expected = self._decide(record, command)
        if found == "held" and expected == "forwarded":
            # Its home takes nothing at the moment: it is written on later, behind those that wait
            # already.
            found = expected
        if found != expected:
            raise wrong(
                f"{self.number}/{record.offset} {command.verb} {command.id!r}: "
                f"{found or 'accepted'}, not {expected or 'accepted'}"
            )
        if expected == "forwarded":
            assert command.id is not None
            self.forwards.setdefault(self.service.home(command), []).append(record)
        elif expected not in ("", "ignored", "repeated") and expected is not None:
            self.refusals.append((record, expected))

    def _known(self, message_id: bytes) -> Settled | None:
        """Return the last message of the id, if it is settled.

        What ended under a generated id is known for `retention.delivered`, or longer: the master
        says which."""
        settled = self.settled.get(message_id)
        if (
            settled is None
            and self._found == "too-late"
            and self.generated_by(message_id) is not None
        ):
            return self.forgotten.get(message_id)
        if settled is None or not self._is_old(settled) or settled.state != "delivered":
            return settled
        is_generated = settled.message.command.id is None
        return None if is_generated and self._found == "unknown" else settled

    def generated_by(self, message_id: bytes) -> int | None:
        """Return the shard that generated the id; None if a producer chose it."""
        return self.service.generated_by(message_id)

    def _is_old(self, settled: Settled) -> bool:
        """Return whether the payload of a settled message may be deleted."""
        return self._now.timestamp_ms - settled.settled_ms > self.terms.delivered_ms

    def _is_deleted(self, settled: Settled) -> bool:
        """Return whether the payload of a settled message may be deleted, or may have been as soon
        as it left a lane: the retention of one that waited there counts from its due time."""
        return self._now.timestamp_ms - settled.message.place_ms > self.terms.delivered_ms

    def _decide(self, record: Record, command: Command) -> str | None:
        """Return the reason for which the record is refused, None if it is accepted; change the
        model accordingly."""
        if record.create_time:
            return "create-time"
        if command.verb == "probe":
            return None
        if command.flaw:
            return command.flaw
        if command.id is not None and self.service.home(command) != self.number:
            return "forwarded" if self.terms.forwards and command.hop is None else "wrong-shard"
        if command.id is not None and command.call in self.calls.get(command.id, ()):
            return "repeated"
        if self._contradicts_itself(record, command):
            return "contradictory-headers"
        refused = self._execute(record, command)
        if refused is None and command.id is not None and command.call is not None:
            self.calls[command.id] = [*self.calls.get(command.id, ())[-3:], command.call]
        return refused

    def _contradicts_itself(self, record: Record, command: Command) -> bool:
        """Return whether a message is due, by a delay, after its expiry or the end of its series:
        it was not when it was written for the first time."""
        if command.verb not in ("schedule", "replace") or command.delay_ms is None:
            return False
        _, first_ms = self._first(record, command)
        due_ms = self.service.due_ms(command, first_ms)
        until_ms = 0 if command.rhythm is None else command.rhythm.until_ms
        expire_at_ms = command.expire_at_ms
        expires_before = expire_at_ms is not None and due_ms + command.spread_ms > expire_at_ms
        return expires_before or 0 < until_ms < due_ms

    def _execute(self, record: Record, command: Command) -> str | None:
        source, first_ms = self._first(record, command)
        if command.verb in ("schedule", "replace", "replay"):
            return self._schedule(record, command, source, first_ms)
        assert command.id is not None
        if command.verb == "cancel":
            return self._cancel(command.id, source, first_ms)
        return self._move(record, command, source, first_ms)

    def _first(self, record: Record, command: Command) -> tuple[int, int]:
        """Return the partition to which the record came first, and its first timestamp as
        accepted."""
        if command.hop is None:
            return self.number, record.timestamp_ms
        source, _, first_ms = command.hop
        ahead_ms = first_ms - record.timestamp_ms
        return source, first_ms if ahead_ms <= TOLERANCE_MS else record.timestamp_ms

    # Messages

    def _schedule(self, record: Record, command: Command, source: int, first_ms: int) -> str | None:
        due_ms = self.service.due_ms(command, first_ms)
        message_id = (
            command.id
            if command.id is not None
            else b"%d-%d-%d" % (self.number, due_ms, record.offset)
        )
        if command.id is not None:
            refused = self._refuse_message(message_id, command, source, first_ms)
            if refused:
                return refused
        pending = self.pending.get(message_id)
        if pending is not None:
            self._settle(pending, "replaced")
        late_ms = min(first_ms, record.timestamp_ms)
        message = Message(
            id=message_id,
            offset=record.offset,
            command=command,
            due_ms=due_ms,
            place_ms=0,
            first_ms=first_ms,
            source=source,
            expire_at_ms=command.expire_at_ms,
            planned_ms=due_ms,
            occurrence=0 if command.leaves_first_time else 1,
        )
        if pending is not None and command.on_conflict == "upsert":
            self._succeed(message, pending)
        if message.lane is None:
            self._put(message, message.due_ms + self._shift_ms(message), late_ms)
        else:
            self.pending[message_id] = message
        return None

    def _succeed(self, message: Message, pending: Message) -> None:
        """An upsert takes the place of a pending message."""
        command, before = message.command, pending.command
        due_ms = message.due_ms
        if self._rhythm(message) == self._rhythm(pending):
            message.due_ms, message.planned_ms = pending.due_ms, pending.planned_ms
            message.expire_at_ms, message.aside = pending.expire_at_ms, pending.aside
            message.wall_ms, message.is_moved = pending.wall_ms, pending.is_moved
            message.occurrence, message.first_by_ms = pending.occurrence, pending.first_by_ms
        elif command.at_ms is None:
            latest_ms = pending.due_ms if pending.occurrence else pending.first_by_ms or 2**62
            was_moved = (
                before.rhythm is not None
                and command.rhythm is not None
                and pending.occurrence > 0
                and pending.planned_ms < pending.due_ms
            )
            first_ms = min(due_ms, latest_ms)
            if message.occurrence == 0 and first_ms == due_ms != latest_ms and not was_moved:
                message.first_by_ms = latest_ms if latest_ms < 2**62 else 0
            else:
                message.planned_ms, message.occurrence = first_ms, 1
                message.due_ms = latest_ms if was_moved else first_ms
                message.aside = message.is_moved = message.due_ms != first_ms
                if message.expire_at_ms is not None and command.rhythm is not None:
                    message.expire_at_ms += first_ms - due_ms
        is_in_place = message.due_ms == pending.due_ms and (command.target, command.target_key) == (
            before.target,
            before.target_key,
        )
        if pending.lane is not None and is_in_place:
            message.lane, message.place_ms = pending.lane, pending.place_ms
            message.aside, message.reason = True, pending.reason

    @staticmethod
    def _rhythm(message: Message) -> tuple[object, ...]:
        """Return what an upsert compares to find the same rhythm: of the due time nothing."""
        command, expiry_ms = message.command, message.expire_at_ms
        if expiry_ms is not None and command.rhythm is not None:
            expiry_ms -= message.planned_ms
        return command.rhythm, command.spread_ms, expiry_ms

    def _refuse_upsert(self, command: Command, first_ms: int, message_id: bytes) -> str:
        """Return why an upsert is refused; empty: it is accepted."""
        pending, settled = self.pending.get(message_id), self.settled.get(message_id)
        if pending is not None:
            due_ms = self.service.due_ms(command, first_ms)
            again = replace(
                pending, command=command, expire_at_ms=command.expire_at_ms, planned_ms=due_ms
            )
            before = pending.command
            is_same = self._rhythm(again) == self._rhythm(pending) and all(
                getattr(command, name) == getattr(before, name)
                # A replayed message has a header more.
                for name in ("target", "target_key", "value", "headers", "attempts_max", "replayed")
            )
            return "ignored" if is_same else ""
        if settled is None or settled.state == "cancelled" or settled.reason == "bad-value":
            return ""
        is_late = first_ms - settled.settled_ms >= self.terms.deduplication_ms
        if settled.message.command.rhythm is None or is_late:
            return ""
        if self._found != "conflict" and self._is_deleted(settled):
            return ""
        return "conflict"

    def _refuse_message(
        self, message_id: bytes, command: Command, source: int, first_ms: int
    ) -> str:
        """Return why a message with an id is refused; empty: it is accepted."""
        for cancel in self.cancels.get(message_id, ()):
            if cancel.source != source and cancel.first_ms >= first_ms - TOLERANCE_MS:
                return "too-late"
        pending, settled = self.pending.get(message_id), self.settled.get(message_id)
        last = pending if settled is None else settled.message
        if last is not None and last.source != source and first_ms < last.first_ms - TOLERANCE_MS:
            return "too-late"
        is_taken = pending is not None or (
            settled is not None
            and settled.state == "delivered"
            and first_ms - settled.settled_ms < self.terms.deduplication_ms
        )
        if command.verb == "replace":
            return "" if pending is not None else "unknown" if settled is None else "too-late"
        if command.on_conflict == "upsert":
            return self._refuse_upsert(command, first_ms, message_id)
        if not is_taken:
            return ""
        if command.verb == "replay":
            assert last is not None
            if self._found == "conflict" and settled is not None and self._is_deleted(settled):
                return "conflict"
            return "ignored" if last.command.replayed == command.replayed else "conflict"
        if command.on_conflict == "replace":
            return ""
        return "ignored" if command.on_conflict == "ignore" else "conflict"

    def _shift_ms(self, message: Message) -> int:
        spread_ms = message.command.spread_ms
        # "By a hash of its partition and offset": which one is not promised.
        shift_ms = spread_shift_ms(self.number, message.offset, spread_ms)
        if not 0 <= shift_ms <= spread_ms:
            raise wrong(f"a spread of {spread_ms} ms shifts {message.id!r} by {shift_ms} ms")
        return shift_ms

    def _put(
        self, message: Message, place_ms: int, late_ms: int, cursor: Position | None = None
    ) -> None:
        """Place the message: never before `place_ms`, and never at or behind the cursor."""
        cursor = cursor or self.cursor
        message.place_ms = max(place_ms, late_ms, cursor[0] + 1)
        self.pending[message.id] = message
        self.settled.pop(message.id, None)

    # Actions

    def _cancel(self, message_id: bytes, source: int, first_ms: int) -> str | None:
        pending, settled = self.pending.get(message_id), self._known(message_id)
        if pending is not None:
            if self._is_too_old(pending, source, first_ms):
                return "too-late"
            self._note(message_id, source, first_ms)
            self._settle(pending, "cancelled")
            return None
        # A cancel of a generated id overtakes nothing: the record of the message itself gives it
        # its id.
        if self.generated_by(message_id) is None:
            self._note(message_id, source, first_ms)
        if settled is None:
            return "unknown"
        return "ignored" if settled.state == "cancelled" else "too-late"

    def _note(self, message_id: bytes, source: int, first_ms: int) -> None:
        note = Cancel(source=source, first_ms=first_ms, noted_ms=self._now.timestamp_ms)
        self.cancels.setdefault(message_id, []).append(note)

    @staticmethod
    def _is_too_old(pending: Message, source: int, first_ms: int) -> bool:
        """Return whether an action through another partition was written before the message."""
        return pending.source != source and first_ms < pending.first_ms - TOLERANCE_MS

    def _move(self, record: Record, command: Command, source: int, first_ms: int) -> str | None:
        """Reschedule, or fire now."""
        assert command.id is not None
        pending, settled = self.pending.get(command.id), self._known(command.id)
        if pending is None:
            return "unknown" if settled is None else "too-late"
        if self._is_too_old(pending, source, first_ms):
            return "too-late"
        late_ms = min(first_ms, record.timestamp_ms)
        if command.verb == "fire-now":
            # The first time of a cron expression is later than any place at which it is decided.
            is_earlier = (
                pending.occurrence == 0 or max(late_ms, self.cursor[0] + 1) < pending.place_ms
            )
            if pending.lane is None and is_earlier:
                pending.due_ms, pending.aside, pending.is_moved = late_ms, True, True
                pending.occurrence = max(1, pending.occurrence)
                self._put(pending, late_ms, 0)
            elif pending.lane is None:
                self._fired.add(pending.offset)
            return None
        due_ms = self.service.due_ms(command, first_ms)
        shift_ms = self._shift_ms(pending)
        expire_at_ms = None if pending.command.rhythm is not None else pending.expire_at_ms
        if expire_at_ms is not None and due_ms + shift_ms > expire_at_ms:
            return "beyond-expiry"
        pending.due_ms, pending.aside, pending.lane = due_ms, True, None
        pending.is_moved = True
        pending.occurrence = max(1, pending.occurrence)
        self._put(pending, due_ms + shift_ms, late_ms)
        return None

    def _settle(self, message: Message, state: str, reason: str = "") -> None:
        self.pending.pop(message.id, None)
        if state == "replaced":
            return
        self.settled[message.id] = Settled(
            state=state, message=replace(message), settled_ms=self._now.timestamp_ms, reason=reason
        )

    def _follow_forwards(self, output: Output) -> None:
        for record, found in output.forwards(self.forwards):
            command = self.service.command(self.number, record)
            copy = replace(command, hop=(self.number, record.offset, record.timestamp_ms))
            self.service.commands[found.partition, found.record.offset] = copy

    def _check_held(self, step: Step) -> None:
        """A record that was not written waits: its destination took nothing, and the progress
        record says so."""
        queues = {REJECTED_TOPIC: [record for record, _ in self.refusals], **self.forwards}
        for destination, queue in queues.items():
            for record in queue:
                if self.held.get(record.offset) != destination:
                    raise wrong(
                        f"{self.number}/{record.offset} is refused, not held, and not written to "
                        f"{destination}"
                    )
                why = self.service.facts.may_hold(destination)
                if why:
                    raise wrong(f"{self.number}/{record.offset} waits for {destination}: {why}")
        waiting = sum(map(len, self.forwards.values()))
        if step.progress.held_forwards != waiting:
            raise wrong(f"{waiting} held records wait for other partitions: {step.progress}")

    # --- what becomes of a message

    def _select(self, step: Step, output: Output) -> None:
        progress = step.progress
        cursor = (progress.cursor_due_ms, progress.cursor_offset)
        left = {(lane.topic, lane.partition): (lane.due_ms, lane.offset) for lane in progress.lanes}
        selected = [
            message
            for message in self.pending.values()
            if (
                message.position <= left.get(message.lane, (-1, -1))
                if message.lane
                else message.position <= cursor
            )
        ]
        decisions = {
            (decision.due_ms, decision.offset): decision for decision in progress.decisions
        }
        counts = [0] * len(Outcome)
        for message in sorted(selected, key=lambda message: message.position):
            decision = decisions.pop(message.position, None)
            outcome = Outcome.DELIVERED if decision is None else decision.outcome
            counts[outcome - 1] += 1
            self._follow(message, outcome, decision, step, output, cursor)
        if decisions:
            raise wrong(
                "a decision about a message that was not selected: "
                f"{next(iter(decisions.values()))}"
            )
        if tuple(counts) != progress.counts:
            raise wrong(f"the progress record counts {progress.counts}, there were {counts}")

    def _follow(
        self,
        message: Message,
        outcome: Outcome,
        decision: Decision | None,
        step: Step,
        output: Output,
        cursor: Position,
    ) -> None:
        if message.place_ms > step.sent_ms or message.place_ms > step.timestamp_ms + TOLERANCE_MS:
            raise wrong(
                f"{message.id!r} is selected {message.place_ms - step.sent_ms} ms before its "
                f"time: {outcome.name}"
            )
        unread = self.service.unread_action(self.number, step.progress.pull_offset, message)
        if unread and outcome is not Outcome.PARKED:
            raise wrong(f"{message.id!r} is {outcome.name}, and {unread} could be read in time")
        if outcome in (Outcome.DELIVERED, Outcome.AGAIN):
            output.delivery(message, self.service.partitions[message.command.target])
            self.delivered += 1
            if message.expires_ms is not None and step.began_ms > message.expires_ms:
                raise wrong(
                    f"{message.id!r} is delivered {step.began_ms - message.expires_ms} ms after "
                    "it expired"
                )
        reason = Reason(decision.reason).label if decision is not None and decision.reason else ""
        next_ms = 0 if decision is None else decision.next_due_ms
        if outcome in (Outcome.EXPIRED, Outcome.DEAD):
            output.letter(message, reason)
            self._check_letter(message, reason, step)
        if decision is None or outcome is Outcome.DELIVERED:
            self._check_end(message, step)
            self._settle(message, "delivered")
            return
        if outcome is Outcome.PARKED:
            lane = (message.command.target, decision.lane)
            why = self.service.facts.may_park(message, decision.lane, step)
            if why and all(other.lane != lane for other in self.pending.values()):
                raise wrong(f"{message.id!r} is parked with {reason}: {why}")
            message.lane, message.reason, message.aside = lane, reason, True
            return
        message.lane = None
        message.reason = reason
        if outcome in (Outcome.RETRY, Outcome.DEFERRED):
            self._follow_retry(message, decision, step, cursor)
            return
        if not next_ms:
            self._check_end(message, step)
            self._settle(message, "expired" if outcome is Outcome.EXPIRED else "dead", reason)
            return
        self._follow_series(message, outcome, decision, step, cursor)

    def _check_letter(self, message: Message, reason: str, step: Step) -> None:
        rhythm = message.command.rhythm
        if reason != "expired":
            why = self.service.facts.may_die(message, reason, step)
        elif rhythm is not None and rhythm.late_policy == "skip":
            why = ""
        else:
            is_over = message.expires_ms is not None and message.expires_ms < step.sent_ms
            why = "" if is_over else f"it expires at {message.expires_ms}, and it is {step.sent_ms}"
        if why:
            raise wrong(f"{message.id!r} is dead-lettered with {reason}: {why}")

    def _follow_retry(
        self, message: Message, decision: Decision, step: Step, cursor: Position
    ) -> None:
        attempts = message.attempt + (decision.outcome is Outcome.RETRY)
        if decision.attempt != attempts or decision.occurrence != message.occurrence:
            raise wrong(f"{message.id!r} was at attempt {message.attempt}: {decision}")
        if attempts > self.attempts_max(message):
            raise wrong(f"{message.id!r} has attempt {attempts} of {self.attempts_max(message)}")
        facts = self.service.facts
        is_possible = facts.may_die if decision.outcome is Outcome.RETRY else facts.may_wait
        why = is_possible(message, message.reason, step)
        if why:
            raise wrong(
                f"{message.id!r} is tried again with {message.reason}, {decision.outcome.name}: "
                f"{why}"
            )
        message.attempt, message.aside, message.is_moved = decision.attempt, True, True
        self._put(message, decision.next_due_ms, 0, cursor)

    def attempts_max(self, message: Message) -> int:
        """Return how often delivery of the message is attempted."""
        return message.command.attempts_max or self.terms.attempts_max

    # New zone data

    def _plan_again(self, step: Step) -> None:
        """A master with newer zone data moves pending occurrences to what they call the same
        wall-clock time."""
        places = {message.position: message for message in self.pending.values()}
        for replan in step.progress.replans:
            message = places.get((replan.due_ms, replan.offset))
            if message is None or not self._keeps_wall_clock(message):
                raise wrong(f"new zone data move what has no wall-clock time: {message} {replan}")
            if not "" < self.zone_data < step.zone_data:
                raise wrong(f"{step.zone_data} move {message.id!r}, planned by {self.zone_data}")
            assert message.wall_ms is not None
            next_ms = message.wall_ms - step.zone_ms
            if (replan.next_ms, replan.offset_s * 1_000) != (next_ms, step.zone_ms):
                raise wrong(f"{message.id!r} is at {message.wall_ms} by the clock: {replan}")
            if message.expire_at_ms is not None:
                message.expire_at_ms += next_ms - message.planned_ms
            message.due_ms = message.planned_ms = next_ms
            self._put(message, next_ms + self._shift_ms(message), 0)

    @staticmethod
    def _keeps_wall_clock(message: Message) -> bool:
        return message.wall_ms is not None and not message.is_moved and message.lane is None

    def _check_zone_data(self, step: Step) -> None:
        """The recorded version is at most that which planned last. Once a newer one is recorded,
        every pending occurrence has its time by it."""
        version, before = step.progress.zone_data, self.zone_data
        plans = any(decision.offset_s is not None for decision in step.progress.decisions)
        if version and (version != step.zone_data or version == before):
            raise wrong(f"{version} are recorded by {step.zone_data} after {before}")
        self.zone_data = version or before
        if plans and not "" < self.zone_data <= step.zone_data:
            raise wrong(f"{step.zone_data} plan, and {self.zone_data} are recorded")
        if version and not before < version and not plans:
            raise wrong(f"{version} are recorded after {before}, and planned nothing")
        if not "" < before < version:
            return
        for message in self.pending.values():
            if not self._keeps_wall_clock(message) or message.offset in self._fired:
                continue
            rhythm, wall_ms = message.command.rhythm, message.wall_ms
            assert rhythm is not None
            assert wall_ms is not None
            next_ms = wall_ms - step.zone_ms
            is_over = 0 < rhythm.until_ms < next_ms
            if message.planned_ms != next_ms and not is_over:
                raise wrong(f"{message} is not at its wall-clock time by {version}: {next_ms}")

    # Series

    def _check_end(self, message: Message, step: Step) -> None:
        """A series ends with its last occurrence only."""
        rhythm = message.command.rhythm
        if rhythm is None:
            return
        if all(self._turn(message, now_ms) for now_ms in self._moments(message, step, 0)):
            raise wrong(
                f"the series {message.id!r} ends with occurrence {message.occurrence}: {rhythm}"
            )

    def _moments(self, message: Message, step: Step, next_ms: int) -> list[int]:
        """Return moments at which the master may have selected: the first, the last, and those
        around its decision.

        Later occurrences are due as well up to the watermark, which the cursor does not pass.
        """
        first, last = min(step.began_ms, step.sent_ms, step.progress.cursor_due_ms), step.sent_ms
        turned_ms = next_ms + self._shift_ms(message)
        return [
            first,
            last,
            *(moment for moment in (turned_ms - 1, turned_ms) if first <= moment <= last),
        ]

    def _turn(self, message: Message, now_ms: int) -> tuple[str, int, int] | None:
        """Return what becomes of an occurrence selected at this moment: delivered or skipped, and
        the time and number of the next one; None: it is the last."""
        rhythm = message.command.rhythm
        assert rhythm is not None
        reached_ms = now_ms - self._shift_ms(message)
        planned_ms, occurrence = message.planned_ms, message.occurrence
        zone_ms, wall_ms = self._now.zone_ms, message.wall_ms
        next_ms = rhythm.next_ms(planned_ms, occurrence, 0, zone_ms=zone_ms, wall_ms=wall_ms)
        if occurrence == 0:
            return (
                None
                if next_ms is None
                else ("skipped", min(next_ms, message.first_by_ms or next_ms), 1)
            )
        if next_ms is None:
            return None
        if next_ms > reached_ms or rhythm.late_policy == "fire-all":
            return "again", next_ms, occurrence + 1
        after_ms = rhythm.next_ms(
            planned_ms, occurrence, reached_ms, zone_ms=zone_ms, wall_ms=wall_ms
        )
        if message.aside:
            return None if after_ms is None else ("again", after_ms, occurrence + 1)
        if rhythm.late_policy == "fire-once":
            last_ms = rhythm.last_ms(
                planned_ms, occurrence, reached_ms, zone_ms=zone_ms, wall_ms=wall_ms
            )
            return "skipped", last_ms, occurrence
        return None if after_ms is None else ("skipped", after_ms, occurrence + 1)

    def _follow_series(
        self, message: Message, outcome: Outcome, decision: Decision, step: Step, cursor: Position
    ) -> None:
        rhythm = message.command.rhythm
        if rhythm is None:
            raise wrong(f"{message.id!r} is no series: {decision}")
        found = (
            "skipped" if outcome is Outcome.SKIPPED else "again",
            decision.next_due_ms,
            decision.occurrence,
        )
        turns = [
            self._turn(message, now_ms)
            for now_ms in self._moments(message, step, decision.next_due_ms)
        ]
        if found not in turns:
            raise wrong(
                f"{message.id!r} occurrence {message.occurrence} at {message.planned_ms}: "
                f"{decision}, not {turns}"
            )
        moves = outcome is Outcome.SKIPPED and decision.occurrence == message.occurrence
        # An upsert may have kept a time that the rhythm does not have.
        gives_time = message.occurrence > 0 or rhythm.is_on_clock(
            decision.next_due_ms, step.zone_ms
        )
        message.wall_ms = (
            decision.next_due_ms + step.zone_ms if rhythm.names_hours and gives_time else None
        )
        message.is_moved = moves
        if message.expire_at_ms is not None:
            message.expire_at_ms += decision.next_due_ms - message.planned_ms
        message.due_ms = message.planned_ms = decision.next_due_ms
        message.occurrence, message.attempt, message.aside = decision.occurrence, 1, moves
        self._put(message, message.due_ms + self._shift_ms(message), 0, cursor)


class Service:
    """All shards, and the commands of all records."""

    def __init__(self, terms: Terms, facts: Facts) -> None:
        self.terms = terms
        self.facts = facts
        self.partitions: dict[str, int] = {}
        """Of each target."""
        self.commands: dict[tuple[int, int], Command] = {}
        self.shards = [ShardModel(self, number) for number in range(terms.shards)]

    def unread_ms(self, shard: int) -> int:
        """Return the first timestamp of the oldest record that may still come to the shard."""
        raise NotImplementedError

    def unread_action(self, shard: int, pull_offset: int, message: Message) -> str:
        """Return a record that the shard had not read, which acts on the message and could be read
        more than 0.5 s before it was due."""
        raise NotImplementedError

    def command(self, partition: int, record: Record) -> Command:
        """Return what the record asks for."""
        return self.commands[partition, record.offset]

    def home(self, command: Command) -> int:
        """Return the partition of the id that the record names."""
        assert command.id is not None
        shard = self.generated_by(command.id)
        return partition_of(command.id, self.terms.shards) if shard is None else shard

    @staticmethod
    def generated_by(message_id: bytes) -> int | None:
        """Return the shard that generated the id; None if a producer chose it."""
        first, *rest = message_id.split(b"-")
        is_generated = len(rest) == 2 and all(part.isdigit() for part in (first, *rest))
        return int(first) if is_generated else None

    def due_ms(self, command: Command, first_ms: int) -> int:
        """Return the due time of a record with this first timestamp."""
        if command.at_ms is not None:
            return command.at_ms
        # The first time of a cron expression may be left to it: it is decided when the message is
        # selected, at once.
        return first_ms + (command.delay_ms or 0)
