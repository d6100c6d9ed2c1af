"""Control headers for programs that write to the delay topic with a Kafka producer."""

from collections.abc import Mapping

from chronos.client.models import Action, LatePolicy, OnConflict
from chronos.client.requests import Bytes, check_rhythm, is_cron
from chronos.client.times import Delay, Time, delay_ms, time_ms
from chronos.core.message import (
    ACTION,
    ATTEMPTS,
    CONFLICT_POLICIES,
    DELAY,
    DELIVER_AT,
    EXPIRE_AT,
    LATE_POLICIES,
    LATE_POLICY,
    ON_CONFLICT,
    REPEAT,
    REPEAT_TIMES,
    REPEAT_UNTIL,
    SPREAD,
    TARGET_KEY,
    TARGET_TOPIC,
    TIME_ZONE,
    VERBS,
)
from chronos.core.repetition import parse_repetition


def headers(
    *,
    target: str | None = None,
    deliver_at: Time | None = None,
    delay: Delay | None = None,
    key: Bytes = None,
    action: Action | None = None,
    on_conflict: OnConflict | None = None,
    expire_at: Time | None = None,
    attempts: int | None = None,
    repeat: str | None = None,
    repeat_times: int | None = None,
    repeat_until: Time | None = None,
    time_zone: str | None = None,
    late_policy: LatePolicy | None = None,
    spread: Delay | None = None,
) -> list[tuple[str, bytes]]:
    """Control headers for a record of the delay topic; the record's key is the message's id.

    `target` is the topic to deliver to, `deliver_at` or `delay` the due time, `key` the Kafka key of the delivered
    message. `repeat` makes it a series: `every 30s`, `backoff 1s 2 1h`, or `cron 0 9 * * 1-5`, which needs no due time; see
    `chronos.message` for the rest. Raises ValueError for mistakes that Chronos would refuse: a `datetime` without zone, an
    unknown action, both times. Cron expressions and time zones are checked by the service.
    """
    if deliver_at is not None and delay is not None:
        raise ValueError("give deliver_at or delay, not both")
    if action is not None and action.encode() not in VERBS:
        raise ValueError(f"action {action!r} is not valid; use one of {_words(VERBS)}")
    if on_conflict is not None and on_conflict.encode() not in CONFLICT_POLICIES:
        raise ValueError(f"on_conflict {on_conflict!r} is not valid; use one of {_words(CONFLICT_POLICIES)}")
    found: list[tuple[str, bytes]] = []
    if action is not None:
        found.append((ACTION, action.encode()))
    if action in (None, "schedule", "replace"):
        if target is None:
            raise ValueError("target is missing: the topic to deliver to")
        if deliver_at is None and delay is None and not is_cron(repeat):
            raise ValueError("give deliver_at or delay: when to deliver")
    if deliver_at is not None:
        found.append((DELIVER_AT, b"%d" % time_ms(deliver_at)))
    if delay is not None:
        found.append((DELAY, b"%d" % delay_ms(delay)))
    if target is not None:
        found.append((TARGET_TOPIC, target.encode()))
    if key is not None:
        found.append((TARGET_KEY, key.encode() if isinstance(key, str) else key))
    if on_conflict is not None:
        found.append((ON_CONFLICT, on_conflict.encode()))
    if expire_at is not None:
        found.append((EXPIRE_AT, b"%d" % time_ms(expire_at)))
    if attempts is not None:
        found.append((ATTEMPTS, b"%d" % attempts))
    return found + _series(repeat, repeat_times, repeat_until, time_zone, late_policy, spread)


def _series(
    repeat: str | None,
    repeat_times: int | None,
    repeat_until: Time | None,
    time_zone: str | None,
    late_policy: LatePolicy | None,
    spread: Delay | None,
) -> list[tuple[str, bytes]]:
    if repeat is not None:
        check_rhythm(repeat)
        parse_repetition(repeat)
    elif any(option is not None for option in (repeat_times, repeat_until, time_zone, late_policy)):
        raise ValueError("repeat_times, repeat_until, time_zone and late_policy go with repeat")
    if late_policy is not None and late_policy.encode() not in LATE_POLICIES:
        raise ValueError(f"late_policy {late_policy!r} is not valid; use one of {_words(LATE_POLICIES)}")
    texts = (
        (REPEAT, repeat),
        (REPEAT_TIMES, repeat_times),
        (REPEAT_UNTIL, None if repeat_until is None else time_ms(repeat_until)),
        (TIME_ZONE, time_zone),
        (LATE_POLICY, late_policy),
        (SPREAD, None if spread is None else delay_ms(spread)),
    )
    return [(name, str(text).encode()) for name, text in texts if text is not None]


def _words(table: Mapping[bytes, object]) -> str:
    return ", ".join(word.decode() for word in table)
