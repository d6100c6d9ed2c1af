"""Control headers for programs that write to the delay topic with a Kafka producer.

Headers that the service would refuse with any configuration, id and payload are refused here, by
the parser of the service. Nothing is sent."""

import time

from chronos.client.models import Action, LatePolicy, OnConflict
from chronos.client.requests import Bytes, Delay, Time, delay_text, time_ms
from chronos.core.cron import next_cron
from chronos.core.message import (
    ACTION,
    ATTEMPTS,
    CALL,
    DELAY,
    DELIVER_AT,
    EXPIRE_AT,
    LATE_POLICY,
    ON_CONFLICT,
    REPEAT,
    REPEAT_TIMES,
    REPEAT_UNTIL,
    SPREAD,
    TARGET_KEY,
    TARGET_TOPIC,
    TIME_ZONE,
    Record,
    Rejection,
)
from chronos.core.series import check_units
from chronos.core.shard.parsing import parse
from chronos.core.shard.rules import NO_LIMIT_MS, Rules

ARGUMENTS = {
    REPEAT_TIMES: "repeat_times",
    REPEAT_UNTIL: "repeat_until",
    REPEAT: "repeat",
    ACTION: "action",
    ATTEMPTS: "attempts",
    DELAY: "delay",
    DELIVER_AT: "deliver_at",
    EXPIRE_AT: "expire_at",
    LATE_POLICY: "late_policy",
    ON_CONFLICT: "on_conflict",
    SPREAD: "spread",
    CALL: "call",
    TARGET_KEY: "key",
    TARGET_TOPIC: "target",
    TIME_ZONE: "time_zone",
}
"""The argument from which a header is made; a header comes before one with which its own name
begins."""


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
    call: Bytes = None,
) -> list[tuple[str, bytes]]:
    """Control headers for a record of the delay topic; the record's key is the message's id.

    `target` is the topic to deliver to, `deliver_at` or `delay` the due time, `key` the Kafka key
    of the delivered message. `repeat` makes it a series: `every 30s`, `backoff 1s 2 1h`, or `cron 0
    9 * * 1-5`, which needs no due time; see `chronos.message` for the rest. `call` names the call,
    the same in every record that repeats it. Raises ValueError for
    what Chronos would refuse whatever its configuration: the service's own parser reads the
    headers."""
    if repeat is not None:
        check_units(repeat)
    texts = (
        (ACTION, action),
        (DELIVER_AT, None if deliver_at is None else time_ms(deliver_at)),
        (DELAY, None if delay is None else delay_text(delay)),
        (TARGET_TOPIC, target),
        (TARGET_KEY, key),
        (ON_CONFLICT, on_conflict),
        (EXPIRE_AT, None if expire_at is None else time_ms(expire_at)),
        (ATTEMPTS, attempts),
        (REPEAT, repeat),
        (REPEAT_TIMES, repeat_times),
        (REPEAT_UNTIL, None if repeat_until is None else time_ms(repeat_until)),
        (TIME_ZONE, time_zone),
        (LATE_POLICY, late_policy),
        (SPREAD, None if spread is None else delay_text(spread)),
        (CALL, call),
    )
    found = [
        (name, text if isinstance(text, bytes) else str(text).encode())
        for name, text in texts
        if text is not None
    ]
    # Any id and payload: those of the record are not known here.
    record = Record(0, time.time_ns() // 1_000_000, b"id", b"", found)
    rules = Rules(shard=0, shards=1, max_delay_ms=NO_LIMIT_MS, next_cron=next_cron)
    refused = parse(record, rules)
    if type(refused) is Rejection:
        detail = refused.detail
        for header, argument in ARGUMENTS.items():
            detail = detail.replace(header, argument)
        raise ValueError(detail)
    return found
