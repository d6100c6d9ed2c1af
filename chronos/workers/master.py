"""The master: one step is one transaction. Pull, stage, select, push, commit, apply.

A crash before the commit leaves nothing behind; one between commit and apply is repaired by replaying the progress
record. Keeps laws 2 (never early), 3 (exactly once), 6 (a cancel seen in time wins) and 8 (one bad message never
stops the others).
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog
from msgspec import Struct

from chronos.core.message import Record
from chronos.core.progress import Decision, Progress, count_outcomes, pack_progress
from chronos.core.shard import Selection, Shard, Staged, nothing_selected
from chronos.errors import ApplyFailed, ClockDisagrees, LogUnavailable, ProducerLost, Retry, TransactionAborted
from chronos.ports import CLOCK_TOLERANCE_MS, Appended, Clock, Store, Writer
from chronos.workers.pull import Puller
from chronos.workers.push import Pusher

log = structlog.get_logger("chronos.master")

HEARTBEAT_MS = 60_000
"""A master that has nothing to say says so once a minute: a standalone node elsewhere waits for 90 s of silence."""

PULL_LINGER_MS = 8
"""Records that are not due are gathered for so long before a transaction is spent on them."""

LINGERING_MAX = 1_000
"""So many records are company enough."""

POISON_FAILURES = 2
"""A message alone in its transaction is the culprit at the second failure: the first after an abort may be
OUT_OF_ORDER_SEQUENCE_NUMBER, which is nobody's fault (measured)."""


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of one step."""

    messages: int
    bytes: int
    wheel_messages: int
    wheel_bytes: int
    wheel_horizon_ms: int
    pull: bool
    push: bool


class WriterEpoch(Struct, frozen=True, kw_only=True):
    """In whose name a master commits."""

    node: str
    instance: str
    role_epoch: int
    log_epoch: int


class PoisonSearch(Struct, kw_only=True):
    """What failed transactions say about messages; outlives a mastership, because a refusal may cost the producer."""

    messages_max: int
    """How many messages the next step selects: halved by a failure, doubled by a success."""
    offset: int | None = None
    """Source offset of the message that stood alone in the last one that failed."""
    failures: int = 0
    """How often in a row it did."""
    poison_offset: int | None = None
    """Source offset of a message that did so often enough: the next plan retries or buries it."""
    separate: bool = False
    """A message and refused records failed together: from now on they go in turns."""


class Stepped(Struct, frozen=True, kw_only=True):
    """What a step did, for those who watch."""

    pulled: int
    due_ms: list[int]
    """When each message delivered was due, in order."""
    committed_ms: int
    refused: list[tuple[int, int]]
    """`(offset, Reason)` of the delay records refused."""


class Master:
    """One shard's master, from its epoch record to the end of its mastership."""

    def __init__(
        self,
        *,
        shard: Shard,
        store: Store,
        writer: Writer,
        puller: Puller,
        pusher: Pusher,
        clock: Clock,
        writer_epoch: WriterEpoch,
        limits: Limits,
        poison_search: PoisonSearch,
    ) -> None:
        self._shard = shard
        self._store = store
        self._writer = writer
        self._puller = puller
        self._pusher = pusher
        self._clock = clock
        self._writer_epoch = writer_epoch
        self._limits = limits
        self._poison_search = poison_search
        self._committed_ms = 0
        self._clock_agrees = False
        self._reached_ms = 0
        self._stepped_ms = clock.stepped_ms()
        """By how much the clock had been set when it was last believed."""
        self.last: Stepped | None = None

    def begin(self) -> None:
        """The epoch record: from here on every earlier master's commits are behind ours in the log."""
        self._heartbeat()

    def step(self, now_ms: int) -> int:
        """One step; when to be called again, in epoch ms. At most one transaction."""
        self.last = None
        if self._clock_was_set():
            # Also `now_ms` may be from before: come back with what the clock says now.
            self._disagree()
            return self._clock.now_ms()
        # A clock that went back would hold the heartbeat up, and with it the word that the clock is wrong.
        if not self._clock_agrees or not -CLOCK_TOLERANCE_MS <= now_ms - self._committed_ms < HEARTBEAT_MS:
            self._heartbeat()
        records, reached_ms = self._pull(now_ms)
        staged = self._shard.stage(records)
        self._check_pulled(staged, now_ms)
        until_ms = min(now_ms, max(reached_ms, staged.watermark_ms))
        selection = self._select(staged, until_ms)
        if not selection.items and not records:
            return self._idle(now_ms)
        if not selection.items and self._may_linger(staged, len(records), now_ms):
            return self._committed_ms + PULL_LINGER_MS
        delivered_ms = self._commit(staged, selection, len(records), now_ms, until_ms)
        self._puller.release(len(records))
        self.last = Stepped(
            pulled=len(records),
            due_ms=delivered_ms,
            committed_ms=self._committed_ms,
            refused=staged.refused,
        )
        if not selection.complete or self._puller.waiting:
            self._bound_wheel()
            return now_ms
        return self._idle(self._clock.now_ms())

    def _may_linger(self, staged: Staged, pulled: int, now_ms: int) -> bool:
        """Whether a few records that are not due soon should wait for more before a transaction is spent on them."""
        if pulled >= LINGERING_MAX or not 0 <= now_ms - self._committed_ms < PULL_LINGER_MS:
            return False
        return all(due_ms > now_ms + PULL_LINGER_MS for due_ms, _ in staged.placed.values())

    @property
    def pulled(self) -> int:
        """Offset in the delay partition up to which everything is executed, transaction markers included."""
        return self._puller.position if self._puller.waiting == 0 else self._shard.state.pull_offset

    @property
    def lingering(self) -> bool:
        """Records were pulled and wait for company, or none are wanted: sleep, rather than wait for records."""
        return self._puller.waiting > 0 or not self._limits.pull

    def _pull(self, now_ms: int) -> tuple[list[Record], int]:
        """The next records, and the last moment at which the end of the log was reached: half of the watermark.

        Whatever was readable at the last moment the end was reached has been pulled, so what was due by then may
        still be selected now: a backlog costs one question, not one a step.
        """
        limits = self._limits
        if now_ms < self._reached_ms:
            self._reached_ms = 0  # the clock was set back: by it, that moment is still to come
        due_ms = self._shard.next_due_ms()
        something_due = limits.push and due_ms is not None and due_ms <= now_ms
        if something_due and due_ms > self._reached_ms:  # type: ignore[operator]
            end = self._puller.end()
            if limits.pull:
                records, reached = self._puller.batch_to(end, limits.messages, limits.bytes)
            else:
                records, reached = [], self._shard.state.pull_offset >= end
            if reached:
                self._reached_ms = now_ms
        elif limits.pull and not (something_due and self._poison_search.separate and self._puller.waiting == 0):
            records = self._puller.batch(limits.messages, limits.bytes)
        else:
            records = []
        return records, self._reached_ms

    def _check_pulled(self, staged: Staged, now_ms: int) -> None:
        ahead_ms = staged.watermark_ms - now_ms
        if ahead_ms > CLOCK_TOLERANCE_MS:
            raise ClockDisagrees(
                f"the log holds records {ahead_ms} ms in this machine's future: its clock, or the broker's, is wrong or"
                " was when they were written. Nothing is pulled or delivered until this machine's clock has reached"
                " them; check NTP on both"
            )

    def _select(self, staged: Staged, until_ms: int) -> Selection:
        limits = self._limits
        if not limits.push or (self._poison_search.separate and staged.rejections):
            return nothing_selected(self._shard.state.cursor, complete=not limits.push)
        selection = self._shard.select(staged, until_ms, self._poison_search.messages_max, limits.bytes)
        # One that was refused before stands alone, so that a second refusal costs the others nothing.
        tried = next((at for at in selection.named if selection.entries[at].attempt > 1), None)
        if tried is None or len(selection.entries) == 1:
            return selection
        return self._shard.select(staged, until_ms, max(1, tried), limits.bytes)

    def _commit(self, staged: Staged, selection: Selection, pulled: int, now_ms: int, until_ms: int) -> list[int]:
        """Push, commit, apply; when each message that was delivered was due."""
        poison_search = self._poison_search
        self._pusher.poison_offset = poison_search.poison_offset
        plan = self._pusher.plan(selection, staged.rejections, now_ms)
        progress = self._progress(staged, selection, plan.decisions)
        try:
            produced_ms = self._clock.now_ms()
            self._writer.send(plan.messages, pack_progress(progress))
            appended = self._finish(produced_ms, self._ahead(staged, selection, progress, pulled, until_ms))
        except (TransactionAborted, ProducerLost) as error:
            self._search_poison(error, staged, selection)
            raise
        if selection.items:
            poison_search.offset, poison_search.poison_offset, poison_search.separate = None, None, False
            poison_search.messages_max = min(self._limits.messages, poison_search.messages_max * 2)
        self._apply(staged, selection, progress, appended)
        return plan.due_ms

    def _ahead(
        self, staged: Staged, selection: Selection, progress: Progress, pulled: int, until_ms: int
    ) -> Callable[[], None] | None:
        """Where there is a backlog: what of this step and the next may be done before this one is committed."""
        limits, shard = self._limits, self._shard
        if selection.complete and pulled < limits.messages:
            return None

        def ahead() -> None:
            shard.draft(staged, selection, progress)
            # What fails here fails in the next step again, where it is known what to do about it.
            with suppress(Retry):
                if not selection.complete:
                    shard.read_ahead(until_ms, len(selection.items) + limits.messages)
                    following = shard.select_ahead(selection, until_ms, limits.messages, limits.bytes)
                    if following is not None:
                        self._pusher.plan_ahead(following)
                if pulled >= limits.messages:
                    shard.parse_ahead(self._puller.batch_ahead(pulled, limits.messages, limits.bytes))

        return ahead

    def _clock_was_set(self) -> bool:
        return abs(self._clock.stepped_ms() - self._stepped_ms) > CLOCK_TOLERANCE_MS

    def _disagree(self) -> None:
        """What this machine's clock said before is not to be believed: neither the time, nor when the end was reached."""
        self._clock_agrees = False
        self._reached_ms = 0
        self._stepped_ms = self._clock.stepped_ms()

    def _finish(self, produced_ms: int, meanwhile: Callable[[], None] | None = None) -> Appended:
        appended = self._writer.commit(lambda timestamp_ms: self._check_clock(produced_ms, timestamp_ms), meanwhile)
        self._clock_agrees = True
        self._committed_ms = self._clock.now_ms()
        return appended

    def _check_clock(self, produced_ms: int, timestamp_ms: int) -> None:
        """Law 2: the broker's timestamp lies between produce and report, give or take half a second."""
        reported_ms = self._clock.now_ms()
        early_ms, late_ms = produced_ms - timestamp_ms, timestamp_ms - reported_ms
        was_set = self._clock_was_set()
        if max(early_ms, late_ms) <= CLOCK_TOLERANCE_MS and not was_set:
            return
        self._disagree()
        if was_set:
            raise ClockDisagrees(
                "this machine's clock was set during a step, which was aborted; check NTP", aborted=True
            )
        raise ClockDisagrees(
            f"the broker's clock is {max(late_ms, 0) - max(early_ms, 0)} ms away from this machine's. The step was"
            " aborted and nothing is delivered until they agree; check NTP on both",
            aborted=True,
        )

    def _apply(self, staged: Staged, selection: Selection, progress: Progress, appended: Appended) -> None:
        # A step that is committed must not be decided again on the state before it, whatever is wrong with the store.
        try:
            changes = self._shard.apply(
                staged, selection, progress, offset=appended.offset, timestamp_ms=appended.timestamp_ms
            )
            self._store.write(changes.puts, changes.deletes)
        except Retry as error:
            raise ApplyFailed(f"a committed step could not be written to the store: {error}") from error
        self._shard.install(changes)

    def _heartbeat(self) -> None:
        """A progress record alone: an epoch's first word, a heartbeat, or a test whether the clocks agree."""
        state = self._shard.state
        nothing = Staged(pull_offset=state.pull_offset, watermark_ms=state.watermark_ms)
        nobody = nothing_selected(state.cursor, complete=True)
        progress = self._progress(nothing, nobody, [])
        produced_ms = self._clock.now_ms()
        self._writer.send([], pack_progress(progress))
        self._apply(nothing, nobody, progress, self._finish(produced_ms))

    def _progress(self, staged: Staged, selection: Selection, decisions: Sequence[Decision]) -> Progress:
        writer_epoch = self._writer_epoch
        return Progress(
            role_epoch=writer_epoch.role_epoch,
            log_epoch=writer_epoch.log_epoch,
            node=writer_epoch.node,
            instance=writer_epoch.instance,
            cursor_due_ms=selection.cursor[0],
            cursor_offset=selection.cursor[1],
            pull_offset=staged.pull_offset,
            counts=count_outcomes(len(selection.items), decisions),
            refused=tuple(staged.refused),
            decisions=tuple(decisions),
            probes=staged.probes,
        )

    def _search_poison(self, error: TransactionAborted | ProducerLost, staged: Staged, selection: Selection) -> None:
        """Halve what the next step selects until the culprit stands alone, then convict it.

        A failure that makes nobody a culprit halves too: what is smaller may fit the time that was too short.
        """
        poison_search = self._poison_search
        if selection.items:
            poison_search.messages_max = max(1, len(selection.items) // 2)
        if not error.poison_likely:
            return
        self._pusher.targets.forget_all()
        if len(selection.items) > 1:
            return
        if staged.rejections or not selection.items:
            # Nobody is convicted in the company of refused records: it may be their topic that takes nothing.
            if selection.items:
                poison_search.separate = True
                return
            if isinstance(error, ProducerLost):
                return  # what would be raised in its place would have the lost producer used again
            raise LogUnavailable(f"the refused records cannot be written: {error}") from error
        offset = selection.items[0][1]
        poison_search.failures = poison_search.failures + 1 if poison_search.offset == offset else 1
        poison_search.offset = offset
        if poison_search.failures >= POISON_FAILURES:
            log.warning("message refused by the broker", shard=self._shard.rules.shard, offset=offset, why=str(error))
            poison_search.poison_offset = offset

    def _bound_wheel(self) -> bool:
        """Give up what is more than memory may hold, if it is; the store has it all."""
        limits, wheel = self._limits, self._shard.wheel
        if wheel.messages <= limits.wheel_messages and wheel.bytes <= limits.wheel_bytes:
            return False
        share = min(limits.wheel_messages, wheel.messages * limits.wheel_bytes // max(1, wheel.bytes))
        wheel.shrink(max(1, share // 2))
        return True

    def _idle(self, now_ms: int) -> int:
        """Use the pause to read ahead; then wake for the next message due, or the heartbeat."""
        limits = self._limits
        horizon_ms = now_ms + limits.wheel_horizon_ms
        wheel = self._shard.wheel
        if (
            not self._bound_wheel()
            and wheel.through[0] < now_ms + limits.wheel_horizon_ms // 2
            and wheel.bytes < limits.wheel_bytes // 2
            and self._shard.read_ahead(horizon_ms, limits.wheel_messages // 2)
            and wheel.through[0] < horizon_ms
        ):
            return now_ms
        due_ms = self._shard.next_due_ms() if limits.push else None
        heartbeat_ms = self._committed_ms + HEARTBEAT_MS
        return heartbeat_ms if due_ms is None else min(due_ms, heartbeat_ms)

    def wait(self, timeout_s: float) -> None:
        """Wait for records, or for the time to pass."""
        self._puller.wait(timeout_s)

    def close(self) -> None:
        """End the mastership; a transaction that is open is the next master's to resolve."""
        self._puller.close()
        self._writer.close()
