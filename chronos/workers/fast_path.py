"""The fast path of the push worker: the messages of a step that need no decision, which are nearly all."""

from collections.abc import Callable, Mapping, Sequence

from chronos.core.message import DUE_AT, ID, OCCURRENCE, SOURCE, Entry
from chronos.core.progress import Decision, Outcome
from chronos.core.wheel import Item
from chronos.ports import Outgoing
from chronos.workers.partitions import Turn
from chronos.workers.series import next_in_time


def add_plain(
    items: Sequence[Item],
    entries: Sequence[Entry],
    limits: Mapping[str, int],
    poison_offset: int | None,
    judge: Callable[[int, int, bytes, Entry], bool | None],
    decide: Callable[[int, int, Entry], None] | None,
    *,
    shard: int,
    source_prefix: bytes,
    turn: Turn,
    messages: list[Outgoing],
    due_ms: list[int],
    now_ms: int,
    decisions: list[Decision],
) -> bool:
    """Add the messages of one turn that need no decision to `messages`, and when they were due to `due_ms`; call `decide` for all
    others, or return False at the first of them if it is None. Those of a series need a decision that is always the same,
    which is added to `decisions`.

    `limits`: by target, the packed size in bytes up to which a message needs no decision. `judge`: see `StepLetters.judge`.
    """
    append, append_due = messages.append, due_ms.append
    last_ms, due, stem, next_ms = -1, b"", b"", 0
    for (at_ms, offset, data), entry in zip(items, entries, strict=True):
        if (
            len(data) > limits.get(entry.target, -1)
            or entry.expire_at_ms is not None
            or offset == poison_offset
            or entry.attempt > 1
            or type(entry.headers) is not dict
            or (entry.options is not None and (decide is None or (next_ms := next_in_time(entry, now_ms)) < 0))
        ):
            is_dead = judge(at_ms, offset, data, entry)
            if is_dead is None:
                if decide is None:
                    return False
                decide(at_ms, offset, entry)
            if is_dead is not False:
                continue
        # `message.receipt` written out: a function call and a second dict would cost 0.3 us a message of 3.3.
        if entry.due_ms != last_ms:
            last_ms = entry.due_ms
            due = b"%d" % last_ms
            stem = b"%d-%b-" % (shard, due)
        at = b"%d" % offset
        # `judge` lets no list of headers pass.
        headers: dict[str, bytes | None] = entry.headers.copy()  # type: ignore[assignment]
        headers[ID] = entry.id or stem + at
        headers[DUE_AT] = due
        headers[SOURCE] = source_prefix + at
        target, key = entry.target, entry.key
        append((target, key, entry.value, headers, turn[target] if key is None else -1))
        append_due(at_ms)
        if entry.options is not None:
            occurrence = entry.occurrence
            if occurrence > 1:
                headers[OCCURRENCE] = b"%d" % occurrence
            if next_ms:
                decisions.append(Decision(at_ms, offset, Outcome.AGAIN, 0, next_ms, occurrence + 1, 1))
    return True
