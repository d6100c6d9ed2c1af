"""The push worker: decides the outcome of each selected message, and makes the messages of one transaction.

It describes target topics before it produces to them (`targets`), so that a foreseeable failure becomes a decision about
one message and never an aborted transaction (law 8). Other failures are handled by the master,
which isolates the poison record by halving the selection.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial

from chronos.core.keys import LIMITED, Lane, murmur2
from chronos.core.look_ahead import LookAhead
from chronos.core.message import (
    Entry,
    Reason,
    Record,
    Rejection,
    entry_id,
)
from chronos.core.progress import Decision, Outcome, detail_number
from chronos.core.rules import Rules
from chronos.core.selector import Selector
from chronos.core.size import batch_bytes
from chronos.core.step import Selection
from chronos.core.timefmt import format_time
from chronos.ports import Log, TopicInfo, TopicSpec
from chronos.workers.fast_path import add_plain
from chronos.workers.forwards import Forwards
from chronos.workers.lanes import is_open, lane_for, why_parked
from chronos.workers.letter_records import LetterRecords
from chronos.workers.letters import DESCRIBED_PAUSE_MS, REFUSED_PAUSE_MS, UNBOUNDED, Refusal
from chronos.workers.partitions import TURN_MESSAGES, Partitions
from chronos.workers.planned import PlannedTransaction
from chronos.workers.rates import Openings, RateLimits, ShardRates
from chronos.workers.refusals import Attempt, Refusals, Retries, SetAside, attempt_of
from chronos.workers.series import turn_of
from chronos.workers.step_letters import (
    MISSING,
    Basis,
    StepLetters,
    Terms,
    keyless_refusal,
    refusal_of,
    second_look_ms,
    terms_of,
)
from chronos.workers.targets import Target, Targets

TARGETS_MAX = 100
"""Most targets of one transaction: each takes about 2 ms on two cores, and many times that on a busy machine (measured), while the
other messages wait and the time-out of the transaction, 10 s by default, runs."""

JITTER_STEPS = 1_000
"""Resolution of the jitter of a retry."""


class Pusher:
    """Turns a selection and rejections into the messages and the decisions of one transaction."""

    def __init__(
        self,
        log_port: Log,
        rules: Rules,
        *,
        delay_topic: str,
        rejected_topic: str,
        dead_letter_topic: str,
        create_topics: bool,
        attempts_max: int,
        retry_base_ms: int,
        retry_cap_ms: int,
        own_topics: Iterable[TopicSpec] = (),
        rates: ShardRates | None = None,
        selector: Selector | None = None,
    ) -> None:
        """`own_topics`: those of the rejected and the dead-letter topic that are created again where they are missing.

        `rates`: the rate limits of targets; None: there are none. `selector`: see `Partitions`.
        """
        own = {spec.name: spec for spec in own_topics}
        self.forwards = Forwards(log_port, delay_topic, rules.shard)

        def creates(topic: str) -> TopicSpec | None:
            if topic in own or not (create_topics and rules.allows(topic)):
                return own.get(topic)
            return TopicSpec(name=topic, partitions=-1, settings={})

        self.targets = Targets(log_port, creates=creates)
        self.partitions = Partitions(self.targets, selector)
        self.rejected_topic = rejected_topic
        self.dead_letter_topic = dead_letter_topic
        self.rates = ShardRates(rules.shard, RateLimits({})) if rates is None else rates
        self._rules = rules
        self._source_prefix = f"{delay_topic}/{rules.shard}/".encode()
        self._letters = LetterRecords(
            self.targets,
            rules,
            source_prefix=self._source_prefix,
            rejected_topic=rejected_topic,
            dead_letter_topic=dead_letter_topic,
        )
        self.retries = Retries(attempts_max=attempts_max, base_ms=retry_base_ms, cap_ms=retry_cap_ms)

    def plan(
        self,
        selection: Selection,
        rejections: Iterable[tuple[Record, Rejection]],
        now_ms: int,
        *,
        poison: Attempt | None,
        refusals: Refusals,
        look_ahead: LookAhead[PlannedTransaction],
        defers_dead_letters: bool = False,
        rejected_bytes_max: int = UNBOUNDED,
        dead_letter_bytes_max: int = UNBOUNDED,
        lanes: Set[Lane] = frozenset(),
        forwards: Sequence[tuple[Record, int]] = (),
    ) -> PlannedTransaction:
        """Return the transaction for the selected messages, the rejected and the forwarded records. Raises LogUnavailable.

        `poison`: an attempt that failed a transaction on its own; its message is retried or dead-lettered.
        `refusals`: messages of targets that are set aside are deferred, unless this selection attempts them.
        `lanes`: those that were not empty before this step.
        `defers_dead_letters`: messages that would be dead-lettered are deferred. `rejected_bytes_max`, `dead_letter_bytes_max`:
        bounds of the records for these topics.
        """
        plan = self._empty_plan(now_ms)
        plan.defers_dead_letters, plan.dead_letter_bytes_max = defers_dead_letters, dead_letter_bytes_max
        for record, rejection in rejections:
            plan.messages.append(self._letters.rejected(record, rejection, plan.turn, now_ms, rejected_bytes_max))
        plan.messages += self.forwards.records(forwards)
        if not selection.items:
            return plan
        plan.targets = look_ahead.targets(selection)
        targets = self.targets.describe(plan.targets, now_ms)
        terms = self._terms(targets, refusals, lanes)
        opened = partial(self._opened, plan, now_ms)
        early = look_ahead.transaction(
            selection,
            now_ms,
            lambda made: Basis(terms, poison, plan.turn.changes, opened() if made.dead_letters else None),
        )
        if early is not None:
            early.messages[:0] = plan.messages
            early.targets = plan.targets
            return early

        attempted = refusals.attempted(selection, now_ms)
        plan.allowed = self.rates.allowed(targets, now_ms)
        # A due message follows the messages in its lane, unless all of them leave in this step, before it.
        occupied = lanes - {leaving.lane for leaving in selection.leaving if leaving.is_all}
        # What waited for a rate follows the messages in the lane of its partition. A target that is set aside is paced by its attempts.
        unlimited = {lane for lane in lanes if lane[1] != LIMITED}
        left = {offset: leaving.lane[1] for leaving in selection.leaving for _, offset, _ in leaving.items}

        def decide(due_ms: int, offset: int, entry: Entry) -> None:
            set_aside, decided = refusals.set_aside.get(entry.target), len(plan.decisions)
            left_lane = left.get(offset)
            before: Set[Lane] = occupied if left_lane is None else frozenset()
            if left_lane == LIMITED or (left_lane is None and set_aside is not None):
                before = unlimited
            self._decide(
                plan,
                due_ms,
                offset,
                entry,
                targets[entry.target],
                now_ms,
                set_aside,
                refusals.why if set_aside is None else set_aside.why,
                is_poison=attempt_of(due_ms, offset, entry) == poison
                or (set_aside is not None and set_aside.has_refused(due_ms, offset, entry)),
                waits=set_aside is not attempted,
                occupied=before,
                left_lane=left_lane,
            )
            made = plan.decisions[decided:]
            plan.undelivered[entry.target] += sum(decision.outcome is not Outcome.AGAIN for decision in made)

        poison_offset = None if poison is None else poison[0]
        letters = StepLetters(plan, self._letters, terms, opened, poison_offset, now_ms)
        self._write(plan, selection, letters, terms, poison_offset, decide, now_ms)
        return plan

    def refusal(self, topic: str, now_ms: int) -> Refusal | None:
        """Return why the rejected or the dead-letter topic takes no records, by its description; None if it takes them.

        A missing one is created again where that is allowed. Raises LogUnavailable.
        """
        info = self.targets.describe([topic], now_ms, age_ms_max=DESCRIBED_PAUSE_MS)[topic].info
        if info is None:
            return Refusal(why="it does not exist", passing=False)
        if not info.writable:
            return Refusal(why="Kafka does not let Chronos write to it", passing=False)
        if len(info.closed) >= info.partitions:
            return Refusal(why="none of its partitions has a leader with enough in-sync replicas", passing=True)
        return None

    def _empty_plan(self, now_ms: int) -> PlannedTransaction:
        return PlannedTransaction(messages=[], decisions=[], due_ms=[], turn=self.partitions.turn(now_ms))

    def plan_next(
        self,
        selection: Selection,
        now_ms: int,
        *,
        poison: Attempt | None,
        refusals: Refusals,
        look_ahead: LookAhead[PlannedTransaction],
        lanes: Set[Lane] = frozenset(),
    ) -> None:
        """Compute what `plan` would return for the next selection, if the outcome of every message of it is certain."""
        topics = look_ahead.targets(selection)
        if len(topics) > TARGETS_MAX:
            return  # the step will select fewer messages
        terms = self._terms(self.targets.known(topics), refusals, lanes)
        plan = self._empty_plan(now_ms)
        letter_topic = self.targets.known([self.dead_letter_topic]).get(self.dead_letter_topic)
        # One without an open partition is found by the step itself.
        info = letter_topic.info if letter_topic is not None and letter_topic.is_open else None
        poison_offset = None if poison is None else poison[0]
        letters = StepLetters(plan, self._letters, terms, lambda: info, poison_offset, now_ms)
        if self._write(plan, selection, letters, terms, poison_offset, None, now_ms):
            basis = Basis(terms, poison, plan.turn.changes, info if plan.dead_letters else None)
            look_ahead.keep_transaction(
                selection, plan, basis=basis, from_ms=letters.from_ms, until_ms=letters.until_ms
            )

    def _opened(self, plan: PlannedTransaction, now_ms: int) -> TopicInfo | None:
        """Return the description of the dead-letter topic if it takes every letter now; else None. Raises LogUnavailable.

        While it takes none, this is noted in the plan, and the messages are deferred.
        """
        if not plan.defers_dead_letters:
            plan.refusal = self.refusal(self.dead_letter_topic, now_ms)
            plan.defers_dead_letters = plan.refusal is not None
        if plan.defers_dead_letters or plan.dead_letter_bytes_max < UNBOUNDED:
            return None
        return self.targets.known([self.dead_letter_topic])[self.dead_letter_topic].info

    def _write(
        self,
        plan: PlannedTransaction,
        selection: Selection,
        letters: StepLetters,
        terms: Mapping[str, Terms],
        poison_offset: int | None,
        decide: Callable[[int, int, Entry], None] | None,
        now_ms: int,
    ) -> bool:
        """Add the messages whose outcome is certain; call `decide` for all others; without `decide`, return False at the first of
        them."""
        limits = {topic: of_target.plain_bytes for topic, of_target in terms.items() if of_target.is_plain}
        # With many targets a turn is longer: each partition more in a transaction costs the brokers time.
        count = TURN_MESSAGES * max(1, len(limits))
        for start in range(0, len(selection.items), count):
            if start:
                plan.turn.clear()
            part = slice(start, start + count)
            if not add_plain(
                selection.items[part],
                selection.entries[part],
                limits,
                poison_offset,
                letters.judge,
                decide,
                shard=self._rules.shard,
                source_prefix=self._source_prefix,
                turn=plan.turn,
                messages=plan.messages,
                due_ms=plan.due_ms,
                now_ms=now_ms,
                decisions=plan.decisions,
            ):
                return False
        letters.count()
        return True

    def _terms(self, targets: Mapping[str, Target], refusals: Refusals, lanes: Set[Lane]) -> dict[str, Terms]:
        """Return the terms of the targets for which an outcome may be certain: not set aside, without a lane or a rate limit."""
        excluded = {topic for topic, _ in lanes} | self.rates.limited(targets) | refusals.set_aside.keys()
        terms = {
            topic: terms_of(topic, target, self._rules) for topic, target in targets.items() if topic not in excluded
        }
        return {topic: of_target for topic, of_target in terms.items() if of_target is not None}

    def openings(self, refusals: Refusals, lanes: Mapping[Lane, int], now_ms: int) -> Openings:
        """Return the lanes that messages may leave, of these with their lengths: what keeps a message there is not so any more, and
        the rate of the topic allows it. Raises LogUnavailable."""
        targets = self.targets.describe({topic for topic, _ in lanes}, now_ms)
        forbidden = {topic for topic in targets if not self._rules.allows(topic)}
        opened = {lane for lane in lanes if lane[0] in forbidden or is_open(lane[1], targets[lane[0]])}
        # A message that can only be dead-lettered takes nothing of a rate.
        dead = {topic for topic, target in targets.items() if target.info is None or not target.info.writable}
        return self.rates.openings(lanes, opened, forbidden | dead, refusals.set_aside.keys(), now_ms)

    def _decide(
        self,
        plan: PlannedTransaction,
        due_ms: int,
        offset: int,
        entry: Entry,
        target: Target,
        now_ms: int,
        set_aside: SetAside | None,
        why: str,
        *,
        is_poison: bool,
        waits: bool,
        occupied: Set[Lane],
        left_lane: int | None,
    ) -> None:
        """Deliver the message, or decide another outcome for it.

        `why`: the error of the last attempt that was refused. `waits`: its target is set aside and not attempted now.
        `occupied`: the lanes with messages that come before it. `left_lane`: the partition of the lane it was selected
        from, within the rate of its target.
        """
        info = target.info
        has_token = left_lane is not None or plan.allowed.get(entry.target, 1) > 0
        if entry.options is not None and self._turn(plan, due_ms, offset, entry, now_ms):
            return
        if entry.expire_at_ms is not None and now_ms > entry.expire_at_ms:
            self._dead_letter(plan, due_ms, offset, entry, now_ms, Reason.EXPIRED, f"expired at {entry.expire_at_ms}")
        elif (refusal := refusal_of(entry.target, target, self._rules)) is not None:
            self._dead_letter(plan, due_ms, offset, entry, now_ms, *refusal)
        elif info is None:
            self._miss(plan, due_ms, offset, entry, target, now_ms)
        elif info.compacted and entry.key is None:
            self._dead_letter(plan, due_ms, offset, entry, now_ms, *keyless_refusal(entry.target))
        elif is_poison:
            self._retry(plan, due_ms, offset, entry, now_ms, set_aside, why)
        elif (lane := lane_for(entry, info, occupied, has_token or set_aside is not None)) is not None:
            if left_lane == LIMITED:
                self._spend(plan, entry.target)
            plan.decisions.append(
                Decision(
                    due_ms,
                    offset,
                    Outcome.PARKED,
                    Reason.RATE_LIMITED if lane == LIMITED else Reason.NO_LEADER,
                    occurrence=entry.occurrence,
                    attempt=entry.attempt,
                    lane=lane,
                    detail=detail_number(plan.details, why_parked(entry.target, lane)),
                )
            )
        elif set_aside is not None and (waits or not has_token):
            if left_lane == LIMITED:
                self._spend(plan, entry.target)
            # Messages that were attempted before come last, so that one of them does not hold up the others.
            next_ms = max(set_aside.next_ms, now_ms + 1, self.rates.ready_ms(entry.target, now_ms)) + (
                entry.attempt > 1
            )
            detail = f"{entry.target} refuses messages and is attempted again after a pause: {set_aside.why}"
            self._defer(plan, due_ms, offset, entry, Reason.REFUSED_BY_BROKER, detail, next_ms)
        else:
            partition = plan.turn.place(entry.target, entry.key, info)
            headers = self._letters.with_receipt(entry, offset)
            size = batch_bytes(entry.key, entry.value, headers)
            if size > info.bytes_max:
                detail = f"{size} bytes; {entry.target} takes {info.bytes_max}"
                self._dead_letter(plan, due_ms, offset, entry, now_ms, Reason.TOO_LARGE, detail)
            else:
                self._spend(plan, entry.target)
                plan.messages.append((entry.target, entry.key, entry.value, headers, partition))
                plan.due_ms.append(due_ms)
                if next_ms := plan.next_ms.get(offset, 0):
                    plan.decisions.append(Decision(due_ms, offset, Outcome.AGAIN, 0, next_ms, entry.occurrence + 1, 1))

    def _turn(self, plan: PlannedTransaction, due_ms: int, offset: int, entry: Entry, now_ms: int) -> bool:
        """Note when the next occurrence of a series is due; return whether this one is not to be delivered, and decided."""
        turn = turn_of(entry, due_ms, offset, self._rules.shard, now_ms)
        plan.next_ms[offset] = turn.next_ms
        if turn.skipped is not None:
            plan.decisions.append(turn.skipped)
        elif turn.ended is not None:
            self._dead_letter(plan, due_ms, offset, entry, now_ms, *turn.ended)
        return turn.skipped is not None or turn.ended is not None

    def _spend(self, plan: PlannedTransaction, topic: str) -> None:
        """Take one message of the rate of the target, if it has one."""
        if topic in plan.allowed:
            plan.allowed[topic] -= 1
            plan.spent[topic] = plan.spent.get(topic, 0) + 1

    def _miss(
        self, plan: PlannedTransaction, due_ms: int, offset: int, entry: Entry, target: Target, now_ms: int
    ) -> None:
        """Decide about a message whose target was not found: dead-letter it after the second description, else defer it."""
        next_ms = second_look_ms(entry, due_ms, target, now_ms)
        if next_ms is None:
            self._dead_letter(plan, due_ms, offset, entry, now_ms, *MISSING)
        else:
            detail = "the first look did not find the topic"
            self._defer(plan, due_ms, offset, entry, Reason.TARGET_MISSING, detail, next_ms)

    def _defer(
        self,
        plan: PlannedTransaction,
        due_ms: int,
        offset: int,
        entry: Entry,
        reason: Reason,
        detail: str,
        next_ms: int,
    ) -> None:
        number = detail_number(plan.details, detail)
        plan.decisions.append(
            Decision(due_ms, offset, Outcome.DEFERRED, reason, next_ms, entry.occurrence, entry.attempt, detail=number)
        )

    def _retry(
        self,
        plan: PlannedTransaction,
        due_ms: int,
        offset: int,
        entry: Entry,
        now_ms: int,
        set_aside: SetAside | None,
        why: str,
    ) -> None:
        """Retry with exponential backoff and jitter computed from position and attempt; dead-letter after the last attempt.

        `why`: the error of the attempt that was refused.
        """
        refuses_all = set_aside is not None and set_aside.final
        attempts_max = self.retries.attempts_max
        if entry.options is not None and entry.options.attempts_max:
            attempts_max = min(attempts_max, entry.options.attempts_max)
        if entry.attempt >= attempts_max or refuses_all:
            detail = f"refused by the broker every time: {why}"
            if set_aside is not None and refuses_all:
                since = format_time(set_aside.since_ms)
                detail = f"refused by the broker, like every message for {entry.target} since {since}: {why}"
            self._dead_letter(plan, due_ms, offset, entry, now_ms, Reason.REFUSED_BY_BROKER, detail)
            return
        backoff_ms = self.retries.pause_ms(entry.attempt)
        jitter = murmur2(b"%d-%d-%d" % (due_ms, offset, entry.attempt)) % JITTER_STEPS
        next_ms = now_ms + backoff_ms // 2 + backoff_ms * jitter // (2 * JITTER_STEPS)
        plan.decisions.append(
            Decision(
                due_ms,
                offset,
                Outcome.RETRY,
                Reason.REFUSED_BY_BROKER,
                next_ms,
                entry.occurrence,
                entry.attempt + 1,
                detail=detail_number(plan.details, why),
            )
        )

    def _dead_letter(
        self,
        plan: PlannedTransaction,
        due_ms: int,
        offset: int,
        entry: Entry,
        now_ms: int,
        reason: Reason,
        detail: str,
    ) -> None:
        """Write a dead letter; it carries all that is needed to send the message again: headers, target, reason.

        While the dead-letter topic takes no records, the message is deferred.
        """
        self._opened(plan, now_ms)
        if plan.defers_dead_letters:
            detail = f"{detail}; {self.dead_letter_topic} takes no records"
            self._defer(plan, due_ms, offset, entry, reason, detail, now_ms + REFUSED_PAUSE_MS)
            return
        bytes_max = plan.dead_letter_bytes_max
        letter = self._letters.dead_letter(entry, offset, reason, detail, plan.turn, now_ms, bytes_max)
        if bytes_max < UNBOUNDED:
            plan.dead_letter_bytes += batch_bytes(*letter[1:4])
            if plan.dead_letter_bytes > bytes_max and plan.dead_letters:
                self._defer(plan, due_ms, offset, entry, reason, detail, now_ms + 1)
                return
        plan.dead_letters += 1
        plan.dead.add(reason, entry.target, entry_id(entry, self._rules.shard, offset))
        outcome = Outcome.EXPIRED if reason is Reason.EXPIRED else Outcome.DEAD
        number = detail_number(plan.details, detail)
        next_ms = plan.next_ms.get(offset, 0)
        # A series goes on without this occurrence.
        occurrence = entry.occurrence + 1 if next_ms else entry.occurrence
        plan.decisions.append(
            Decision(due_ms, offset, outcome, reason, next_ms, occurrence, entry.attempt, detail=number)
        )
        plan.messages.append(letter)


def within_targets(entries: Sequence[Entry], targets_max: int) -> int:
    """Return how many leading entries, at least one, have at most `targets_max` targets."""
    seen: set[str] = set()
    for at, entry in enumerate(entries):
        seen.add(entry.target)
        if len(seen) > targets_max:
            return at
    return len(entries)
