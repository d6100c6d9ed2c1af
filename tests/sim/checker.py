"""Checks the nine laws from outside: compares the expectations of producers with the contents of
the logs.

The only look into a node is a digest of its store at each applied progress record, equal on all
replicas."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from chronos.core.keys import REJECTED as TO_REJECTED
from chronos.core.keys import parse_generated_id, partition_of
from chronos.core.message import Reason, Record
from chronos.core.series import spread_shift_ms
from chronos.core.shard.progress import Decision, Outcome, Progress, unpack_progress
from chronos.workers.replica.leadership import FOREIGN_SILENCE_MS
from chronos.workers.step.targets import PROVEN_AT
from tests.sim.broker import (
    DEAD_LETTER,
    DELAY,
    PROGRESS,
    REJECTED,
    Brokers,
    Partition,
    Transaction,
)
from tests.sim.expectations import Expectation
from tests.sim.log import POISON
from tests.sim.store import SimStore
from tests.sim.world import World, broken

EARLY_MS = 500
"""Largest difference between a clock and the machines' time at which messages are delivered."""

MISSING_MS = 1_900
"""Shortest absence of a target before its messages may be dead-lettered: two looks, less the drift
of clocks."""


class Committed(Struct, frozen=True):
    """One committed step."""

    at_ms: int
    offset: int
    stamp_ms: int
    """The timestamp of its progress record: the time of the broker that leads the progress
    partition."""
    progress: Progress


class Note(Struct, frozen=True):
    """A record that messages of its id are compared with."""

    first_ms: int
    """Its first timestamp as accepted."""
    own_ms: int
    """Its own timestamp, in the partition of the id."""


class Ended(Struct, frozen=True):
    """How a committed transaction settled a message."""

    how: str
    step: int
    """Index of the step in its shard."""
    due_ms: int
    occurrence: int = 1


COMMIT_MS = 500
"""Time between the selection of messages and the end of their commit, without faults."""


class RateBound(Struct):
    """A rate that one shard alone must keep from a moment on."""

    per_s: float
    burst: int
    from_ms: int
    delivered: int = 0


class Checker:
    """Watches one seed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.brokers: Brokers
        self.settled_too = True
        """Settled rows are never cleaned up in this seed, so they must be equal too."""
        self.expected: dict[tuple[int, int], Expectation] = {}
        self.unreliable: set[str] = set()
        """Targets that are missing at times: only their messages may be dead-lettered for it."""
        self.clocks_jump = False
        """Clocks of nodes are set in this seed: their measurements prove nothing."""
        self.attempts_max = 0
        """How often a message is attempted that has no limit of its own."""
        self.shards = 1
        self.rejects_misplaced = False
        """Records whose id belongs to another shard are rejected, not forwarded."""
        self.forwarded: set[tuple[int, int]] = set()
        """(shard, offset) of each record that was written on to its own partition."""
        self.queues: dict[tuple[int, int], list[int]] = defaultdict(list)
        """Shard and destination -> offsets of the held records, in order."""
        self.hopped: dict[tuple[int, int], int] = {}
        """Shard and partition -> offset of the last record that was forwarded there."""
        self.deduplication_ms = 0
        """How long a delivered id is taken."""
        self.steps: dict[int, list[Committed]] = defaultdict(list)
        self.ended: dict[tuple[int, int], Ended] = {}
        self.occurrences: dict[tuple[int, int], list[Ended]] = defaultdict(list)
        """How each occurrence of a series was settled."""
        self.goes_on: dict[int, int] = {}
        """Source offset -> next due time of each message that stays pending after the step that is
        being checked."""
        self.next_ms: dict[tuple[int, int], int] = {}
        """(shard, offset) -> the last next due time that was decided for a message."""
        self.rejected: dict[tuple[int, int], int] = {}
        """(shard, offset) of each record in the rejected topic -> index of the step."""
        self.refused: dict[tuple[int, int], int] = {}
        self.committers: dict[tuple[int, int], str] = {}
        """(shard, role epoch) -> the data directory that committed under it."""
        self.parked: set[tuple[int, int, int, int]] = set()
        """(shard, due time, offset, partition) of each message that was parked in a lane."""
        self.rates: dict[str, RateBound] = {}
        """Target -> the rate that it has from now on, whatever happens."""
        self.digests: dict[tuple[int, int], bytes] = {}
        self.deliveries = 0

    # Called as it happens

    def wrote(self, shard: int, store: SimStore) -> None:
        """Law 9: the same state at the same progress record, on every replica and after every
        restart."""
        state = store.state
        assert state is not None
        digest = store.digest(settled_too=self.settled_too)
        known = self.digests.setdefault((shard, state.applied), digest)
        if known != digest:
            raise broken("9", f"two states of shard {shard} at progress offset {state.applied}")

    def committed(self, transaction: Transaction) -> None:
        """A transaction of a master was committed at this moment."""
        shard = transaction.shard
        assert shard is not None
        written: dict[str, list[Record]] = defaultdict(list)
        offset = -1
        for partition, at in transaction.written:
            record = partition.items[at][0]
            assert record is not None
            if partition.topic == PROGRESS:
                offset = at
            written[partition.topic].append(record)
        records = written.pop(PROGRESS, [])
        if len(records) != 1:
            raise broken(
                "3", f"a transaction of shard {shard} holds {len(records)} progress records"
            )
        progress = unpack_progress(records[0].value, len(self.brokers.topics[PROGRESS]))
        self._check_order(shard, progress)
        steps = self.steps[shard]
        if steps and steps[-1].progress.log_epoch == progress.log_epoch:
            silent_ms = self.world.now_ms - steps[-1].at_ms
            if silent_ms > FOREIGN_SILENCE_MS:
                raise broken("5", f"a leadership of shard {shard} went on after {silent_ms} ms")
        steps.append(Committed(self.world.now_ms, offset, records[0].timestamp_ms, progress))
        self.goes_on = {
            decision.offset: decision.next_due_ms
            for decision in progress.decisions
            if decision.next_due_ms
        }
        self.next_ms.update({(shard, offset): next_ms for offset, next_ms in self.goes_on.items()})
        moved = [
            (partition, at) for partition, at in transaction.written if partition.topic == DELAY
        ]
        written.pop(DELAY, None)
        self._record_refusals(shard, progress, written.pop(REJECTED, []))
        self._record_forwards(shard, progress, moved)
        for record in written.pop(DEAD_LETTER, []):
            self._record_dead(shard, record, progress)
        delivered = 0
        for topic in sorted(written):
            for record in written[topic]:
                self._record_delivery(shard, topic, record, progress)
                delivered += 1
        counts = progress.counts
        if delivered != counts[Outcome.DELIVERED - 1] + counts[Outcome.AGAIN - 1]:
            raise broken(
                "1", f"shard {shard} committed {delivered} deliveries, its counts are {counts}"
            )
        for decision in progress.decisions:
            if decision.offset >= progress.pull_offset:
                raise broken(
                    "9", f"shard {shard} decided offset {decision.offset}, beyond its pull offset"
                )
            if decision.reason == Reason.REFUSED_BY_BROKER and decision.outcome in (
                Outcome.RETRY,
                Outcome.DEAD,
            ):
                self._check_attempted(shard, decision)
            if decision.outcome == Outcome.PARKED:
                parked = (shard, decision.due_ms, decision.offset, decision.lane)
                if parked in self.parked:
                    raise broken("8", f"{parked} was parked twice at one position")
                self.parked.add(parked)

    def _check_attempted(self, shard: int, decision: Decision) -> None:
        """Law 8: each refusal that counts was one of the message at this time, also if an action
        moved it or another master led."""
        attempted_ms = self.brokers.attempted_ms.pop(
            b"%b/%d/%d" % (DELAY.encode(), shard, decision.offset), 0
        )
        if attempted_ms < (1 if self.clocks_jump else decision.due_ms - EARLY_MS):
            raise broken(
                "8",
                (
                    f"offset {decision.offset} of shard {shard} counts as refused, and was not "
                    "attempted"
                ),
            )

    def _check_order(self, shard: int, progress: Progress) -> None:
        """Laws 4 and 5."""
        steps = self.steps[shard]
        before = steps[-1].progress if steps else None
        if (
            self.committers.setdefault((shard, progress.role_epoch), progress.instance)
            != progress.instance
        ):
            raise broken(
                "5", f"shard {shard}: two nodes commit under role epoch {progress.role_epoch}"
            )
        if before is None:
            return
        if (progress.cursor_due_ms, progress.cursor_offset) < (
            before.cursor_due_ms,
            before.cursor_offset,
        ):
            raise broken("4", f"the cursor of shard {shard} moved back")
        if progress.pull_offset < before.pull_offset:
            raise broken("4", f"the pull offset of shard {shard} moved back")
        if progress.log_epoch < before.log_epoch:
            raise broken(
                "5",
                (
                    f"shard {shard}: a commit of epoch {progress.log_epoch} after one of "
                    f"{before.log_epoch}"
                ),
            )
        if progress.role_epoch < before.role_epoch:
            raise broken(
                "5", f"shard {shard}: role epoch {progress.role_epoch} after {before.role_epoch}"
            )
        if progress.log_epoch == before.log_epoch:
            if (progress.instance, progress.role_epoch) != (before.instance, before.role_epoch):
                raise broken(
                    "5", f"shard {shard}: two masters commit in epoch {progress.log_epoch}"
                )
        elif progress.log_epoch != before.log_epoch + 1 or progress.selected or progress.refused:
            raise broken(
                "5",
                f"shard {shard}: epoch {progress.log_epoch} does not begin with its epoch record",
            )

    def _record_refusals(self, shard: int, progress: Progress, records: list[Record]) -> None:
        before = self.steps[shard][-2].progress.pull_offset if len(self.steps[shard]) > 1 else 0
        silent = (Reason.IGNORED, Reason.REPEATED, Reason.FORWARDED, Reason.HELD)
        unseen = {offset for offset, reason in progress.refused if reason not in silent}
        unseen = unseen - {hold.offset for hold in progress.held} | self._written(
            shard, progress, rejected=True
        )
        for offset, reason in progress.refused:
            if not before <= offset < progress.pull_offset:
                raise broken(
                    "9", f"shard {shard} refuses offset {offset}, which this step did not pull"
                )
            self.refused[shard, offset] = reason
        for first, last in progress.unreadable:
            if self.brokers.topics[DELAY][shard].unreadable.get(first) != (first, last):
                raise broken(
                    "8",
                    (
                        f"shard {shard} steps over offsets {first} to {last}, which are not a bad "
                        "batch"
                    ),
                )
            self.refused.update(
                {(shard, offset): Reason.UNREADABLE for offset in range(first, last + 1)}
            )
        for record in records:
            source = self._source(shard, record)
            if source in self.rejected or source[1] not in unseen:
                raise broken("3", f"{source} is rejected twice, or without a decision")
            expected = self.expected[source]
            if record.value != expected.value:
                raise broken("1", f"{source} was rejected with another payload")
            self.rejected[source] = len(self.steps[shard]) - 1
            unseen.discard(source[1])
        if unseen:
            raise broken(
                "1", f"shard {shard} refused {sorted(unseen)}, which are not in the rejected topic"
            )

    def _record_forwards(
        self, shard: int, progress: Progress, moved: list[tuple[Partition, int]]
    ) -> None:
        """Each record listed as forwarded is written once, unchanged, to the partition of its id,
        and delivers nothing."""
        listed = {offset for offset, reason in progress.refused if reason == Reason.FORWARDED}
        listed |= self._written(shard, progress, rejected=False)
        self._enqueue(shard, progress)
        if (listed or progress.written) and progress.selected:
            raise broken(
                "8", f"shard {shard} forwards records and delivers messages in one transaction"
            )
        for partition, at in moved:
            record = partition.items[at][0]
            assert record is not None
            headers = list(record.headers or ())
            name, hop = headers.pop()
            place, _, first_ms = (hop or b"").decode().partition(";")
            topic, number, offset = place.split("/")
            source = (int(number), int(offset))
            if (
                name != "chronos-forwarded"
                or topic != DELAY
                or source[0] != shard
                or source[1] not in listed
            ):
                raise broken(
                    "3",
                    (
                        f"shard {shard} wrote {partition.name}/{at} with the hop {hop!r}, which "
                        "is not listed once"
                    ),
                )
            listed.discard(source[1])
            last = self.hopped.get((shard, partition.number), -1)
            if source[1] <= last:
                raise broken(
                    "6", f"shard {shard} forwarded {source[1]} to {partition.name} after {last}"
                )
            self.hopped[shard, partition.number] = source[1]
            expected, origin = (
                self.expected[source],
                self.brokers.topics[DELAY][shard].items[source[1]][0],
            )
            assert origin is not None
            if (record.key, record.value, headers) != (
                origin.key,
                origin.value,
                list(origin.headers or ()),
            ):
                raise broken("1", f"{source} was forwarded as another record")
            if (
                expected.malformed
                or expected.first_ms is not None
                or partition.number != self.home(shard, expected)
            ):
                raise broken(
                    "1", f"{source} was forwarded to {partition.name}, without need or twice"
                )
            if int(first_ms) != origin.timestamp_ms:
                raise broken(
                    "1",
                    f"{source} was forwarded with the time {first_ms}, not {origin.timestamp_ms}",
                )
            self.forwarded.add(source)
            expected = replace(expected, first_ms=origin.timestamp_ms, first_shard=shard)
            if expected.delay_ms is not None:
                expected.due_ms = _accepted_ms(record, expected) + expected.delay_ms
            self.expected[partition.number, at] = expected
        if listed:
            raise broken(
                "1", f"shard {shard} lists {sorted(listed)} as forwarded, and did not write them"
            )

    def _written(self, shard: int, progress: Progress, *, rejected: bool) -> set[int]:
        """Return the held records that a step writes on: those that go to the rejected topic, or
        all others."""
        found: set[int] = set()
        requeued = {hold.offset for hold in progress.held} if progress.written else set()
        for written in progress.written:
            queue = self.queues[shard, written.destination]
            if written.offset not in queue or not {*written.too_large} <= {*queue}:
                raise broken("3", f"shard {shard} writes on {written}, which is not held")
            offsets = {offset for offset in queue if offset <= written.offset}
            to_rejected = offsets if written.destination == TO_REJECTED else {*written.too_large}
            found |= to_rejected - requeued if rejected else offsets - to_rejected
        return found

    def _enqueue(self, shard: int, progress: Progress) -> None:
        """Follow the queues of held records: what is written on leaves them, what is held comes
        last."""
        for written in progress.written:
            queue = self.queues[shard, written.destination]
            self.queues[shard, written.destination] = [
                offset for offset in queue if offset > written.offset
            ]
        reasons = dict(progress.refused)
        reasons |= {
            offset: Reason.TOO_LARGE for written in progress.written for offset in written.too_large
        }
        for hold in progress.held:
            if (reasons.get(hold.offset) == Reason.HELD) != (hold.destination != TO_REJECTED):
                raise broken(
                    "9", f"shard {shard} holds {hold} with the reason {reasons.get(hold.offset)}"
                )
            self.queues[shard, hold.destination].append(hold.offset)
        forwards = sum(
            len(queue)
            for (of, to), queue in self.queues.items()
            if of == shard and to != TO_REJECTED
        )
        if progress.held_forwards != forwards:
            raise broken(
                "9",
                f"shard {shard} says that {progress.held_forwards} of {forwards} held records wait",
            )

    def home(self, shard: int, expected: Expectation) -> int:
        """Return the shard that the id of a record in this shard belongs to."""
        if expected.id is None:
            return shard
        address = parse_generated_id(expected.id, self.shards)
        return partition_of(expected.id, self.shards) if address is None else address[0]

    def _source(self, shard: int, record: Record) -> tuple[int, int]:
        if "chronos-forwarded" in dict(record.headers or ()):
            raise broken("1", f"shard {shard} passes on a hop: {record.headers}")
        source = dict(record.headers or ()).get("chronos-source") or b""
        topic, number, offset = source.decode().split("/")
        if topic != DELAY or int(number) != shard or (shard, int(offset)) not in self.expected:
            raise broken("3", f"shard {shard} wrote a record with the source {source.decode()}")
        return shard, int(offset)

    def _record_end(self, source: tuple[int, int], how: str, record: Record) -> Expectation:
        if source in self.ended:
            raise broken("3", f"{source} is {how} and was {self.ended[source].how} before")
        expected = self.expected[source]
        if record.value != expected.value:
            raise broken("1", f"{source} is {how} with another payload")
        headers = dict(record.headers or ())
        if headers.get("chronos-replayed") != expected.replayed:
            raise broken(
                "1", f"{source} is {how} as a replay of {headers.get('chronos-replayed')!r}"
            )
        number = int(headers.get("chronos-occurrence") or b"1")
        end = Ended(
            how, len(self.steps[source[0]]) - 1, int(headers["chronos-due-at"] or b"0"), number
        )
        before = self.occurrences[source]
        if number <= (before[-1].occurrence if before else 0) or number > expected.times:
            raise broken(
                "3",
                (
                    f"{source} is {how} as occurrence {number} of {expected.times}, after "
                    f"{before[-1:]}"
                ),
            )
        before.append(end)
        if source[1] not in self.goes_on:
            self.ended[source] = end
        return expected

    def _record_delivery(self, shard: int, topic: str, record: Record, progress: Progress) -> None:
        """Laws 2, 3 and 6."""
        source = self._source(shard, record)
        expected = self._record_end(source, "delivered", record)
        due_ms, stamp_ms = self.occurrences[source][-1].due_ms, self.steps[shard][-1].stamp_ms
        self.deliveries += 1
        if topic in self.rates:
            self._check_rate(topic, self.rates[topic])
        if (topic, record.key) != (expected.target, expected.key):
            raise broken("1", f"{source} went to {topic} with key {record.key!r}")
        if stamp_ms < due_ms - EARLY_MS:
            raise broken("2", f"{source} is delivered {due_ms - stamp_ms} ms early")
        expiry_ms = self._expiry_of(*source)
        if (
            expiry_ms is not None
            and not self.world.faulty
            and self.world.now_ms > expiry_ms + EARLY_MS
        ):
            raise broken(
                "1", f"{source} is delivered {self.world.now_ms - expiry_ms} ms after it expired"
            )
        # Every record that was readable half a second before the due time must be executed before
        # the delivery.
        delay = self.brokers.topics[DELAY][shard]
        unread_ms = _first_readable_ms(delay, progress.pull_offset)
        if unread_ms is not None and unread_ms + self._clocks_off_ms() < due_ms - EARLY_MS:
            raise broken(
                "6",
                (
                    f"{source} is delivered before a record that was there {due_ms - unread_ms} "
                    "ms earlier"
                ),
            )

    def _clocks_off_ms(self) -> int:
        """How far the brokers' time may be ahead of the true one, where a node follows it with a
        clock that was set."""
        ahead_ms = max(clock.ahead_ms for clock in self.brokers.clocks)
        return self.brokers.wrong_ms + (max(0, ahead_ms) if self.clocks_jump else 0)

    def _check_rate(self, topic: str, bound: RateBound) -> None:
        bound.delivered += 1
        most = bound.burst + bound.per_s * (self.world.now_ms - bound.from_ms + COMMIT_MS) / 1_000
        if bound.delivered > most + 1:
            raise broken(
                "8", f"{topic} receives {bound.delivered} messages where its rate allows {most:.1f}"
            )

    def _record_dead(self, shard: int, record: Record, progress: Progress) -> None:
        source = self._source(shard, record)
        headers = dict(record.headers or ())
        reason, detail = (
            (headers[name] or b"").decode() for name in ("chronos-reason", "chronos-detail")
        )
        # The state of the id is computed from the decision: it must say what the dead letter says.
        found = [
            (Reason(made.reason).label, made.attempt, (*progress.details, "")[made.detail - 1])
            for made in progress.decisions
            if made.offset == source[1]
        ]
        told = (reason, int(headers["chronos-attempt"] or b"0"), detail)
        if (
            len(found) != 1
            or found[0][:2] != told[:2]
            or not found[0][2]
            or not detail.startswith(found[0][2])
        ):
            raise broken("1", f"the dead letter of {source} says {told}, its decision {found}")
        expected, stamp_ms = (
            self._record_end(source, reason, record),
            self.steps[shard][-1].stamp_ms,
        )
        if told[1] > min(self.attempts_max, expected.attempts or self.attempts_max):
            raise broken("8", f"{source} was attempted {told[1]} times, more often than its limit")
        if reason == "expired":
            expiry_ms = self._expiry_of(*source)
            justified = expected.late_policy == "skip" or (
                expiry_ms is not None and stamp_ms >= expiry_ms - EARLY_MS
            )
        elif reason == "no-key":
            justified = expected.key is None and expected.target in self.brokers.compacted
        elif reason == "refused-by-broker":
            shares_attempt = f"like every message for {expected.target} since" in detail
            justified = (
                expected.value == POISON
                or expected.target in self.unreliable
                or (
                    shares_attempt
                    and self._poison_attempts(shard, expected.target, stamp_ms) >= PROVEN_AT
                )
            )
        else:
            missing_ms = self.world.now_ms - self.brokers.deleted_ms.get(expected.target, 0)
            justified = expected.target in self.unreliable and (
                missing_ms >= MISSING_MS or self.clocks_jump
            )
        if not justified:
            raise broken("8", f"{source} was dead-lettered: {reason}")
        if stamp_ms < self.occurrences[source][-1].due_ms - EARLY_MS:
            raise broken("2", f"{source} is dead-lettered before it is due")

    def _poison_attempts(self, shard: int, target: str, now_ms: int) -> int:
        """Return how many poison records of the shard for a target were due: each occurrence that
        has an outcome, and each message that was first due by now."""
        return sum(
            max(len(self.occurrences.get(source, ())), at.due_ms <= now_ms)
            for source, at in self.expected.items()
            if source[0] == shard and at.value == POISON and at.target == target
        )

    def poison_pending(self) -> int:
        """Return the largest number of poison records that one shard has not settled."""
        counts = Counter(
            source[0]
            for source, expected in self.expected.items()
            if expected.value == POISON and source not in self.ended and source not in self.refused
        )
        return max(counts.values(), default=0)

    def moved_ms(self, shard: int, instance: str, *, delivers: bool) -> int:
        """When a data directory last committed a step that moved the cursor, or else the pull
        offset; 0: never."""
        steps = self.steps[shard]
        for at in range(len(steps) - 1, 0, -1):
            now, before = steps[at].progress, steps[at - 1].progress
            cursors = [(each.cursor_due_ms, each.cursor_offset) for each in (before, now)]
            moved = cursors[0] != cursors[1] if delivers else before.pull_offset != now.pull_offset
            if moved and now.instance == instance:
                return steps[at].at_ms
        return 0

    # Called at the end

    def unsettled(self, shards: int, until_ms: int) -> list[str]:
        """Messages due by then that are not settled, as text; also checks every other law about
        outcomes."""
        found = []
        for shard in range(shards):
            delay = self.brokers.topics[DELAY][shard]
            steps = self.steps[shard]
            pulled = steps[-1].progress.pull_offset if steps else 0
            readable = delay.committed()
            if readable and readable[-1].offset >= pulled:
                found.append(f"shard {shard} was read up to {pulled} of {readable[-1].offset + 1}")
            found += [
                f"{(shard, offset)} is held for "
                f"{'the rejected topic' if to == TO_REJECTED else f'partition {to}'}"
                for (of, to), queue in self.queues.items()
                if of == shard
                for offset in queue
            ]
            pending = self.account(shard, [record for record in readable if record.offset < pulled])
            found += [
                f"{(shard, offset)} was due {until_ms - due} ms ago"
                for offset, due in pending
                if due <= until_ms
            ]
        return found

    def account(self, shard: int, records: list[Record]) -> list[tuple[int, int]]:
        """Law 1: each record has exactly one outcome. Return offset and due time of the messages
        still pending."""
        staged_in = self._staged_in(shard)
        holders: dict[bytes, int] = {}
        cancels: dict[bytes, dict[int, Note]] = defaultdict(dict)
        """Id -> the latest of its cancels that came through each partition."""
        pending: dict[int, int] = {}
        fired: set[tuple[int, int]] = set()
        moved: set[tuple[int, int]] = set()
        for record in records:
            offset = record.offset
            source = (shard, offset)
            expected = self.expected[source]
            step = staged_in(offset)
            named = expected.id
            if named is None:
                named = b"%d-%d-%d" % (shard, expected.due_ms, offset)
            holder = holders.get(named)
            if holder is not None and holder in pending:
                end = self.ended.get((shard, holder))
                if end is not None and end.step < step:
                    del pending[holder]
            alive = holder is not None and holder in pending
            reason = self.refused.get(source)
            expiry_ms = None if holder is None else self._expiry_of(shard, holder)
            is_beyond = (
                expected.verb == "reschedule"
                and expiry_ms is not None
                and expected.due_ms > expiry_ms
            )
            first_ms, through = _accepted_ms(record, expected), _through(shard, expected)
            is_schedule = expected.verb in ("schedule", "replace", "replay")
            later = self._later(
                source, first_ms, through, holder, cancels[named] if is_schedule else {}
            )
            if not is_schedule and not alive:
                later = []
            self._check_place(source, expected, reason)
            counts = reason is None or (
                not alive and reason in (Reason.UNKNOWN, Reason.TOO_LATE, Reason.IGNORED)
            )
            if expected.verb == "cancel" and counts:
                known = cancels[named].get(through)
                if known is None or first_ms >= known.first_ms:
                    cancels[named][through] = Note(first_ms, record.timestamp_ms)
            if reason in (Reason.FORWARDED, Reason.HELD):
                continue
            if reason is None and not expected.malformed:
                self._check_accepted(source, record, expected, later)
            if later and reason == Reason.TOO_LATE:
                continue
            if reason == Reason.TOO_LATE and expected.verb == "schedule" and not expected.malformed:
                raise broken(
                    "1",
                    (
                        f"{source} of {first_ms} was refused as older, and no later record of its "
                        "id came first"
                    ),
                )
            if expected.unreadable != (reason == Reason.UNREADABLE):
                raise broken(
                    "8",
                    f"{source} was refused as unreadable though it is not, or the other way round",
                )
            if reason is not None:
                self._check_refusal(
                    source,
                    expected,
                    reason,
                    alive=alive,
                    known=named in holders,
                    beyond_expiry=is_beyond,
                )
                if expected.verb == "replay" and holder is not None:
                    self._check_refused_replay(source, reason, (shard, holder), alive=alive)
                continue
            if expected.malformed:
                raise broken("1", f"{source} is malformed and was not refused")
            if expected.verb == "probe":
                continue
            if expected.verb not in ("schedule", "replace", "replay"):
                if not alive:
                    raise broken(
                        "6", f"{source} ({expected.verb}) was accepted though nothing was pending"
                    )
                assert holder is not None
                if expected.verb == "cancel":
                    self._end_by(shard, holder, "cancelled", offset, step)
                    del pending[holder]
                elif expected.verb == "reschedule":
                    if is_beyond:
                        raise broken(
                            "1",
                            f"{source} was accepted though the message expires before the new time",
                        )
                    pending[holder] = expected.due_ms
                    moved.add((holder, expected.due_ms))
                else:
                    # A message that waits for its next attempt may be due already: it keeps its due
                    # time or gets the new one.
                    fired_ms = min(first_ms, record.timestamp_ms)
                    fired |= {(holder, fired_ms), (holder, pending[holder])}
                    pending[holder] = min(pending[holder], fired_ms)
                continue
            if alive:
                assert holder is not None
                if expected.verb == "replay":
                    raise broken(
                        "3",
                        f"the replay {source} was accepted while a message with its id was pending",
                    )
                self._end_by(shard, holder, "replaced", offset, step)
                del pending[holder]
            elif expected.verb in ("schedule", "replay") and expected.policy != "replace":
                self._check_duplicate(source, first_ms, holder, step)
            holders[named] = offset
            pending[offset] = expected.due_ms
        for offset in list(pending):
            source = (shard, offset)
            end, expected = self.ended.get(source), self.expected[source]
            if expected.every_ms or expected.spread_ms:
                self._check_times(
                    source, expected, {due_ms for at, due_ms in fired if at == offset}, moved
                )
            if end is not None:
                other = end.due_ms != pending[offset] and not expected.every_ms
                if other and (offset, end.due_ms) not in fired:
                    raise broken(
                        "6", f"{source} ended with another due time than the last one asked for"
                    )
                del pending[offset]
            elif expected.every_ms:
                pending[offset] = max(pending[offset], self.next_ms.get(source, 0))
        accepted = {record.offset for record in records} - {
            at for on, at in self.refused if on == shard
        }
        for on, offset in self.ended:
            if on == shard and offset not in accepted:
                raise broken(
                    "1",
                    f"{(shard, offset)} has an outcome although it was refused or never committed",
                )
        return sorted(pending.items())

    def _later(
        self,
        source: tuple[int, int],
        first_ms: int,
        through: int,
        holder: int | None,
        cancels: dict[int, Note],
    ) -> list[Note]:
        """Return the records of an id that came first and, by the order of their first timestamps,
        win over this one: the message that has the id, if it is younger by more than the tolerance,
        and cancels that are not older by more than it.

        Only records through other partitions: those through one keep its order.
        """
        later = [
            note
            for at, note in cancels.items()
            if at != through and note.first_ms >= first_ms - EARLY_MS
        ]
        if holder is not None and through != _through(source[0], self.expected[source[0], holder]):
            message = Note(
                self._first_of(source[0], holder), self._record_at(source[0], holder).timestamp_ms
            )
            if first_ms < message.first_ms - EARLY_MS:
                later.append(message)
        return later

    def _check_accepted(
        self, source: tuple[int, int], record: Record, expected: Expectation, later: list[Note]
    ) -> None:
        """Law 6: a record does not win over one that counts as later; that is remembered as long as
        the record may come."""
        if not later:
            return
        if expected.verb not in ("schedule", "replace", "replay"):
            raise broken(
                "6",
                (
                    f"{source} ({expected.verb}) changed a message that was scheduled after it: "
                    f"{later}"
                ),
            )
        # Cancels of generated ids are not remembered.
        if expected.id is not None and parse_generated_id(expected.id, self.shards) is None:
            first_ms = _accepted_ms(record, expected)
            raise broken(
                "6", f"{source} of {first_ms} was accepted after later ones of its id: {later}"
            )

    def _record_at(self, shard: int, offset: int) -> Record:
        record = self.brokers.topics[DELAY][shard].items[offset][0]
        assert record is not None
        return record

    def _first_of(self, shard: int, offset: int) -> int:
        """Return the first timestamp of a record, as accepted."""
        return _accepted_ms(self._record_at(shard, offset), self.expected[shard, offset])

    def _expiry_of(self, shard: int, offset: int) -> int | None:
        """Return the time after which a message is not delivered (epoch ms). A replay has none if
        it was written after it."""
        expected = self.expected[shard, offset]
        expiry_ms = expected.expire_at_ms
        if expected.verb == "replay" and expiry_ms is not None:
            return expiry_ms if expiry_ms > self._first_of(shard, offset) else None
        return expiry_ms

    def _check_place(
        self, source: tuple[int, int], expected: Expectation, reason: int | None
    ) -> None:
        """An id is accepted in its own shard only, and a record without need is neither forwarded
        nor refused for it."""
        is_here = self.home(source[0], expected) == source[0]
        shard, offset = source
        waits = any(offset in queue for (of, _), queue in self.queues.items() if of == shard)
        if (
            reason == Reason.HELD
            and [source in self.forwarded, source in self.rejected, waits].count(True) != 1
        ):
            raise broken("1", f"{source} was held, and neither waits nor was written on once")
        if (reason == Reason.FORWARDED) != (source in self.forwarded) and reason != Reason.HELD:
            raise broken(
                "1", f"{source} is listed as forwarded and was not written, or the other way round"
            )
        if not is_here and reason is None and not expected.malformed:
            raise broken("1", f"{source} was accepted, its id belongs to another shard")
        may_be_wrong = self.rejects_misplaced or expected.first_ms is not None
        if reason == Reason.WRONG_SHARD and (is_here or not may_be_wrong):
            raise broken("1", f"{source} was refused as in the wrong shard")

    def _check_duplicate(
        self, source: tuple[int, int], first_ms: int, holder: int | None, step: int
    ) -> None:
        """Law 3: an id is taken for a while after the delivery of its message, also for what comes
        through another partition."""
        end = None if holder is None else self.ended.get((source[0], holder))
        if end is None or end.how != "delivered" or end.step >= step:
            return
        age_ms = first_ms - self.steps[source[0]][end.step].stamp_ms
        if age_ms < self.deduplication_ms:
            raise broken("3", f"{source} was accepted {age_ms} ms after a delivery with its id")

    def _staged_in(self, shard: int) -> Callable[[int], int]:
        """A function from the offset of a record to the step that staged it."""
        pulls = [step.progress.pull_offset for step in self.steps[shard]]

        return partial(bisect_right, pulls)

    def _check_times(
        self,
        source: tuple[int, int],
        expected: Expectation,
        fired: set[int],
        moved: set[tuple[int, int]],
    ) -> None:
        """Each occurrence has its time in the rhythm, or the one an action gave it, and none is
        earlier than its spread."""
        shift_ms = spread_shift_ms(*source, expected.spread_ms)
        for end in self.occurrences[source]:
            in_rhythm = end.due_ms == expected.due_ms or (
                expected.every_ms and (end.due_ms - expected.due_ms) % expected.every_ms == 0
            )
            if not in_rhythm and end.due_ms not in fired and (source[1], end.due_ms) not in moved:
                raise broken(
                    "6", f"{source} has an occurrence at {end.due_ms}, which nobody asked for"
                )
            early_ms = end.due_ms + shift_ms - self.steps[source[0]][end.step].stamp_ms
            if early_ms > EARLY_MS and end.due_ms not in fired:
                raise broken("2", f"{source} is {end.how} {early_ms} ms before its spread time")

    def _end_by(self, shard: int, holder: int, how: str, by: int, step: int) -> None:
        end = next((end for end in self.occurrences[shard, holder] if end.step >= step), None)
        if end is not None:
            raise broken(
                "6", f"{(shard, holder)} was {how} by offset {by}, and {end.how} after that"
            )

    def _check_refusal(
        self,
        source: tuple[int, int],
        expected: Expectation,
        reason: int,
        *,
        alive: bool,
        known: bool,
        beyond_expiry: bool,
    ) -> None:
        if expected.malformed:
            return
        if reason in (Reason.TOO_LATE, Reason.UNKNOWN) or (
            reason == Reason.IGNORED and expected.verb == "cancel"
        ):
            if alive:
                raise broken(
                    "6", f"{source} ({expected.verb}) was refused though the message was pending"
                )
        elif reason == Reason.BEYOND_EXPIRY:
            if not (alive and beyond_expiry):
                raise broken(
                    "1",
                    f"{source} was refused though the message does not expire before the new time",
                )
        elif reason == Reason.WRONG_SHARD:
            return  # see `_check_place`
        elif reason in (Reason.CONFLICT, Reason.IGNORED):
            if not known:
                raise broken(
                    "1", f"{source} was refused as a duplicate, and no message had its id before"
                )
        else:
            raise broken("1", f"{source} was refused without cause: {Reason(reason).label}")

    def _check_refused_replay(
        self, source: tuple[int, int], reason: int, holder: tuple[int, int], *, alive: bool
    ) -> None:
        """A replay is refused if its id is taken, and only then; as ignored if a replay of the same
        letter has taken it."""
        end = self.ended.get(holder)
        if not alive and (end is None or end.how != "delivered"):
            raise broken("1", f"the replay {source} was refused though its id was free")
        is_same = self.expected[holder].replayed == self.expected[source].replayed
        # A message that was deleted after its retention is known by its id alone.
        if is_same != (reason == Reason.IGNORED) and (alive or self.settled_too or not is_same):
            raise broken(
                "3",
                (
                    f"the replay {source} was refused as {Reason(reason).label}, by the message "
                    f"{holder}"
                ),
            )

    def expect(self, partition: Partition, offset: int, expected: Expectation) -> None:
        """A producer wrote the record at the offset."""
        self.expected[partition.number, offset] = expected


def _accepted_ms(record: Record, expected: Expectation) -> int:
    """Return the first timestamp of a record: that in its hop, unless that is ahead of its own by
    more than the tolerance."""
    hop_ms, own_ms = expected.first_ms, record.timestamp_ms
    return own_ms if hop_ms is None or hop_ms > own_ms + EARLY_MS else hop_ms


def _through(shard: int, expected: Expectation) -> int:
    """Return the partition through which a record of the shard came."""
    return shard if expected.first_shard is None else expected.first_shard


def _first_readable_ms(partition: Partition, offset: int) -> int | None:
    """Time from which the first record at or after the offset was readable; None when there is
    none."""
    for at in range(offset, len(partition.shown_ms)):
        record, transaction = partition.items[at]
        if record is not None and (transaction is None or transaction.state == "committed"):
            return partition.shown_ms[at]
    return None
