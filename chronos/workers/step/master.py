"""The master of a shard. One step is at most one transaction, besides a heartbeat that is overdue:
pull, stage, admit, select, plan, commit, apply.

A crash before the commit leaves nothing that a reader of committed records sees; a crash between
commit and apply is repaired by replaying the progress record. Keeps its part of laws 2 (never
early), 3 (exactly once), 5 (one committing master), 6 (a cancel that was readable in time wins) and
8 (one bad message never stops the others). The phases of a replica, which begin and end a
leadership, are in `workers.replica.phases`."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import structlog
from msgspec import Struct
from msgspec.structs import replace

from chronos.core.message import Reason, Record, Rejection
from chronos.core.shard.draft import Draft
from chronos.core.shard.fate import within_repetitions
from chronos.core.shard.look_ahead import LookAhead
from chronos.core.shard.progress import (
    HOLDS_PER_DECISION,
    LANES_MAX,
    Decision,
    Progress,
    is_foreign,
    pack_progress,
)
from chronos.core.shard.queues import unreadable_record
from chronos.core.shard.record import WriterEpoch
from chronos.core.shard.replans import recorded_version
from chronos.core.shard.shard import Shard
from chronos.core.shard.step import Selection, Staged, nothing_selected
from chronos.errors import (
    ApplyFailed,
    BatchUnreadable,
    ClockDisagrees,
    ProducerLost,
    Retry,
    TransactionAborted,
)
from chronos.ports import (
    CLOCK_TOLERANCE_MS,
    Appended,
    Clock,
    Store,
    Throttle,
    Tracing,
    Writer,
)
from chronos.workers.step.decisions import within_targets
from chronos.workers.step.foreign import ForeignRecords
from chronos.workers.step.held import HeldQueues
from chronos.workers.step.horizon import Horizon
from chronos.workers.step.lanes import LaneTurns, SelectionBounds
from chronos.workers.step.letter_topics import LetterTopics
from chronos.workers.step.planned import Limits, PlannedTransaction, StepInputs
from chronos.workers.step.poison import PoisonSearch, StepFailure
from chronos.workers.step.pull import Puller
from chronos.workers.step.push import TARGETS_MAX, Pusher
from chronos.workers.step.report import StepReport
from chronos.workers.step.scope import Pulled, Scope, Times, scope_of
from chronos.workers.step.tenure import Tenure

log = structlog.get_logger("chronos.master")

HEARTBEAT_MS = 60_000
"""Time after which an idle step is committed all the same: it moves the cursor, and shows that the
master is active."""

HEARTBEAT_ALONE_MS = 70_000
"""Longest time between two progress records: another standalone node takes over after 90 s without
one. So a step that cannot be committed, because the delay partition cannot be read, is preceded by
a progress record alone."""

LINGERING_MAX = 50
"""A step with fewer pulled records and selected messages in all is followed by a rest, because the
next ones then share the cost of a transaction; after a larger one the next begins at once. A shard
with 5,000 messages a second has more in each step: its lateness does not grow."""


class Stepped(Struct, frozen=True, kw_only=True):
    """The result of one step."""

    wake_ms: int
    """When the next step is due (epoch ms)."""
    is_timed: bool = False
    """Only time ends the wait for it: the master rests, nothing is pulled (`Scope.is_paused`), or
    records that were read are still to be staged."""
    report: StepReport | None = None
    """The report of the step; None if it committed nothing, a heartbeat alone, or only occurrences
    that newer zone data moved."""


class MasterParts(Struct, frozen=True, kw_only=True):
    """The parts that a master has for one leadership."""

    writer: Writer
    puller: Puller
    pusher: Pusher
    epoch: WriterEpoch
    horizon: Horizon
    clock: Clock
    store: Store
    limits: Limits
    foreign: ForeignRecords
    tracing: Tracing | None


class Master:
    """One shard's master, from its epoch record to the end of its leadership."""

    def __init__(
        self,
        shard: Shard,
        parts: MasterParts,
        *,
        poison_search: PoisonSearch,
        letters: LetterTopics,
    ) -> None:
        """`poison_search`, `letters`: of the replica, which keeps them for its next leadership."""
        self._shard = shard
        self._parts = parts
        self._writer = parts.writer
        self._puller = parts.puller
        self._pusher = pusher = parts.pusher
        self._clock = clock = parts.clock
        self._limits = limits = parts.limits
        self._look_ahead: LookAhead[PlannedTransaction] = LookAhead(shard)
        self._poison_search = poison_search
        self._letters = letters
        self._held = HeldQueues(shard, letters, pusher, limits)
        self._zones = shard.zone_walk()
        self.lanes = LaneTurns(
            shard, partial(pusher.openings, poison_search.refusals), pusher.rates.spend
        )
        self.tenure = Tenure(clock)
        self._lingers = False
        """The last step left no work, and was small: the next one begins `linger_ms` after its
        commit."""
        self._wrote_on = False
        """The last step wrote held records to their destination: the next one does not."""
        self.due_ms: int | None = None
        """Due time (epoch ms) of the next message, or a time before it, when it was last looked
        for; None if none is pending."""

    def begin(self) -> None:
        """Commit the epoch record: every earlier master's commits now precede this master's in the
        log."""
        self._heartbeat()

    def _horizon_ms(self, now_ms: int) -> int:
        return self._parts.horizon.at(self._shard.state, now_ms)

    def step(self, now_ms: int) -> Stepped:
        """Do one step, of at most one transaction besides a heartbeat that is overdue."""
        self.tenure.check()
        if self.tenure.clock_was_set():
            # `now_ms` may be from before the clock was set: come back with the current time.
            self.tenure.distrust_clock()
            return Stepped(wake_ms=self._clock.now_ms())
        if (wake_ms := self._rest_until(now_ms)) is not None:
            return Stepped(wake_ms=wake_ms, is_timed=True)
        self._beat_if_late(now_ms)
        # The step is then committed even if it has no work.
        is_heartbeat = now_ms - self.tenure.committed_ms >= HEARTBEAT_MS
        # Without parked messages there are no lanes, and no broker is asked.
        has_open_lane = (
            self._limits.push and self._shard.state.parked > 0 and bool(self.lanes.look(now_ms))
        )
        if (report := self._write_on(now_ms)) is not None:
            return Stepped(wake_ms=now_ms, report=report)
        scope = self._scope(now_ms, is_heartbeat=is_heartbeat, has_open_lane=has_open_lane)
        pulled, staged = self._stage(self._pull(scope, now_ms), now_ms)
        walks = not staged.unreadable and self._zones.is_unfinished(self._shard.state)
        if walks:
            self._zones.add_moves(staged, self._shard.state)
        self._check_pulled(staged, now_ms)
        self._held.admit(staged.letters, now_ms)
        draft = self._draft(scope, pulled, staged, now_ms, has_open_lane=has_open_lane)
        if not (draft.has_work or is_heartbeat or staged.zones.replans or staged.zones.version):
            if walks:
                self._zones.took_moves()
            wake_ms = now_ms if scope.is_delivery_turn or walks else self._idle(now_ms)
            return self._stepped(wake_ms, scope)
        report = self._commit(draft)
        if walks:
            self._zones.took_moves()
        self._advance(pulled, staged, report)
        return self._stepped(self._next_call_ms(draft), scope, report if draft.has_work else None)

    def _stepped(self, wake_ms: int, scope: Scope, report: StepReport | None = None) -> Stepped:
        is_timed = scope.is_paused or self._puller.waiting > 0
        return Stepped(wake_ms=wake_ms, is_timed=is_timed, report=report)

    def _rest_until(self, now_ms: int) -> int | None:
        """Return when to go on (epoch ms), if a quota of the brokers asks for a rest or the master
        lingers; else None."""
        throttle = self._writer.throttle
        if throttle is not None and throttle.pause_ms:
            return now_ms + throttle.pause_ms
        if self._lingers and 0 <= now_ms - self.tenure.committed_ms < self._limits.linger_ms:
            return self.tenure.committed_ms + self._limits.linger_ms
        return None

    def _beat_if_late(self, now_ms: int) -> None:
        """Commit a progress record alone if one is needed before the step."""
        since_ms = now_ms - self.tenure.committed_ms
        # A clock that went back would delay the heartbeat, and with it the check that reports the
        # clock.
        is_late = not -CLOCK_TOLERANCE_MS <= since_ms < HEARTBEAT_ALONE_MS
        if not self.tenure.clock_agrees:
            self._puller.reached_ms = 0  # by a clock that was wrong, or is now
        if not self.tenure.clock_agrees or is_late:
            self._heartbeat()

    def _pull(self, scope: Scope, now_ms: int) -> Pulled:
        bytes_max = min(self._limits.bytes, self._letters.bound(now_ms))
        return self._puller.take(scope.pull, now_ms, self._limits.messages, bytes_max)

    def _stage(self, pulled: Pulled, now_ms: int) -> tuple[Pulled, Staged]:
        """Return what was pulled, as far as it is staged, and the changes that it asks for."""
        if pulled.unreadable is not None:
            return pulled, self._step_over(pulled.unreadable)
        parsed = self._look_ahead.parsed(pulled.records)
        # Records that are left over come in the next step, and until then the end of the log is not
        # reached.
        parsed_all = len(parsed.records) == len(pulled.records)
        reached_ms = pulled.reached_ms if parsed_all else self._puller.reached_ms
        pulled = Pulled(records=parsed.records, parsed=parsed, reached_ms=reached_ms)
        staged = self._shard.stage(pulled.records, parsed, horizon_ms=self._horizon_ms(now_ms))
        return pulled, staged

    def _advance(self, pulled: Pulled, staged: Staged, report: StepReport) -> None:
        """Go on after what a committed step has pulled."""
        self._puller.release(pulled)
        if staged.unreadable:
            self._puller.skip_to(staged.pull_offset)
        tracing = self._parts.tracing
        if tracing is not None and pulled.parsed is not None:
            tracing.accepted(self._shard.rules.shard, report.committed_ms, pulled.parsed, staged)

    def _next_call_ms(self, draft: Draft) -> int:
        """Return when to be called again after a committed step (epoch ms)."""
        state, selection = self._shard.state, draft.selection
        is_complete = (
            selection.complete and not self._puller.waiting and not self._zones.is_unfinished(state)
        )
        is_small = draft.pulled + len(selection.items) < LINGERING_MAX
        self._lingers = is_complete and not state.held and is_small
        if not is_complete:
            self._bound_wheel()
            return draft.now_ms
        return self._idle(self._clock.now_ms())

    def _step_over(self, error: BatchUnreadable) -> Staged:
        """Decide to step over the batch that cannot be read; the error is raised instead when it is
        met for the first time."""
        first, last = self._puller.unreadable(error)
        staged = self._shard.stage_unreadable([(first, last)])
        staged.letters.rejections.append(
            (
                unreadable_record(first),
                Rejection(Reason.UNREADABLE, f"offsets {first} to {last}: {error}"),
            )
        )
        log.warning(
            "batch stepped over",
            shard=self._shard.rules.shard,
            first=first,
            last=last,
            why=str(error),
        )
        return staged

    def _write_on(self, now_ms: int) -> StepReport | None:
        """Commit a step that only writes held records to their destination, alternating with all
        other steps, and return its report; None if there is no such step."""
        wrote_on, self._wrote_on = self._wrote_on, False
        if wrote_on or not self._shard.state.held:
            return None
        staged = self._shard.stage_nothing(self._horizon_ms(now_ms))
        if not self._held.write_on(staged.letters, now_ms):
            return None
        selection = nothing_selected(self._shard.state.cursor, complete=True)
        report = self._commit(
            Draft(staged=staged, selection=selection, now_ms=now_ms, until_ms=now_ms)
        )
        self._wrote_on = self._poison_search.wrote_letters = True
        self._lingers = False
        return report

    @property
    def pulled(self) -> int:
        """Offset in the delay partition up to which every record is executed, transaction markers
        included."""
        return self._puller.position if self._puller.waiting == 0 else self._shard.state.pull_offset

    @property
    def delayed(self) -> str | None:
        """See `ports.Reader.delayed`."""
        return self._puller.delayed

    def degraded(self) -> str | None:
        """Return what this shard cannot do at the moment, for people, although it delivers; None if
        it can do everything."""
        texts = self._held.degraded() + self._letters.deferring(
            self._pusher.letters.dead_letter_topic
        )
        if (throttle := self.throttle) is not None:
            texts.append(
                f"a quota of the brokers (producer_byte_rate) slows its deliveries down to "
                f"{throttle.rate / 1_000:,.0f} kB/s: raise the quota, or expect late messages"
            )
        return "; ".join(texts) or None

    @property
    def throttle(self) -> Throttle | None:
        """See `ports.Writer`. Any thread may read."""
        return self._writer.throttle

    def _scope(self, now_ms: int, *, is_heartbeat: bool, has_open_lane: bool) -> Scope:
        """Return what this step may do."""
        if now_ms < self._puller.reached_ms:
            self._puller.reached_ms = 0  # the clock was set back to before that time
        self.due_ms = self._shard.next_due_ms()
        search = self._poison_search
        scope = scope_of(
            self._limits,
            Times(
                now_ms=now_ms,
                due_ms=self.due_ms,
                reached_ms=self._puller.reached_ms,
                watermark_ms=self._shard.state.watermark_ms,
            ),
            room=self._held.room(now_ms),
            is_heartbeat=is_heartbeat,
            has_open_lane=has_open_lane,
            has_written_letters=search.wrote_letters,
        )
        if not scope.is_paused:
            search.wrote_letters = False
        return scope

    def _check_pulled(self, staged: Staged, now_ms: int) -> None:
        ahead_ms = staged.watermark_ms - now_ms
        if ahead_ms > CLOCK_TOLERANCE_MS:
            # Records may have been written since the step began: on a loaded machine the pull takes
            # longer than the tolerance.
            ahead_ms = staged.watermark_ms - self._clock.now_ms()
        if ahead_ms > CLOCK_TOLERANCE_MS:
            raise ClockDisagrees(
                f"the log holds records {ahead_ms} ms in this machine's future: its clock, or the "
                "broker's, is wrong or was when they were written. Nothing is pulled or "
                "delivered until this machine's clock has reached them; check NTP on both"
            )

    def _draft(
        self, scope: Scope, pulled: Pulled, staged: Staged, now_ms: int, *, has_open_lane: bool
    ) -> Draft:
        """Return the draft: the staged changes, the messages that the step settles, their fates."""
        # Messages that are due by then may leave: no record that is not pulled can change them.
        until_ms = now_ms
        if not scope.is_blind:
            until_ms = min(now_ms, max(pulled.reached_ms, staged.watermark_ms))
        selection = self._select(scope, staged, until_ms, now_ms, has_open_lane=has_open_lane)
        return Draft(
            staged=staged,
            selection=selection,
            fates=self._look_ahead.fates(selection, now_ms),
            pulled=len(pulled.records),
            now_ms=now_ms,
            until_ms=until_ms,
        )

    def _select(
        self, scope: Scope, staged: Staged, until_ms: int, now_ms: int, *, has_open_lane: bool
    ) -> Selection:
        limits, search, letters = self._limits, self._poison_search, staged.letters
        holds = len(letters.held) // HOLDS_PER_DECISION
        messages_max = max(1, min(search.messages_max, limits.messages - holds))
        # Forwarded records go without messages: until their transaction ends, no consumer can read
        # on in the partitions that they are written to. Rejected ones do too: a transaction that
        # fails because of them has nothing else.
        if not limits.push or letters.are_written:
            return nothing_selected(self._shard.state.cursor, complete=not limits.push)
        throttle = self._writer.throttle
        bytes_max = limits.bytes if throttle is None else min(limits.bytes, throttle.bytes_max)
        if not has_open_lane:
            return self._select_due(
                scope, staged, until_ms, now_ms, TARGETS_MAX, messages_max, bytes_max
            )

        def is_apart(due: Selection) -> bool:
            return due.entries[0].attempt > 1 or search.refusals.attempted(due, now_ms) is not None

        bounds = SelectionBounds(
            messages=messages_max,
            bytes=bytes_max,
            is_search=search.messages_max < limits.messages,
            now_ms=now_ms,
        )
        select_due = partial(
            self._select_due, scope, staged, until_ms, now_ms, TARGETS_MAX - LANES_MAX
        )
        return self.lanes.select(staged, bounds, select_due, is_apart)

    def _select_due(
        self,
        scope: Scope,
        staged: Staged,
        until_ms: int,
        now_ms: int,
        targets_max: int,
        messages_max: int,
        bytes_max: int,
    ) -> Selection:
        search = self._poison_search
        set_aside = search.refusals.set_aside
        selection = self._look_ahead.selection(staged, until_ms, messages_max, bytes_max)
        # A message that failed before is selected alone, so that a second failure does not abort
        # other messages.
        entries = selection.entries
        tried = (
            at
            for at in selection.with_id
            if entries[at].attempt > 1 and entries[at].target not in set_aside
        )
        count = max(1, next(tried, len(entries)))
        if set_aside:
            count = min(count, search.refusals.within_step(selection, now_ms))
        if len(selection.targets) > targets_max:
            count = min(count, within_targets(entries, targets_max))
        count = min(count, within_repetitions(selection))
        if count < len(entries):
            selection = self._shard.select(staged, until_ms, count, bytes_max)
        if not scope.is_blind or not selection.complete:
            return selection
        # A cursor after everything due at a time says that every record of that time was pulled
        # (`horizon.reached_ms`).
        last = selection.items[-1][:2] if selection.items else self._shard.state.cursor
        return replace(selection, cursor=last)

    def _commit(self, draft: Draft) -> StepReport:
        """Plan the transaction of a draft, commit it and apply it; return the report."""
        search, letters = self._poison_search, self._letters
        staged, selection, now_ms = draft.staged, draft.selection, draft.now_ms
        plan = self._pusher.plan(draft, self._inputs(now_ms), self._look_ahead)
        if plan.refused_to:
            search.wrote_letters = True
        if plan.refusal is not None:
            letters.dead_letter.refuse(now_ms, plan.refusal)
        progress = self._progress(staged, selection, plan.decisions, plan.details)
        try:
            with self._pusher.partitions.following(self._writer, self._clock):
                produced_ms = self._clock.now_ms()
                self._writer.send(plan.messages, pack_progress(progress))
                appended = self._finish(produced_ms, self._prepare_next(draft, progress))
        except (TransactionAborted, ProducerLost) as error:
            search.failed(
                StepFailure(error=error, draft=draft, plan=plan),
                letters=letters,
                pusher=self._pusher,
                shard=self._shard.rules.shard,
            )
            raise
        letters.took(plan.letters_to, now_ms)
        if selection.items:
            search.refusals.committed(
                selection, now_ms, self._limits.messages, delivered=bool(plan.due_ms)
            )
            search.suspect = search.poison = None
            search.messages_max = min(self._limits.messages, search.messages_max * 2)
            self.lanes.committed(plan.spent)
        self._apply(staged, selection, progress, appended)
        shard, committed_ms = self._shard.rules.shard, self.tenure.committed_ms
        if self._parts.tracing is not None:
            self._parts.tracing.settled(shard, committed_ms, selection, plan.decisions)
        report = StepReport.of(draft, plan, shard=shard, committed_ms=committed_ms)
        report.write(shard)
        return report

    def _progress(
        self,
        staged: Staged,
        selection: Selection,
        decisions: Sequence[Decision] = (),
        details: Sequence[str] = (),
    ) -> Progress:
        state = self._shard.state
        version = self._shard.rules.zone_data.version
        return self._parts.epoch.progress(
            staged,
            selection,
            decisions,
            details,
            held_forwards=state.held_forwards,
            zone_data=recorded_version(version, staged, decisions, state),
        )

    def _prepare_next(self, draft: Draft, progress: Progress) -> Callable[[], None] | None:
        """Return the work on this step and the next that needs no commit; None without a
        backlog."""
        limits, shard, ahead = self._limits, self._shard, self._look_ahead
        selection, pulled, until_ms = draft.selection, draft.pulled, draft.until_ms
        if selection.complete and pulled < limits.messages:
            return None

        def prepare() -> None:
            # A part that fails is repeated after the commit, or by the next step, which handles the
            # failure: the transaction is open here.
            with suppress(Retry):
                ahead.write(draft.staged, selection, progress)
                if not selection.complete:
                    shard.read_ahead(until_ms, len(selection.items) + limits.messages)
                    following = ahead.select(selection, until_ms, limits.messages, limits.bytes)
                    if following is not None:
                        self._plan_next(following)
                if pulled >= limits.messages:
                    ahead.parse(self._puller.batch_ahead(pulled, limits.messages, limits.bytes))

        return prepare

    def _plan_next(self, following: Selection) -> None:
        now_ms, ahead = self._clock.now_ms(), self._look_ahead
        fates = ahead.foretell(following, now_ms)
        if fates is not None:
            self._pusher.plan_next(following, fates, self._inputs(now_ms), ahead)

    def _inputs(self, now_ms: int) -> StepInputs:
        """Return the state that a transaction is planned on at this time."""
        search, letters = self._poison_search, self._letters
        return StepInputs(
            now_ms=now_ms,
            refusals=search.refusals,
            poison=search.poison,
            lanes=self._shard.lanes.states.keys() if self._shard.state.parked else frozenset(),
            defers_dead_letters=not letters.dead_letter.is_open(now_ms),
            rejected_bytes_max=letters.rejected.bound(now_ms),
            dead_letter_bytes_max=letters.dead_letter.bound(now_ms),
        )

    def _finish(self, produced_ms: int, meanwhile: Callable[[], None] | None = None) -> Appended:
        def verify(timestamp_ms: int, others: Iterable[Record]) -> None:
            self._check_successor(timestamp_ms, others)
            self.tenure.check_clock(produced_ms, timestamp_ms)

        appended = self._writer.commit(verify, meanwhile)
        self.tenure.committed(appended.timestamp_ms)
        return appended

    def _check_successor(self, timestamp_ms: int, others: Iterable[Record]) -> None:
        """Law 3: no other master has committed since this one's last commit, and none had the time
        to. Raises ProducerLost."""
        first, count = None, 0
        for record in others:
            if not is_foreign(record):
                raise ProducerLost(
                    f"another master committed a step at offset {record.offset} after the last one "
                    "of this master, whose step was aborted"
                )
            first, count = first or record, count + 1
        if first is not None:
            self._parts.foreign.stepped_over(first, count)
        self.tenure.check_appended(timestamp_ms)

    def _apply(
        self, staged: Staged, selection: Selection, progress: Progress, appended: Appended
    ) -> None:
        # A committed step must never be decided again on the state before it, even if the store
        # fails.
        try:
            changes = self._shard.apply(
                staged,
                selection,
                progress,
                offset=appended.offset,
                timestamp_ms=appended.timestamp_ms,
                writes=self._look_ahead.writes(staged, selection),
            )
            self._parts.store.write(changes.puts, changes.deletes)
        except Retry as error:
            raise ApplyFailed(
                f"a committed step could not be written to the store: {error}"
            ) from error
        self._shard.install(changes)
        self._look_ahead.installed(changes)

    def _heartbeat(self) -> None:
        """Commit a progress record alone, with the cursor as it is: an epoch record, a heartbeat, a
        test of the clocks."""
        nothing = self._shard.stage_nothing(self._horizon_ms(self._clock.now_ms()))
        none = nothing_selected(self._shard.state.cursor, complete=True)
        progress = self._progress(nothing, none)
        produced_ms = self._clock.now_ms()
        self._writer.send([], pack_progress(progress))
        self._apply(nothing, none, progress, self._finish(produced_ms))

    def _bound_wheel(self) -> bool:
        """Drop entries beyond the memory limits, which the store still holds; return whether any
        were dropped."""
        limits, wheel = self._limits, self._shard.wheel
        if wheel.messages <= limits.wheel_messages and wheel.bytes <= limits.wheel_bytes:
            return False
        share = min(
            limits.wheel_messages, wheel.messages * limits.wheel_bytes // max(1, wheel.bytes)
        )
        wheel.shrink(max(1, share // 2))
        return True

    def _idle(self, now_ms: int) -> int:
        """Read ahead during the pause; return when to be called again (epoch ms)."""
        limits = self._limits
        horizon_ms = now_ms + limits.wheel_horizon_ms
        wheel = self._shard.wheel
        reads_on = (
            not self._bound_wheel()
            and wheel.through[0] < now_ms + limits.wheel_horizon_ms // 2
            and wheel.bytes < limits.wheel_bytes // 2
            and self._shard.read_ahead(horizon_ms, limits.wheel_messages // 2)
            and wheel.through[0] < horizon_ms
        )
        # Also for the stall judge, which must know of a message that was just pulled if the thread
        # hangs before its next step.
        due_ms = self.due_ms = self._shard.next_due_ms() if limits.push else None
        if reads_on:
            return now_ms
        wake_ms = self.tenure.committed_ms + HEARTBEAT_MS
        if limits.push and self._shard.state.parked:
            wake_ms = min(wake_ms, self.lanes.next_look_ms())
        if self._shard.state.held:
            look_ms = self._held.next_look_ms(now_ms)
            wake_ms = wake_ms if look_ms is None else min(wake_ms, look_ms)
        if pausing := self._held.pausing(now_ms):
            wake_ms = min(wake_ms, *(topic.until_ms for topic in pausing))
            if all(topic.is_patient(now_ms) for topic in pausing):
                return wake_ms
        return wake_ms if due_ms is None else min(due_ms, wake_ms)

    @property
    def waker(self) -> Callable[[], None] | None:
        """Ends a `wait`, see `ports.Reader`."""
        return self._puller.waker

    def wait(self, timeout_s: float) -> bool:
        """Wait until a record arrives, or the time is over; return whether one may have arrived."""
        return self._puller.wait(timeout_s)
