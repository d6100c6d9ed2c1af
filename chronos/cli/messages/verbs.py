"""The verbs about one message: get, cancel, reschedule, fire, pause and resume; and the request of
`transfer`, `forget` and `failover arm`, which concern the roles of nodes."""

from collections.abc import Iterator

import msgspec
import typer

from chronos.cli.options import ChangeOptions, check_when
from chronos.cli.output import (
    NOT_SHOWN,
    Format,
    complain,
    connect,
    fetch,
    given,
    local,
    note,
    printable,
    put,
    put_json,
    relative,
    size,
    span,
    table,
    worded,
)
from chronos.client import (
    MessageInfo,
    NotFound,
    Refused,
    Repetition,
    Result,
    ServiceFailed,
    requests,
)

ONLY_ID = {
    "cancel": requests.cancel,
    "fire": requests.fire,
    "resume": requests.resume,
}
"""The actions that need nothing but the id."""


def get(server: str, output: Format, id: str, *, payload: bool) -> None:
    """Print everything that the service knows about a message."""
    asked = requests.get(given(id), payload=payload, rejections=True)
    found = fetch(server, output, asked.as_json())
    if found is None:
        return
    put(table(None, list(_facts(msgspec.convert(found, MessageInfo), payload=payload))))
    if payload and found["target"] is None:
        note(
            "the message itself is no longer kept; that of a dead letter is in the dead-letter "
            "topic"
        )


def _facts(found: MessageInfo, *, payload: bool) -> Iterator[tuple[str, str]]:
    yield "id", printable(found.id)
    marks = [found.state, *["parked"] * found.parked, *["paused"] * found.paused]
    yield "state", ", ".join(marks)
    if found.overdue_ms is not None:
        yield "overdue", f"by {span(found.overdue_ms / 1_000)}"
    if found.waits_for is not None:
        yield "waits for", printable(found.waits_for)
    if found.reason is not None:
        yield (
            "reason",
            found.reason if found.detail is None else f"{found.reason}: {printable(found.detail)}",
        )
        yield "attempts", str(found.attempts)
        yield "last try", f"{local(found.last_try_at)}  ({relative(found.last_try_at)})"
    if found.next_try_at is not None:
        yield "next try", f"{local(found.next_try_at)}  ({relative(found.next_try_at)})"
    if found.rejection is not None:
        later = found.rejection
        yield (
            "rejected",
            f"a later record, at {local(later.at)}: {later.reason}: {printable(later.detail)}",
        )
    yield "due", f"{local(found.due_at)}  ({relative(found.due_at)})"
    if found.planned_at not in (found.due_at, found.next_try_at):
        yield "planned", f"{local(found.planned_at)}  ({relative(found.planned_at)})"
    if found.settled_at is not None:
        yield "settled", f"{local(found.settled_at)}  ({relative(found.settled_at)})"
    if found.accepted_at is not None:
        yield "accepted", f"{local(found.accepted_at)}  ({relative(found.accepted_at)})"
    if found.expire_at is not None:
        yield "expires", f"{local(found.expire_at)}  ({relative(found.expire_at)})"
    if found.target is not None:
        yield "target", found.target.topic
        key = (
            found.target.key
            if found.target.key_base64 is None
            else f"base64:{found.target.key_base64}"
        )
        if key is not None:
            yield "key", printable(key)
        for name, content in found.target.headers.items():
            for one in content if isinstance(content, list) else [content]:
                yield "header", printable(f"{name}={one if isinstance(one, str) else repr(one)}")
        if found.target.partition is not None:
            yield "partition", str(found.target.partition)
        yield "payload", "null" if found.value_bytes is None else size(found.value_bytes)
        if payload and found.value_bytes is not None:
            shown = found.value is not None or found.value_base64 is not None
            text = f"base64:{found.value_base64}" if found.value is None else printable(found.value)
            yield "value", text if shown else NOT_SHOWN
    if found.repetition is not None:
        yield "repeats", _rhythm(found.repetition)
        yield "occurrence", str(found.occurrence)
    if found.spread is not None:
        yield "spread", found.spread
    if found.attempt > 1 and found.reason is None:
        yield "attempt", str(found.attempt)
    yield "stored", f"shard {found.shard}, offset {found.offset}"


def _rhythm(repetition: Repetition) -> str:
    parts = [repetition.repeat]
    if repetition.time_zone is not None:
        parts.append(f"in {repetition.time_zone}")
    if repetition.times is not None:
        parts.append(f"{repetition.times} times")
    if repetition.until is not None:
        parts.append(f"until {local(repetition.until)}")
    return ", ".join([*parts, f"missed: {repetition.late_policy}"])


def act(server: str, output: Format, change: ChangeOptions, id: str) -> None:
    """cancel, reschedule, fire, pause or resume: exit code 0 if it was done, 1 if it was too late
    or is not applied, 4 if no message has the id."""
    named, verb, delay, at, until = given(id), change.verb, change.delay, change.at, change.until
    if verb == "reschedule":
        check_when(at, delay)
        request = requests.reschedule(named, at, delay)
    elif verb == "pause":
        request = requests.pause(named, until)
    else:
        request = ONLY_ID[verb](named)
    with connect(server) as client:
        try:
            found = client.call(request.as_json())
        except Refused as refused:
            raise worded(refused, by_delay=delay is not None) from None
    result = msgspec.convert(found, Result)
    for warning in result.warnings:
        note(f"warning: {printable(warning)}")
    if output is Format.json:
        put_json(found)
    elif result:
        print(result.result)
        if result.due_at is not None:
            begins = "paused until it is resumed, at the latest until"
            when = "goes on at" if verb != "pause" or until is not None else begins
            note(f"{when} {local(result.due_at)}  ({relative(result.due_at)})")
    if result:
        return
    if result.result == "accepted":
        note("accepted: it is in the log, but was not applied within 5 s; see `chronos get`")
        raise typer.Exit(1)
    if result.result == "unknown":
        raise NotFound(f"no message has the id {printable(id)}")
    if result.result == "too_late":
        raise ServiceFailed(f"too late: {printable(id)} is no longer pending")
    complain(f"refused: {result.detail}")
    raise typer.Exit(1)


def transfer(server: str, output: Format, path: str) -> None:
    """Ask for a hand-over, and wait until it is done."""
    with connect(server) as client:
        found = client.post(path)
    if output is Format.json:
        put_json(found)
    else:
        print(printable(f"{found['what']}: {found['result']}"))
    if found["result"] != "done" and "undrain" not in path:
        note(
            "the controller has the request, but it was not done within 10 s; see `chronos status`"
        )
