"""Held records: which records of a step have to wait for their destination, and when a step writes
them to it. The queues themselves, in the store, are `core.shard.queues`.

Keeps its part of laws 6 and 8: a partition, or the rejected topic, that takes no records delays
only the records for it; the records behind those in the delay partition are executed, until the
queues are full and nothing more is pulled."""

from collections.abc import Set

from msgspec.structs import replace

from chronos.core.keys import REJECTED
from chronos.core.message import Reason, Rejection
from chronos.core.shard.letters import Letters, Prefix
from chronos.core.shard.queues import is_full, record_of
from chronos.core.shard.shard import Shard
from chronos.workers.step.letter_topics import (
    DESCRIBED_PAUSE_MS,
    LetterTopics,
    LetterTopicState,
    Refusal,
)
from chronos.workers.step.planned import Limits
from chronos.workers.step.push import Pusher
from chronos.workers.step.scope import Room


class HeldQueues:
    """The queues of held records of one shard, while this node is its master."""

    def __init__(self, shard: Shard, letters: LetterTopics, pusher: Pusher, limits: Limits) -> None:
        self._shard = shard
        self._letters = letters
        self._pusher = pusher
        self._limits = limits
        self._last = REJECTED
        """The destination that was written to last."""

    # --- a step that pulled records

    def admit(self, letters: Letters, now_ms: int) -> None:
        """Hold what cannot be written now; a record that is too large to be forwarded is rejected.
        Raises LogUnavailable."""
        if letters.forwards:
            homes = {partition for _, partition in letters.forwards}
            bounds = {home: self._letters.of(home).bound(now_ms) for home in homes}
            closed = self._closed(homes, now_ms)
            too_large = self._pusher.forwards.too_large(letters.forwards, bounds, now_ms)
            if too_large:
                letters.reject_forwards(too_large)
            letters.hold_forwards(closed)
        if letters.rejections and self._closed({REJECTED}, now_ms):
            letters.hold_rejections()

    def _closed(self, destinations: Set[int], now_ms: int) -> Set[int]:
        """Return those of the destinations that take no records of this step: they take none at
        all, or earlier records wait for them."""
        open_now = {
            destination
            for destination in destinations - self._shard.queues.states.keys()
            if self._letters.of(destination).is_open(now_ms)
        }
        refusals = self._refusals(open_now, now_ms)
        for destination, refusal in refusals.items():
            self._letters.of(destination).refuse(now_ms, refusal)
        return destinations - open_now | refusals.keys()

    def _refusals(
        self, destinations: Set[int], now_ms: int, **described: int
    ) -> dict[int, Refusal]:
        """Return those of the destinations that take no records by their description, and why."""
        homes = destinations - {REJECTED}
        refusals = self._pusher.forwards.refusals(homes, now_ms, **described) if homes else {}
        if REJECTED in destinations:
            refusal = self._pusher.refusal(self._pusher.letters.rejected_topic, now_ms)
            if refusal is not None:
                refusals[REJECTED] = refusal
        return refusals

    # --- a step that writes on

    def write_on(self, letters: Letters, now_ms: int) -> bool:
        """Stage the first records of a queue whose destination takes records now; return False if
        there is no such queue. Raises LogUnavailable."""
        queues = self._shard.queues
        for destination in sorted(queues.states, key=lambda at: (at <= self._last, at)):
            state = self._letters.of(destination)
            if not state.is_open(now_ms):
                continue
            refusal = self._refusals({destination}, now_ms, age_ms_max=DESCRIBED_PAUSE_MS).get(
                destination
            )
            if refusal is not None:
                state.refuse(now_ms, refusal)
                continue
            bytes_max = min(self._limits.bytes, state.bound(now_ms))
            prefix = queues.first(destination, self._limits.messages, bytes_max)
            self._stage(letters, prefix, now_ms)
            self._last = destination
            return True
        return False

    def _stage(self, letters: Letters, prefix: Prefix, now_ms: int) -> None:
        """Stage the records of a queue."""
        destination = prefix.destination
        records = [(record_of(offset, held), held) for offset, held, _ in prefix.rows]
        if destination == REJECTED:
            letters.rejections = [
                (record, Rejection(Reason(held.reason), held.detail)) for record, held in records
            ]
            letters.written = [prefix]
            return
        forwards = [(record, destination) for record, _ in records]
        state = self._letters.of(destination)
        too_large = self._pusher.forwards.too_large(
            forwards, {destination: state.bound(now_ms)}, now_ms
        )
        letters.forwards = [forward for forward in forwards if forward[0].offset not in too_large]
        letters.rejections = [
            (record, Rejection(Reason.TOO_LARGE, too_large[record.offset]))
            for record, _ in forwards
            if record.offset in too_large
        ]
        letters.written = [replace(prefix, too_large=tuple(too_large))]
        if too_large and self._closed({REJECTED}, now_ms):
            letters.hold_rejections()

    # --- in between

    def pausing(self, now_ms: int) -> list[LetterTopicState] | None:
        """Return the destinations because of which nothing is pulled: the queues are full, and none
        of these destinations takes records. Empty if one does: nothing is pulled until enough
        records are written. None if records are pulled."""
        if not is_full(self._shard.state):
            return None
        destinations = self._shard.queues.states.keys()
        closed = self._letters.closed(destinations, now_ms)
        return closed if len(closed) == len(destinations) else []

    def room(self, now_ms: int) -> Room:
        """Return whether the queues take more records."""
        pausing = self.pausing(now_ms)
        if pausing is None:
            return Room.FREE
        return Room.FULL if all(topic.is_patient(now_ms) for topic in pausing) else Room.STUCK

    def next_look_ms(self, now_ms: int) -> int | None:
        """Return when a destination of held records is tried again (epoch ms); None if no records
        are held."""
        letters = [self._letters.of(destination) for destination in self._shard.queues.states]
        return min(
            (now_ms if letter.is_open(now_ms) else letter.until_ms for letter in letters),
            default=None,
        )

    def degraded(self) -> list[str]:
        """Return the texts for people about the records that wait."""
        shard, texts = self._shard, []
        for destination, queue in sorted(shard.queues.states.items()):
            why = self._letters.of(destination).problem or "they are written now"
            if destination == REJECTED:
                texts.append(
                    f"{self._pusher.letters.rejected_topic} takes no records ({why}): "
                    f"{queue.length} rejected records wait, all others are executed"
                )
            else:
                texts.append(
                    f"{queue.length} records wait to be forwarded to "
                    f"{self._pusher.forwards.topic}/{destination} ({why}): all"
                    " others are executed, and cancels among those that wait may come too late"
                )
        if is_full(shard.state):
            texts.append(
                "nothing more is pulled until fewer records wait, and cancels are not seen; what "
                "is pending is delivered"
            )
        return texts
