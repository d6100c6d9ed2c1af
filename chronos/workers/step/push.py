"""The push worker: makes the plan of one transaction, its messages and decisions. Most messages
need no decision and take a fast path; `decisions` decides about the others.

Target topics are described before the master produces to them (`targets`), so that a foreseeable
failure becomes a decision about one message and never an aborted transaction (law 8). Other
failures are handled by `poison`, which isolates the poison record by halving the selection."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from chronos.core.keys import LIMITED, REJECTED, Lane
from chronos.core.message import DUE_AT, ID, SOURCE, Entry, Reason, entry_id
from chronos.core.selector import Selector
from chronos.core.shard.draft import Draft
from chronos.core.shard.fate import Fates
from chronos.core.shard.letters import Letters
from chronos.core.shard.look_ahead import LookAhead
from chronos.core.shard.progress import Decision, Outcome, detail_number
from chronos.core.shard.rules import Rules
from chronos.core.shard.step import Selection
from chronos.core.shard.wheel import Item
from chronos.core.size import batch_bytes
from chronos.ports import Log, TopicInfo, TopicSpec
from chronos.workers.step.decisions import (
    DeadLetter,
    Decided,
    Deliver,
    DueMessage,
    Keep,
    StepTarget,
    StepTerms,
    decide,
    offset_s,
    target_refusal,
)
from chronos.workers.step.lanes import Openings, RateLimits, ShardRates, is_open
from chronos.workers.step.letter_topics import (
    DESCRIBED_PAUSE_MS,
    REFUSED_PAUSE_MS,
    UNBOUNDED,
    Refusal,
)
from chronos.workers.step.letters import Forwards, LetterRecords
from chronos.workers.step.partitions import TURN_MESSAGES, Partitions
from chronos.workers.step.planned import IDS_SHOWN, PlannedTransaction, StepInputs
from chronos.workers.step.targets import (
    Attempt,
    Refusals,
    Retries,
    SetAside,
    Target,
    Targets,
    attempt_of,
)

TARGETS_MAX = 100
"""Most targets of one transaction: each takes about 2 ms on two cores, and many times that on a
busy machine (measured), while the other messages wait and the time-out of the transaction, 10 s by
default, runs."""


class Uncertain(Exception):
    """A message may have another outcome in the step than in a plan made before it."""


class _Basis(Struct, frozen=True):
    """Everything that a transaction is planned on, besides its selection and the fates of that: one
    planned ahead holds while it is the same."""

    certain: Mapping[str, Target]
    """The targets whose messages have a certain outcome."""
    poison: Attempt | None
    partition_changes: int
    """`Turn.changes`."""
    dead_letter_topic: TopicInfo | None
    """None: the transaction has no dead letters, or the topic takes none or not all of them."""


class PushSettings(Struct, frozen=True, kw_only=True):
    """The settings of a pusher, from the configuration."""

    delay_topic: str
    rejected_topic: str
    dead_letter_topic: str
    create_topics: bool
    """Target topics that are missing are created."""
    retries: Retries
    own_topics: Sequence[TopicSpec] = ()
    """The specifications of the rejected and the dead-letter topic, if they are to be created again
    when they are missing."""


class Pusher:
    """The push worker of one leadership: makes the plan of each transaction from a draft."""

    def __init__(
        self,
        log_port: Log,
        rules: Rules,
        settings: PushSettings,
        *,
        rates: ShardRates | None = None,
        selector: Selector | None = None,
    ) -> None:
        """`rates`: the rate limits of targets; None: there are none. `selector`: see
        `Partitions`."""
        own = {spec.name: spec for spec in settings.own_topics}
        self.forwards = Forwards(log_port, settings.delay_topic, rules.shard)

        def creates(topic: str) -> TopicSpec | None:
            if topic in own or not (settings.create_topics and rules.allows(topic)):
                return own.get(topic)
            return TopicSpec(name=topic, partitions=-1, settings={})

        self.targets = Targets(log_port, creates=creates)
        self.partitions = Partitions(self.targets, selector)
        self.rates = ShardRates(rules.shard, RateLimits({})) if rates is None else rates
        self.rules = rules
        self.source_prefix = f"{settings.delay_topic}/{rules.shard}/".encode()
        self.letters = LetterRecords(
            rules,
            rejected_topic=settings.rejected_topic,
            dead_letter_topic=settings.dead_letter_topic,
        )
        self.retries = settings.retries

    def plan(
        self, draft: Draft, inputs: StepInputs, look_ahead: LookAhead[PlannedTransaction]
    ) -> PlannedTransaction:
        """Return the transaction for the selected messages of a draft, or for its rejected and
        forwarded records. Raises LogUnavailable."""
        now_ms, selection = inputs.now_ms, draft.selection
        plan = self._empty_plan(selection, now_ms)
        plan.defers_dead_letters = inputs.defers_dead_letters
        if not selection.items:
            self._add_letters(plan, draft.staged.letters, inputs)
            return plan
        assert not draft.staged.letters.are_written, "letters go without messages"
        targets = self.targets.describe(selection.targets, now_ms)
        certain = self.certain(targets, inputs)
        planner = _StepPlanner(self, plan, selection, draft.fates, targets, certain, inputs)
        early = look_ahead.plan(selection, draft.fates, planner.basis)
        if early is not None:
            return early
        plan.allowed = self.rates.allowed(targets, now_ms)
        planner.add(selection)
        return plan

    def _add_letters(self, plan: PlannedTransaction, letters: Letters, inputs: StepInputs) -> None:
        """Add the rejected and the forwarded records."""
        topic, now_ms, rejections = self.letters.rejected_topic, inputs.now_ms, letters.rejections
        info = self.targets.describe([topic], now_ms)[topic].info if rejections else None
        for record, rejection in rejections:
            assert info is not None, "a topic that takes no records is not written to"
            source = self.source_prefix + b"%d" % record.offset
            plan.messages.append(
                self.letters.rejected(
                    record, rejection, source, plan.turn, info, inputs.rejected_bytes_max
                )
            )
        plan.messages += self.forwards.records(letters.forwards)
        homes = {partition for _, partition in letters.forwards}
        plan.refused_to = frozenset(homes | {REJECTED} if rejections else homes)

    def plan_next(
        self,
        selection: Selection,
        fates: Fates,
        inputs: StepInputs,
        look_ahead: LookAhead[PlannedTransaction],
    ) -> None:
        """Compute what `plan` would return for the next selection, if the outcome of every message
        of it is certain."""
        if len(selection.targets) > TARGETS_MAX:
            return  # the step will select fewer messages
        plan = self._empty_plan(selection, inputs.now_ms)
        certain = self.certain(self.targets.known(selection.targets), inputs)
        planner = _AheadPlanner(self, plan, selection, fates, certain, certain, inputs)
        with suppress(Uncertain):
            planner.add(selection)
            look_ahead.keep_plan(selection, fates, plan, planner.basis(plan))

    def refusal(self, topic: str, now_ms: int) -> Refusal | None:
        """Return why the rejected or the dead-letter topic takes no records, by its description;
        None if it takes them.

        A missing one is created again where that is allowed. Raises LogUnavailable.
        """
        info = self.targets.describe([topic], now_ms, age_ms_max=DESCRIBED_PAUSE_MS)[topic].info
        if info is None:
            return Refusal(why="it does not exist", passing=False)
        if not info.writable:
            return Refusal(why="Kafka does not let Chronos write to it", passing=False)
        if len(info.closed) >= info.partitions:
            return Refusal(
                why="none of its partitions has a leader with enough in-sync replicas", passing=True
            )
        return None

    def _empty_plan(self, selection: Selection, now_ms: int) -> PlannedTransaction:
        return PlannedTransaction(
            messages=[],
            decisions=[],
            due_ms=[],
            targets=selection.targets,
            turn=self.partitions.turn(now_ms),
        )

    def certain(self, targets: Mapping[str, Target], inputs: StepInputs) -> dict[str, Target]:
        """Return the targets for which an outcome may be certain: not set aside, without a lane, a
        rate limit or a closed partition."""
        excluded = (
            {topic for topic, _ in inputs.lanes}
            | self.rates.limited(targets)
            | inputs.refusals.set_aside.keys()
        )
        return {
            topic: target
            for topic, target in targets.items()
            if topic not in excluded and (target.info is None or not target.info.closed)
        }

    def openings(self, refusals: Refusals, lanes: Mapping[Lane, int], now_ms: int) -> Openings:
        """Return which of these lanes messages may leave: the reason that keeps them there is over,
        and the rate of the topic allows it. `lanes`: with their lengths. Raises LogUnavailable."""
        targets = self.targets.describe({topic for topic, _ in lanes}, now_ms)
        forbidden = {topic for topic in targets if not self.rules.allows(topic)}
        opened = {
            lane for lane in lanes if lane[0] in forbidden or is_open(lane[1], targets[lane[0]])
        }
        # A message that can only be dead-lettered takes nothing of a rate.
        dead = {
            topic
            for topic, target in targets.items()
            if target.info is None or not target.info.writable
        }
        return self.rates.openings(
            lanes, opened, forbidden | dead, refusals.set_aside.keys(), now_ms
        )


class _StepPlanner:
    """Decides about the messages of one step, and adds what they become to its plan."""

    def __init__(
        self,
        pusher: Pusher,
        plan: PlannedTransaction,
        selection: Selection,
        fates: Fates,
        targets: Mapping[str, Target],
        certain: Mapping[str, Target],
        inputs: StepInputs,
    ) -> None:
        """`targets`: those that messages may be decided about. `certain`: see `Pusher.certain`."""
        refusals, lanes, now_ms = inputs.refusals, inputs.lanes, inputs.now_ms
        self._pusher = pusher
        self._plan = plan
        self._inputs = inputs
        self._fates = fates.of
        self._certain = certain
        attempted = refusals.attempted(selection, now_ms)
        self._targets = {
            topic: self._target(topic, target, attempted) for topic, target in targets.items()
        }
        self._terms = StepTerms(
            now_ms=now_ms,
            shard=pusher.rules.shard,
            source_prefix=pusher.source_prefix,
            retries=pusher.retries,
            # A due message follows the messages in its lane, unless all of them leave in this step,
            # before it.
            occupied=lanes - {leaving.lane for leaving in selection.leaving if leaving.is_all},
            unlimited={lane for lane in lanes if lane[1] != LIMITED},
            zone_data=pusher.rules.zone_data,
        )
        self._left = {
            offset: leaving.lane[1]
            for leaving in selection.leaving
            for _, offset, _ in leaving.items
        }
        self._is_ordinary = not (self._left or inputs.poison or refusals.set_aside)
        """No message leaves a lane or was refused before."""
        self._dead: Counter[tuple[Reason, str]] = Counter()
        """Dead letters by reason and target."""
        self._detail = "", 0
        """The last detail of a decision, and its number."""
        self._letter_topic: TopicInfo | None = None
        self._asked = False

    def _target(self, topic: str, target: Target, attempted: SetAside | None) -> StepTarget:
        set_aside, now_ms = self._inputs.refusals.set_aside.get(topic), self._inputs.now_ms
        return StepTarget(
            topic=topic,
            described=target,
            refusal=target_refusal(topic, target, self._pusher.rules),
            set_aside=set_aside,
            waits=set_aside is not attempted,
            ready_ms=0 if set_aside is None else self._pusher.rates.ready_ms(topic, now_ms),
        )

    def basis(self, made: PlannedTransaction) -> _Basis:
        """Return the current basis of a transaction that was made of the selection."""
        letter_topic = self._open_letter_topic() if made.dead_letters else None
        if self._inputs.dead_letter_bytes_max < UNBOUNDED:
            letter_topic = None
        return _Basis(self._certain, self._inputs.poison, self._plan.turn.changes, letter_topic)

    def add(self, selection: Selection) -> None:
        """Add the messages of the selection."""
        plain = {topic: self._targets[topic].plain_bytes for topic in self._certain}
        # With many targets a turn is longer: each further partition in a transaction costs the
        # brokers time.
        count = TURN_MESSAGES * max(1, sum(most >= 0 for most in plain.values()))
        for start in range(0, len(selection.items), count):
            if start:
                self._plan.turn.clear()
            part = slice(start, start + count)
            self._add_turn(selection.items[part], selection.entries[part], plain)
        for (reason, target), count in self._dead.items():
            self._plan.dead.count(reason, target, count)

    def _add_turn(
        self, items: Sequence[Item], entries: Sequence[Entry], plain: Mapping[str, int]
    ) -> None:
        """Add the messages of one turn. `plain`: by target, the packed size up to which a message
        needs no decision."""
        plan, turn = self._plan, self._plan.turn
        append, append_due = plan.messages.append, plan.due_ms.append
        decided: Container[int] = self._fates
        if self._inputs.poison is not None:
            decided = {*self._fates, self._inputs.poison[0]}
        shard, source_prefix = self._terms.shard, self._terms.source_prefix
        last_ms, due, stem = -1, b"", b""
        for (at_ms, offset, data), entry in zip(items, entries, strict=True):
            if (
                len(data) > plain.get(entry.target, -1)
                or offset in decided
                or entry.attempt > 1
                or entry.options is not None
                or type(entry.headers) is not dict
            ):
                self._settle(at_ms, offset, entry, len(data))
                continue
            # `StepTerms.headers` written out: a function call and a second dict would cost 0.3 of
            # the 3.3 us for a message.
            if entry.due_ms != last_ms:
                last_ms = entry.due_ms
                due = b"%d" % last_ms
                stem = b"%d-%b-" % (shard, due)
            at = b"%d" % offset
            headers: dict[str, bytes | None] = entry.headers.copy()
            headers[ID] = entry.id or stem + at
            headers[DUE_AT] = due
            headers[SOURCE] = source_prefix + at
            target, key = entry.target, entry.key
            append((target, key, entry.value, headers, turn[target] if key is None else -1))
            append_due(at_ms)

    def _settle(self, due_ms: int, offset: int, entry: Entry, size: int) -> None:
        """Decide about one message, and apply the outcome."""
        topic, target = entry.target, self._targets[entry.target]
        fate = self._fates.get(offset)
        if self._is_ordinary and not self._plan.allowed:
            message = DueMessage(due_ms, offset, entry, size, fate=fate)
        else:
            left_lane = self._left.get(offset)
            has_token = left_lane is not None or self._plan.allowed.get(topic, 1) > 0
            why = self._refused_why(due_ms, offset, entry)
            message = DueMessage(due_ms, offset, entry, size, left_lane, has_token, why, fate)
        outcome = decide(message, target, self._terms)
        if isinstance(outcome, Deliver):
            self._deliver(message, target, outcome)
        elif isinstance(outcome, DeadLetter):
            self._dead_letter(message, outcome)
        else:
            self._keep(message, outcome)

    def _refused_why(self, due_ms: int, offset: int, entry: Entry) -> str | None:
        """Return the error of the message's last attempt if the broker refused that, and it is not
        decided yet; else None."""
        poison, refusals = self._inputs.poison, self._inputs.refusals
        set_aside = refusals.set_aside.get(entry.target) if refusals.set_aside else None
        is_poison = poison is not None and attempt_of(due_ms, offset, entry) == poison
        if set_aside is None:
            return refusals.why if is_poison else None
        return set_aside.why if is_poison or set_aside.has_refused(due_ms, offset, entry) else None

    def _deliver(self, message: DueMessage, target: StepTarget, outcome: Deliver) -> None:
        plan, entry, info = self._plan, message.entry, target.described.info
        assert info is not None, "a message for a missing topic is not written"
        headers = self._terms.headers(entry, message.offset)
        partition = plan.turn.place(entry.target, entry.key, info)
        self._spend(entry.target)
        plan.messages.append((entry.target, entry.key, entry.value, headers, partition))
        plan.due_ms.append(message.due_ms)
        if outcome.next_ms:
            again = Decided(Outcome.AGAIN, 0, "", outcome.next_ms, entry.occurrence + 1, 1)
            self._decide(message, again)

    def _keep(self, message: DueMessage, outcome: Keep) -> None:
        target = message.entry.target
        if outcome.takes_token and message.left_lane == LIMITED:
            self._spend(target)
        self._plan.undelivered[target] += 1
        self._decide(message, outcome)

    def _decide(self, message: DueMessage, made: Decided) -> None:
        """Add the decision about a message to the plan."""
        if made.detail != self._detail[0]:
            # The next message often has the same one.
            self._detail = made.detail, detail_number(self._plan.details, made.detail)
        self._plan.decisions.append(
            Decision(
                message.due_ms,
                message.offset,
                made.outcome,
                made.reason,
                made.next_ms,
                made.occurrence,
                made.attempt,
                made.lane,
                self._detail[1],
                None
                if message.entry.options is None
                else offset_s(message.entry, made, self._terms.zone_data),
            )
        )

    def _dead_letter(self, message: DueMessage, outcome: DeadLetter) -> None:
        """Write a dead letter; while the dead-letter topic takes none, or no more in this step, the
        message is deferred."""
        plan, entry, inputs = self._plan, message.entry, self._inputs
        reason, detail, next_ms = outcome.reason, outcome.detail, outcome.next_ms
        topic, info = self._pusher.letters.dead_letter_topic, self._open_letter_topic()
        if info is None:
            why = f"{detail}; {topic} takes no records"
            self._defer_letter(message, reason, why, inputs.now_ms + REFUSED_PAUSE_MS)
            return
        bytes_max = inputs.dead_letter_bytes_max
        letter = self._pusher.letters.dead_letter(
            message, outcome, self._terms, plan.turn, info, bytes_max
        )
        if bytes_max < UNBOUNDED:
            plan.dead_letter_bytes += batch_bytes(*letter[1:4])
            if plan.dead_letter_bytes > bytes_max and plan.dead_letters:
                self._defer_letter(message, reason, detail, inputs.now_ms + 1)
                return
        plan.dead_letters += 1
        plan.undelivered[entry.target] += 1
        self._dead[reason, entry.target] += 1
        if len(plan.dead.ids) < IDS_SHOWN:
            plan.dead.ids.append(entry_id(entry, self._terms.shard, message.offset))
        ended = Outcome.EXPIRED if reason is Reason.EXPIRED else Outcome.DEAD
        # A series goes on without this occurrence.
        occurrence = entry.occurrence + 1 if next_ms else entry.occurrence
        self._decide(message, Decided(ended, reason, detail, next_ms, occurrence, entry.attempt))
        plan.messages.append(letter)

    def _defer_letter(self, message: DueMessage, reason: Reason, detail: str, next_ms: int) -> None:
        entry = message.entry
        self._keep(
            message,
            Keep(Outcome.DEFERRED, reason, detail, next_ms, entry.occurrence, entry.attempt),
        )

    def _open_letter_topic(self) -> TopicInfo | None:
        """Return the description of the dead-letter topic; None if it takes no letters now. Raises
        LogUnavailable."""
        plan, pusher, topic = self._plan, self._pusher, self._pusher.letters.dead_letter_topic
        if not self._asked:
            self._asked = True
            if not plan.defers_dead_letters:
                plan.refusal = pusher.refusal(topic, self._inputs.now_ms)
                plan.defers_dead_letters = plan.refusal is not None
            known = pusher.targets.known([topic]).get(topic)
            self._letter_topic = None if known is None else known.info
        return None if plan.defers_dead_letters else self._letter_topic

    def _spend(self, topic: str) -> None:
        """Take one message of the rate of the target, if it has one."""
        plan = self._plan
        if topic in plan.allowed:
            plan.allowed[topic] -= 1
            plan.spent[topic] = plan.spent.get(topic, 0) + 1


class _AheadPlanner(_StepPlanner):
    """Plans a step that has not begun, on what is known, without asking a broker. Raises Uncertain
    at the first message whose outcome is not certain."""

    def _settle(self, due_ms: int, offset: int, entry: Entry, size: int) -> None:
        poison = self._inputs.poison
        if entry.target not in self._targets or (poison is not None and offset == poison[0]):
            raise Uncertain
        super()._settle(due_ms, offset, entry, size)

    def _keep(self, message: DueMessage, outcome: Keep) -> None:
        raise Uncertain

    def _open_letter_topic(self) -> TopicInfo | None:
        topic = self._pusher.letters.dead_letter_topic
        known = self._pusher.targets.known([topic]).get(topic)
        if known is None or not known.is_open or self._inputs.dead_letter_bytes_max < UNBOUNDED:
            raise Uncertain
        return known.info
