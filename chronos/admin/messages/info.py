"""A message as look-ups and lists show it: its fields, its state, and why it was not delivered.

It reads no store and asks no node: `Messages` and `Listing` give it what was found."""

from collections.abc import Callable
from contextlib import suppress

from msgspec import UNSET

from chronos.admin.http.encoding import (
    headers_out,
    id_text,
    text_or_base64,
)
from chronos.admin.http.schemas import (
    Destination,
    MessageInfo,
    Repeats,
)
from chronos.core.cron import next_cron
from chronos.core.keys import partition_of
from chronos.core.message import LATE_POLICIES, Entry, Options, Reason
from chronos.core.query.lookup import FoundMessage
from chronos.core.series import (
    expires_ms,
    format_repetition,
    is_paused,
)
from chronos.core.shard.codec import Failure
from chronos.core.timefmt import format_duration, format_time
from chronos.core.values import label_of


def message_info(
    message_id: bytes, shard: int, offset: int, place_ms: int, entry: Entry | None
) -> MessageInfo:
    """A message as the API shows it, as a pending one."""
    answer = MessageInfo(
        id=id_text(message_id),
        state="pending",
        shard=shard,
        offset=offset,
        due_at=format_time(place_ms if entry is None else entry.due_ms),
        planned_at=format_time(place_ms),
        settled_at=None,
    )
    if entry is None:
        return answer
    key, key_base64 = text_or_base64(entry.key)
    answer.target = Destination(
        topic=entry.target,
        key=UNSET if key is None else key,
        key_base64=key_base64,
        headers=headers_out(entry.headers) if entry.headers else UNSET,
    )
    answer.accepted_at = format_time(entry.timestamp_ms)
    expire_at_ms = expires_ms(entry)
    answer.expire_at = None if expire_at_ms is None else format_time(expire_at_ms)
    answer.occurrence, answer.attempt = entry.occurrence, entry.attempt
    if entry.options is not None and entry.options.attempts_max:
        answer.attempts_max = entry.options.attempts_max
    answer.value_bytes = None if entry.value is None else len(entry.value)
    if entry.options is not None:
        _show_options(answer, entry.options)
    return answer


def _show_options(answer: MessageInfo, options: Options) -> None:
    answer.spread = format_duration(options.spread_ms) if options.spread_ms else None
    repetition = options.repetition
    if repetition is not None:
        answer.repetition = Repeats(
            repeat=format_repetition(repetition),
            times=repetition.times or None,
            until=format_time(repetition.until_ms) if repetition.until_ms else None,
            time_zone=repetition.zone or None,
            late_policy=label_of(LATE_POLICIES, repetition.late_policy),  # type: ignore[arg-type]
        )


def tell_pause(answer: MessageInfo, entry: Entry | None, now_ms: int) -> None:
    """Add whether a pending series is paused. A node without its time zone does not know it."""
    if entry is not None:
        with suppress(ValueError):
            answer.paused = is_paused(entry, now_ms, next_cron)


def tell_state(
    answer: MessageInfo, found: FoundMessage, *, partitions_of: Callable[[str], int | None]
) -> None:
    """Add the state of a message that was looked up, and why it was not delivered.

    `partitions_of`: returns the number of partitions of a target topic, if it is known.
    """
    answer.state = found.state  # type: ignore[assignment]
    answer.settled_at = None if found.settled_ms is None else format_time(found.settled_ms)
    answer.parked = found.lane is not None
    is_waiting = found.settled_ms is None and found.lane is None
    tell_failure(answer, found.failure, is_waiting=is_waiting)
    entry = found.entry
    if answer.target is None or entry is None or entry.key is None:
        return
    if found.lane is not None and found.lane[1] >= 0:
        answer.target.partition = found.lane[1]
    elif (partitions := partitions_of(entry.target)) is not None:
        answer.target.partition = partition_of(entry.key, partitions)


def tell_failure(answer: MessageInfo, failure: Failure | None, *, is_waiting: bool) -> None:
    """Add why the message was not delivered when it was last tried.

    `is_waiting`: it is tried again at the time of its position.
    """
    if failure is None:
        return
    answer.reason, answer.detail = Reason(failure.reason).label, failure.detail or None
    answer.attempts, answer.last_try_at = failure.attempts, format_time(failure.tried_ms)
    if is_waiting:
        answer.next_try_at = answer.planned_at
