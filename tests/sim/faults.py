"""Faults planted in the real code by changing one line of it: the simulator must find each of them.

A fault names a function, a text in it and the text that replaces it; line breaks within brackets do
not matter. When the code has changed and the text is gone, planting fails, and the table has to be
adapted."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from chronos.core.cluster.assignment import _Table
from chronos.core.cluster.placement import Placement
from chronos.core.cluster.reports import Reports
from chronos.core.shard import order, parsing, staging
from chronos.core.shard.lanes import Lanes
from chronos.core.shard.look_ahead import LookAhead, _NextSelection
from chronos.core.shard.queues import Queues
from chronos.core.shard.shard import Shard
from chronos.core.shard.staging import _Staging
from chronos.node.checkpoints import StoreBootstrap
from chronos.workers.cluster.membership import Membership
from chronos.workers.push import decisions, push
from chronos.workers.push.lanes import LaneTurns, ShardRates
from chronos.workers.push.letter_topics import LetterTopic
from chronos.workers.push.letters import Forwards, LetterRecords
from chronos.workers.push.push import Pusher, _StepPlanner
from chronos.workers.push.targets import Refusals, SetAside
from chronos.workers.replica import replica
from chronos.workers.replica.checkpoint import Checkpointer
from chronos.workers.replica.follow import Follower
from chronos.workers.replica.held import HeldQueues
from chronos.workers.replica.master import Master
from chronos.workers.replica.poison import PoisonSearch
from chronos.workers.replica.replica import Replica
from chronos.workers.replica.retention import Deleter
from chronos.workers.replica.state import Claim, WriterEpoch
from chronos.workers.watch.stall import _Standstill

Change = tuple[type | ModuleType, str, str, str]
"""Class or module, function, the text in it, its replacement."""

FAULTS: dict[str, list[Change]] = {
    "the newest rules number of any member is published": [
        (_Table, "rules", "min((member.rules", "max((member.rules"),
    ],
    "the rules number is raised while a node is away": [
        (_Table, "rules", "0 if self.away else announced", "announced"),
    ],
    "the rules number follows the members down": [
        (_Table, "rules", "max(self.view.roles.rules, 0 if self.away else announced)", "announced"),
    ],
    "a master decides by the rules that it knows itself": [
        (Membership, "assignment", "rules = min(snapshot.roles.rules, RULES)", "rules = RULES"),
    ],
    "the rules number is never raised": [
        (
            _Table,
            "rules",
            "max(self.view.roles.rules, 0 if self.away else announced)",
            "self.view.roles.rules",
        ),
    ],
    "a record is forwarded twice": [
        (
            Forwards,
            "records",
            "for record, partition in forwards:",
            "for record, partition in [*forwards, *forwards[:1]]:",
        ),
    ],
    "a forwarded record is not written": [
        (Master, "_commit", "forwards=staged.forwards,", "forwards=staged.forwards[1:],"),
    ],
    "a held record is not written on": [
        (
            HeldQueues,
            "_stage",
            "if forward[0].offset not in too_large]",
            "if forward[0].offset not in too_large][1:]",
        ),
    ],
    "queues are not read after a restart": [
        (Queues, "__init__", "None if held else {}", "{}"),
    ],
    "nothing is pulled while records cannot be forwarded or rejected": [
        (HeldQueues, "admit", "if closed and staged.rules == 1:", "if closed:"),
        (HeldQueues, "admit", "if staged.rules == 1:", "if True:"),
        (HeldQueues, "pausing", "if self._shard.rules.number == 1:", "if True:"),
    ],
    "a record is forwarded and executed here too": [
        (_Staging, "run", "staged.refuse(offset, Reason.FORWARDED)", "pass"),
    ],
    "the first timestamp of a forwarded record is lost": [
        (
            Forwards,
            "_headers",
            "hop(self._source_prefix, record)",
            "hop(self._source_prefix, record).replace(b';', b';1')",
        ),
    ],
    "a forwarded record is accepted after a later cancel of its id": [
        (staging, "overtaken", "if any(", "if False and any("),
    ],
    "the order of two partitions is taken for exact": [
        (staging, "overtaken", "each_ms >= first_ms - CLOCK_TOLERANCE_MS", "each_ms >= first_ms"),
    ],
    "a cancel refuses what came after it through the same partition": [
        (staging, "overtaken", " and each != partition", ""),
    ],
    "a message that is older by more than the tolerance replaces a younger one": [
        (staging, "overtaken", "if has_message and", "if False and"),
    ],
    "a message is refused after a younger one that came through the same partition": [
        (
            staging,
            "overtaken",
            "if has_message and _partition(id_state, own) != partition:",
            "if has_message:",
        ),
    ],
    "an action through the same partition is refused for its time": [
        (staging, "precedes", " and _partition(id_state, own) != partition", ""),
    ],
    "one cancel of an id is remembered, not two": [
        (staging, "with_cancel", "[:2]", "[:1]"),
    ],
    "a new message forgets the cancels of its id": [
        (
            _Staging,
            "_schedule",
            "command.entry if self.rules.number == 1 else succeeding(command.entry, id_state)",
            "command.entry",
        ),
    ],
    "a message forgets the partition that it came through": [
        (parsing, "_forwarded", "if rules.number == 1:", "if True:"),
    ],
    "a hop from the future is refused": [
        (parsing, "hop_of", "if rules.number == 1:", "if True:"),
    ],
    "a hop from the far future is believed": [
        (
            parsing,
            "hop_of",
            "first_ms if is_believed else timestamp_ms",
            "first_ms",
        ),
    ],
    "a replica remembers what was forgotten until it is deleted": [
        (_Staging, "__init__", "if horizon_ms:", "if False:"),
    ],
    "an id is deleted that is not forgotten": [
        (Deleter, "_drop_id_states", " and is_forgotten(id_state, before_ms)", ""),
    ],
    "a repetition of an id is judged by the time of the copy": [
        (
            _Staging,
            "_check_conflict",
            "command.entry.timestamp_ms - self",
            "record.timestamp_ms - self",
        ),
    ],
    "a cancel that finds nothing leaves no trace": [
        (
            _Staging,
            "_note_cancel",
            "if reason == Reason.UNKNOWN:",
            "if reason == Reason.UNKNOWN:\n    return\nif False:",
        ),
    ],
    "a cancel that comes after the end of its message leaves no trace": [
        (_Staging, "_note_cancel", "if noted != id_state:", "if False:"),
    ],
    "a replica does not note the cancels that changed nothing": [
        (_Staging, "run", "if replayed[offset] in CHANGED_NOTHING:", "if False:"),
    ],
    "a forwarded action changes a message that was scheduled after it": [
        (
            _Staging,
            "_execute",
            "if self.replayed is None and self._precedes(record, command, id_state):",
            "if False:",
        ),
    ],
    "a hop that cannot be true is believed": [
        (
            parsing,
            "_forwarded",
            "if isinstance(found, Rejection):",
            (
                "found = (0, record.timestamp_ms) if isinstance(found, Rejection) else found\nif "
                "False:"
            ),
        ),
    ],
    "a record is forwarded again": [
        (parsing, "_forwarded", "if isinstance(command, Misplaced):", "if False:"),
        (order, "_was_forwarded", "return record.headers is not None", "return False"),
    ],
    "the hop is passed on to the rejected topic": [
        (LetterRecords, "rejected", "if header[0] != FORWARDED", ""),
    ],
    "a record is placed by the time of its own partition": [
        (
            parsing,
            "_forwarded",
            "Record(record.offset, first_ms,",
            "Record(record.offset, record.timestamp_ms,",
        ),
    ],
    "the end of the log counts as reached though its records are not staged": [
        (
            Master,
            "_pull",
            "reached_ms, self._awaited = asked_ms, None",
            "reached_ms = self._reached_ms = asked_ms",
        ),
    ],
    "messages are delivered in the transaction that forwards records": [
        (Master, "_select", "if not limits.push or staged.forwards or", "if not limits.push or"),
    ],
    "a retry or deferral is forgotten on apply": [
        (
            Shard,
            "_settle",
            "if decision.next_due_ms:",
            "if decision.next_due_ms:\n    continue\nif 0:",
        ),
    ],
    "a step is applied before its commit": [
        (
            Master,
            "_commit",
            (
                "appended = self._finish(produced_ms, self._prepare_next(staged, selection, "
                "progress, pulled, until_ms))"
            ),
            "appended = Appended(partition=0, offset=self._shard.state.applied, "
            "timestamp_ms=produced_ms)\n"
            "self._apply(staged, selection, progress, appended)\n"
            "self._finish(produced_ms)\n"
            "return plan.due_ms",
        ),
    ],
    "a new master replays nothing": [
        (Replica, "_resolve", "if self._catch_up(follower, now_ms):", "if False:"),
        (
            Replica,
            "_resolve",
            "if watermarks.stable < watermarks.high or not follower.has_reached(watermarks.high):",
            "if False:",
        ),
    ],
    "messages are selected beyond the watermark": [
        (Master, "_pull", "return records, reached_ms", "return records, now_ms"),
    ],
    "a replica decides again": [
        (Shard, "replay_stage", "staged = stage(", "staged = self.stage(records) or stage("),
    ],
    "an entry is placed behind the cursor": [
        (
            _Staging,
            "_place_at",
            "placed_ms(entry.due_ms + shift, first_ms, self.state.cursor_due_ms)",
            "max(entry.due_ms, first_ms)",
        ),
    ],
    "the pull offset counts records, not offsets": [
        (
            _Staging,
            "run",
            "staged.pull_offset = parsed.records[-1].offset + 1",
            "staged.pull_offset = self.state.pull_offset + len(parsed.records)",
        ),
    ],
    "a failed apply is taken for done": [
        (
            Master,
            "_apply",
            "raise ApplyFailed(...) from error",
            "pass",
        ),
    ],
    "a failed apply is retried on the old state": [
        (
            Master,
            "_apply",
            "raise ApplyFailed(...) from error",
            "raise",
        ),
    ],
    "a committed step is retried when the store cannot be read": [
        (
            Master,
            "_apply",
            "except Retry as error:",
            "except __import__('chronos').errors.NoSpace as error:",
        ),
    ],
    "the role epoch is not compared": [
        (Claim, "wait_ms", "if state.role_epoch >= assignment.epoch:", "if False:"),
        (Replica, "_leadership_ended", "if assignment.continues(self._leadership):", "if True:"),
    ],
    "a replica that was frozen before it fenced leads under an old role": [
        (Replica, "_resolve", "if not self._may_lead(leadership, now_ms):", "if False:"),
    ],
    "a new master replays only to the last stable offset": [
        (
            Replica,
            "_resolve",
            "if watermarks.stable < watermarks.high or not follower.has_reached(watermarks.high):",
            "if not follower.has_reached(watermarks.stable):",
        ),
    ],
    "a cancelled message is delivered": [
        (Shard, "_merge", "if staged.removed:", "if False:"),
    ],
    "clocks are not compared": [
        (Master, "_check_clock", "<= CLOCK_TOLERANCE_MS", "<= 10**9"),
        (Master, "_check_pulled", "raise ClockDisagrees(", "ClockDisagrees("),
    ],
    "an abort drops the staged records": [
        (
            Master,
            "_commit",
            (
                "search.failed(failure, letters=letters, pusher=self._pusher, "
                "shard=self._shard.rules.shard)"
            ),
            "self._puller.release(10**9)\nraise",
        ),
    ],
    "the wheel keeps removed entries": [
        (Shard, "install", "wheel.forget(due_ms, offset)", "pass"),
    ],
    "the cursor passes messages beyond the batch limit": [
        (
            Shard,
            "select",
            "items[-1][:2], complete=False",
            "max(known, self.state.cursor), complete=False",
        ),
    ],
    "a selection computed early is used without a check": [
        (_NextSelection, "holds", "and not staged.removed", ""),
        (_NextSelection, "holds", "and self.edits == shard.wheel.edits", ""),
    ],
    "an id state read early is used after it changed": [
        (LookAhead, "installed", "if changed:", "if False:"),
    ],
    "two masters in one epoch": [
        (
            Replica,
            "_make_master",
            "log_epoch=self.state.log_epoch + 1",
            "log_epoch=max(1, self.state.log_epoch)",
        ),
    ],
    "a lost producer is taken for an abort": [
        (
            Master,
            "_commit",
            (
                "appended = self._finish(produced_ms, self._prepare_next(staged, selection, "
                "progress, pulled, until_ms))"
            ),
            "try:\n"
            "    appended = self._finish(produced_ms)\n"
            "except ProducerLost:\n"
            "    raise TransactionAborted('lost', poison_likely=False)",
        ),
    ],
    "a lost producer is taken for a commit": [
        (
            Master,
            "_commit",
            (
                "appended = self._finish(produced_ms, self._prepare_next(staged, selection, "
                "progress, pulled, until_ms))"
            ),
            "try:\n"
            "    appended = self._finish(produced_ms)\n"
            "except ProducerLost:\n"
            "    appended = Appended(partition=0, offset=self._shard.state.applied, "
            "timestamp_ms=produced_ms)",
        ),
    ],
    "the retention deletes pending messages": [
        (
            Deleter,
            "_drop_entries",
            "self._store.delete_range(ENTRY, cursor_key",
            "self._store.delete_range(ENTRY, entry_key(before_ms + 90_000, 0)",
        ),
    ],
    "id states are deleted by the clock": [
        (
            Deleter,
            "step",
            "horizon_ms = state.horizon_ms",
            "horizon_ms = now_ms - self.id_states_ms",
        ),
    ],
    "a producer's timestamp moves the watermark": [
        (_Staging, "run", " and not record.create_time", ""),
    ],
    "deliveries do not wait for open transactions": [
        (Master, "_end", "if not self._limits.wait_for_transactions:", "if True:"),
    ],
    "a message is moved beyond its expiry": [
        (
            _Staging,
            "_move",
            "if self.replayed is None and _is_beyond_expiry(action, entry, shift):",
            "if False:",
        ),
    ],
    "a follower runs ahead of the progress record": [
        (
            Follower,
            "_delay_to",
            "if record.offset >= pull_offset",
            "if record.offset > pull_offset",
        ),
    ],
    "refused records that cannot be written stop the shard": [
        (PoisonSearch, "_may_be_letters", "self.separate = True", "pass"),
    ],
    "a topic that refused records is never tried again": [
        (
            LetterTopic,
            "is_open",
            "return not now_ms < self.until_ms <= now_ms + REFUSED_PAUSE_MS",
            "return self.failures == 0",
        ),
        (LetterTopic, "is_open", "self.took()", "pass"),
    ],
    "a shard that moves or has no work is called stalled": [
        (_Standstill, "step", "not waiting or position != self._position", "False"),
    ],
    "a lost producer is used again": [
        (
            Replica,
            "_lead",
            "except (ProducerLost, ApplyFailed) as error:",
            "except ApplyFailed as error:",
        ),
    ],
    "a target that is set aside is not attempted again": [
        (SetAside, "is_ready", "return not", "return False and not"),
    ],
    "a refusal counts for a message that an action has moved since": [
        (
            _StepPlanner,
            "_refused_why",
            "attempt_of(due_ms, offset, entry) == poison",
            "offset == poison[0]",
        ),
        (
            SetAside,
            "has_refused",
            "self.attempts[offset] == attempt_of(due_ms, offset, entry)",
            "True",
        ),
    ],
    "a target counts as refusing every message after one refusal": [
        (
            Refusals,
            "refuse",
            "target.messages >= PROVEN_AT and now_ms - target.since_ms >= retries.total_ms()",
            "True",
        ),
    ],
    "the text of a decision's reason is not recorded": [
        (WriterEpoch, "progress", "details=tuple(texts)", "details=()"),
    ],
    "one description is enough to dead-letter": [
        (decisions, "_decide_missing", "target.is_missing and known_ms <=", "known_ms <="),
    ],
    "messages are selected before they are due": [
        (Master, "step", "until_ms = min(now_ms, ", "until_ms = 2_000 + min(now_ms, "),
    ],
    "an end found under a wrong clock counts after the clock was corrected": [
        (Master, "_clock_was_set", "return abs", "return False and abs"),
        (Master, "_distrust_clock", "self._reached_ms = 0", "pass"),
        (Master, "_pull", "self._reached_ms = 0 ", "pass "),
    ],
    "an expired message is delivered": [
        (push, "decide", "now_ms > expire_at_ms", "now_ms > expire_at_ms + 600_000"),
        (
            _StepPlanner,
            "_is_alive",
            "self._inputs.now_ms > expire_at_ms",
            "self._inputs.now_ms > expire_at_ms + 600_000",
        ),
    ],
    "the replicas of a lost node are not replaced": [
        (
            Placement,
            "place",
            "if now_ms - since_ms >= self._view.replace_after_ms",
            "if False",
        ),
    ],
    "a log is trimmed behind the newest checkpoint alone": [
        (
            Checkpointer,
            "_trim",
            "checkpoints=checkpoints,",
            "checkpoints=[max(checkpoints)] * CHECKPOINTS_MIN,",
        ),
    ],
    "a log is trimmed ahead of other replicas": [
        (Checkpointer, "_trim", "replicas=positions,", "replicas=positions[:1],"),
    ],
    "an empty store replays trimmed logs without a checkpoint": [
        (
            Replica,
            "_restore_store",
            "restored = self._restore(cost)",
            "restored = not cost.store_empty and self._restore(cost)",
        ),
    ],
    "a store older than the start of the logs is kept": [
        (
            StoreBootstrap,
            "restore",
            "cost.store_empty or not cost.logs_complete or",
            "cost.store_empty or",
        ),
    ],
    "where a shard begins is not read from its log": [
        (replica, "begun", "or not delay.start:", "or not delay.start or progress.high:"),
    ],
    "a replay begins with the first record of the delay log": [
        (Follower, "_apply", "if shard.state.applied == 0:", "if False:"),
    ],
    "a node is known by its id, not by its data directory": [
        (
            Claim,
            "wait_ms",
            'if state.instance in ("", self.instance):',
            'if state.node in ("", self.node):',
        ),
    ],
    "a node that returns with a new data directory never gets a later role": [
        (Reports, "is_stale", 'in_instance not in ("", instance)', "False"),
    ],
    "a node that leaves keeps its shards": [
        (_Table, "_may_stay", "member.stays", "not member.retiring"),
    ],
    "a message leaves its lane although an action has taken it out": [
        (Lanes, "select", "items = _remaining(rows, staged)", "items = rows"),
    ],
    "a replica empties a lane beyond its cursor": [
        (
            Lanes,
            "replay",
            "stop = _after(lane, (cursor.due_ms, cursor.offset))",
            "_, stop = self._range(lane)",
        ),
    ],
    "lanes are not read after a restart": [
        (Lanes, "__init__", "None if parked else {}", "{}"),
    ],
    "a message stays in the lane that it left": [
        (
            Lanes,
            "writes",
            "change[lane] -= len(leaving.items)",
            "change[lane] -= len(leaving.items)\ndeletes.clear()",
        ),
    ],
    "a closed lane is taken for open": [
        (Pusher, "openings", "or is_open(lane[1], targets[lane[0]])", "or True"),
    ],
    "a lane stays closed": [
        (Pusher, "openings", "or is_open(lane[1], targets[lane[0]])", "or False"),
    ],
    "the messages that leave a lane take nothing of the rate": [
        (LaneTurns, "committed", "self._spend(spent)", "pass"),
    ],
    "what waits for a rate waits for ever": [
        (
            ShardRates,
            "openings",
            "found.update(first)",
            "found.update(first if rate is None else ())",
        ),
    ],
    "a message is parked again in the lane of a limited target": [
        (
            push,
            "decide",
            "before = terms.unlimited if left_lane == LIMITED",
            "before = {(target.topic, LIMITED)} if left_lane == LIMITED",
        ),
    ],
    "the next occurrence of a series is counted from a time of its own": [
        (_StepPlanner, "_deliver", "outcome.next_ms, entry", "outcome.next_ms + 1, entry"),
    ],
    "the occurrences of a series are not counted": [
        (_StepPlanner, "_deliver", "entry.occurrence + 1, 1)", "entry.occurrence, 1)"),
    ],
    "a message with a spread is placed at its due time": [
        (_Staging, "_place_at", "entry.due_ms + shift", "entry.due_ms"),
    ],
    "a dead letter is replayed a second time": [
        (
            _Staging,
            "_check_conflict",
            "if id_state is None or",
            "if id_state is None or command.verb is Verb.REPLAY or",
        ),
    ],
    "a replay is ignored for a message that is not a replay of the same dead letter": [
        (
            _Staging,
            "_is_replay_of_same",
            "_replayed(unpack_entry(data)) == _replayed(command.entry)",
            "True",
        ),
    ],
    "a message's own limit of attempts is not known": [
        (
            decisions,
            "_decide_refused",
            "if entry.options is not None and entry.options.attempts_max:",
            "if False:",
        ),
    ],
    "a replica goes on after its shard was assigned elsewhere": [
        (Membership, "assignment", 'kind="follower" if is_holder else "none"', 'kind="follower"'),
    ],
}


@contextmanager
def planted(name: str, faults: Mapping[str, Sequence[Change]] = FAULTS) -> Iterator[None]:
    """Plant the fault of a table for the duration of a `with`."""
    undo: list[tuple[type | ModuleType, str, Any]] = []
    try:
        for owner, function, old, new in faults[name]:
            undo.append((owner, function, owner.__dict__[function]))
            setattr(owner, function, _changed(owner, function, old, new))
        yield
    finally:
        for owner, function, before in reversed(undo):
            setattr(owner, function, before)


def _changed(owner: type | ModuleType, function: str, old: str, new: str) -> Callable[..., Any]:
    current = owner.__dict__[function]
    source = getattr(current, "__planted__", None) or textwrap.dedent(inspect.getsource(current))
    found = list(re.finditer(_pattern(old), source, re.DOTALL))
    if len(found) != 1:
        raise LookupError(
            f"{owner.__name__}.{function} contains this text {len(found)} times, not once: {old}"
        )
    start, end = found[0].span()
    line = source.rindex("\n", 0, start) + 1
    if "\n" in new and source[line:start].strip():
        raise LookupError("several lines can only replace whole lines")
    source = source[:start] + new.replace("\n", "\n" + " " * (start - line)) + source[end:]
    names: dict[str, Any] = {}
    exec(
        compile(source, f"<planted in {owner.__name__}.{function}>", "exec"),
        current.__globals__,
        names,
    )
    made: Callable[..., Any] = names[function]
    made.__planted__ = source  # type: ignore[attr-defined]
    return made


def _pattern(text: str) -> str:
    """Return a pattern that finds a text in code however the formatter has broken it into lines.
    `...` stands for any text."""
    parts = []
    for token in re.findall(r"\.\.\.|\w+|[^\w\s]|\s+", text):
        if token == "...":
            parts.append(".*?")
        elif token.isspace():
            parts.append(r"\s+")
        else:
            before = r",?\s*" if token in ")]}" else ""
            after = r"\s*" if token in "([{" else ""
            parts.append(before + re.escape(token) + after)
    return "".join(parts)
