"""The verbs that ask a service: send, get, list, cancel, reschedule, fire, transfer."""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import typer

from chronos.cli.connect import connect
from chronos.cli.output import Format, complain, local, note, number, printable, put, put_json, relative, size, table
from chronos.client import Bytes, Client, MessageInfo, NotFound, Result, ServiceFailed, message

LINES_TOGETHER = 1_000
"""Messages of `send --lines` in one request."""

LINES_BYTES = 4_000_000
"""Bytes of lines in one request, at least one line."""


class Usage(typer.BadParameter):
    """The options do not go together."""


def send(
    server: str,
    output: Format,
    *,
    value: str | None,
    topic: str,
    delay: str | None,
    at: str | None,
    id: str | None,
    key: str | None,
    headers: list[str],
    on_conflict: str | None,
    expire_at: str | None,
    lines: bool,
    null: bool,
) -> None:
    """One message, or one for each line of stdin."""
    if (delay is None) == (at is None):
        raise Usage("say when: --in 90s, or --at 2030-01-31T09:00:00+01:00")
    if lines and (id is not None or value not in (None, "-")):
        raise Usage("--lines reads the messages from stdin: no VALUE, and no --id that all of them would share")
    if (value is not None or lines) and null:
        raise Usage("--null goes with no VALUE")
    if value is None and not null and not lines:
        raise Usage("give a VALUE, - to read it from stdin, or --null")
    pairs: dict[str, Bytes] = {}
    for each in headers:
        name, equals, text = each.partition("=")
        if not equals or not name:
            raise Usage(f"--header {each}: write NAME=VALUE")
        pairs[name] = text

    def made(content: Bytes) -> dict[str, Any]:
        try:
            return message(
                topic, content, at=at, delay=delay, id=id, key=key, headers=pairs, on_conflict=on_conflict,
                expire_at=expire_at,
            )  # fmt: skip
        except ValueError as error:
            raise Usage(str(error)) from None

    with connect(server) as client:
        if lines:
            _send_lines(client, made, output)
            return
        content: Bytes = None if null else sys.stdin.buffer.read() if value == "-" else value
        done = client.schedule_many([made(content)])[0]
    if output is Format.json:
        put_json(done)
    else:
        print(done.id)
        if sys.stderr.isatty():
            note(f"due {local(done.due_at)}, {relative(done.due_at)}")


def _send_lines(client: Client, made: Any, output: Format) -> None:
    """All of stdin in batches; what was sent before a failure is said."""
    from contextlib import ExitStack

    sent = 0
    with ExitStack() as stack:
        advance = _progress(stack) if sys.stderr.isatty() else lambda _: None
        try:
            for batch in _batches():
                done = client.schedule_many([made(line) for line in batch])
                sent += len(done)
                advance(len(done))
                if output is Format.json:
                    for one in done:
                        put_json(one)
        except BaseException:
            note(f"{number(sent)} messages were sent before this:")
            raise
    if output is Format.text:
        print(f"sent {number(sent)} messages")


def _batches() -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    weight = 0
    for line in sys.stdin.buffer:
        stripped = line.removesuffix(b"\n").removesuffix(b"\r")
        if batch and (len(batch) >= LINES_TOGETHER or weight + len(stripped) > LINES_BYTES):
            yield batch
            batch, weight = [], 0
        batch.append(stripped)
        weight += len(stripped)
    if batch:
        yield batch


def _progress(stack: Any) -> Any:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} messages"), TextColumn("{task.speed:,.0f}/s"))
    progress = stack.enter_context(
        Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
    )
    task = progress.add_task("", total=None)
    return lambda count: progress.advance(task, count)


def get(server: str, output: Format, id: str) -> None:
    """Everything known of a message."""
    with connect(server) as client:
        found = client.get(id)
    if output is Format.json:
        put_json(found)
        return
    put(table(None, list(_facts(found))))


def _facts(found: MessageInfo) -> Iterator[tuple[str, str]]:
    yield "id", printable(found.id)
    yield "state", found.state
    yield "due", f"{local(found.due_at)}  ({relative(found.due_at)})"
    if found.planned_at != found.due_at:
        yield "planned", f"{local(found.planned_at)}  ({relative(found.planned_at)})"
    if found.settled_at is not None:
        yield "settled", f"{local(found.settled_at)}  ({relative(found.settled_at)})"
    if found.accepted_at is not None:
        yield "accepted", f"{local(found.accepted_at)}  ({relative(found.accepted_at)})"
    if found.expire_at is not None:
        yield "expires", f"{local(found.expire_at)}  ({relative(found.expire_at)})"
    if found.target is not None:
        yield "target", found.target.topic
        key = found.target.key if found.target.key_base64 is None else f"base64:{found.target.key_base64}"
        if key is not None:
            yield "key", printable(key)
        for name, content in found.target.headers.items():
            yield "header", printable(f"{name}={content if isinstance(content, str) else repr(content)}")
        yield "payload", "null" if found.value_bytes is None else size(found.value_bytes)
    if found.occurrence > 1:
        yield "occurrence", str(found.occurrence)
    if found.attempt > 1:
        yield "attempt", str(found.attempt)
    yield "stored", f"shard {found.shard}, offset {found.offset}"


def list_(
    server: str, output: Format, *, target: str | None, due_from: str | None, due_to: str | None, limit: int
) -> None:
    """Pending messages, as many as wanted."""
    with connect(server) as client:
        try:
            found = list(islice(client.pending(target=target, due_from=due_from, due_to=due_to), limit + 1))
        except ValueError as error:
            raise Usage(str(error)) from None
    more = len(found) > limit
    del found[limit:]
    if output is Format.json:
        put_json({"messages": found, "more": more})
        return
    if not found:
        note("nothing is pending")
        return
    rows = [
        [local(one.planned_at), relative(one.planned_at), one.target.topic if one.target else "-", printable(one.id),
         size(one.value_bytes)]
        for one in found
    ]  # fmt: skip
    put(table([("DUE", "left"), ("", "right"), ("TARGET", "left"), ("ID", "left"), ("SIZE", "right")], rows))
    if more:
        note(f"there are more; show them with -n {limit * 10}")


def act(server: str, output: Format, verb: str, id: str, *, delay: str | None = None, at: str | None = None) -> None:
    """cancel, reschedule or fire: exit code 0 when it was done, 1 too late, 4 unknown."""
    if verb == "reschedule" and (delay is None) == (at is None):
        raise Usage("say when: --in 90s, or --at 2030-01-31T09:00:00+01:00")
    with connect(server) as client:
        try:
            done: Result = (
                client.cancel(id) if verb == "cancel"
                else client.fire(id) if verb == "fire"
                else client.reschedule(id, at=at, delay=delay)
            )  # fmt: skip
        except ValueError as error:
            raise Usage(str(error)) from None
    if output is Format.json:
        put_json(done)
    elif done:
        print(done.result)
    if done:
        return
    if done.result == "accepted":
        note("accepted: it is in the log, but was not applied within 5 s; `chronos get` will show")
        return
    if done.result == "unknown":
        raise NotFound(f"no message has the id {printable(id)}")
    if done.result == "too_late":
        raise ServiceFailed(f"too late: {printable(id)} is pending no more")
    complain(f"refused: {done.detail}")
    raise typer.Exit(1)


def transfer(server: str, output: Format, path: str) -> None:
    """Ask for a hand-over, and wait until it is done."""
    with connect(server) as client:
        found = client.post(path)
    if output is Format.json:
        put_json(found)
    else:
        print(f"{found['what']}: {found['result']}")
    if found["result"] != "done" and "undrain" not in path:
        note("asked for, but not done within 10 s; `chronos status` will show")
