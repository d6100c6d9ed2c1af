"""What an answer shows to its sender: every answer passes here on its way out.

Payloads and headers are shown only with the role `payload`, and the names of targets only to a sender whose own they are.
"""

import re
from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from chronos.admin import schemas
from chronos.admin.context import without_names
from chronos.admin.tokens import Sender
from chronos.core.reach import Reach

TARGET_LABEL = re.compile(rb'\{(?:target|topic)="([^"]*)"')
"""The first label of the samples of one target."""


def shown(answer: object, sender: Sender) -> object:
    """The answer as its sender may see it; the same object."""
    if not sender.sees_payloads:
        _each(answer, _without_payload)
    if sender.is_limited and isinstance(answer, schemas.Shards):
        for shard in answer.shards:
            _leave_own_cases(shard, sender.reach)
            if shard.waits_for is not None:
                shard.waits_for = without_names(shard.waits_for)
    return answer


def own_samples(exposition: bytes, reach: Reach) -> bytes:
    """The metrics without the samples of targets that are not the sender's own."""
    if not reach.is_limited:
        return exposition
    kept = (
        line
        for line in exposition.splitlines(keepends=True)
        if (found := TARGET_LABEL.search(line)) is None or reach.admits_target(found[1].decode())
    )
    return b"".join(kept)


def _each(answer: object, hide: Callable[[Any], None]) -> None:
    """Call it with each value that may hold a payload."""
    match answer:
        case schemas.Page():
            for message in answer.messages:
                hide(message)
        case schemas.Records():
            for record in answer.records:
                hide(record)
        case schemas.MessageInfo() | schemas.DeadLetter() | schemas.RejectedRecord():
            hide(answer)


def _without_payload(
    holder: schemas.MessageInfo | schemas.DeadLetter | schemas.RejectedRecord | schemas.LogRecord,
) -> None:
    holder.value = holder.value_base64 = UNSET
    if isinstance(holder, schemas.LogRecord | schemas.RejectedRecord):
        holder.headers = UNSET
    elif holder.target is not None:
        holder.target.headers = UNSET


def _leave_own_cases(shard: schemas.Shard, reach: Reach) -> None:
    """Leave only its own targets among the messages that died, and among records without a unit."""
    if shard.unitless is not None:
        shard.unitless = {name: count for name, count in shard.unitless.items() if reach.admits_target(name)} or None
    dead = shard.dead_recently
    if dead is None:
        return
    dead.cases = [case for case in dead.cases if reach.admits_target(case.target)]
    dead.messages = sum(case.messages for case in dead.cases)
    dead.text = f"{dead.messages:,} messages for targets of this token were dead-lettered in the last 10 min"
    if not dead.cases:
        shard.dead_recently = None
