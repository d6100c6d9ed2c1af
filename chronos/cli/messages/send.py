"""`chronos send`: one message, or one for each line of stdin."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import msgspec
import typer

from chronos.cli.options import check_delay, check_time, check_when
from chronos.cli.output import (
    Format,
    connect,
    counted,
    given,
    local,
    note,
    printable,
    put_json,
    relative,
    worded,
)
from chronos.client import (
    Bytes,
    Client,
    LatePolicy,
    OnConflict,
    Refused,
    Rejected,
    Scheduled,
    message,
    requests,
)
from chronos.core.series import check_units, parse_repetition
from chronos.core.timefmt import format_time

LINES_TOGETHER = 1_000
"""Messages of `send --lines` in one request."""

LINES_BYTES = 4_000_000
"""Bytes of lines in one request, at least one line."""


FIELDS = {"--every": (1,), "--backoff": (3,), "--cron": (5, 6)}
"""Words of each rhythm."""

MEANT = {
    "--every": "a duration, such as 30s",
    "--backoff": "BASE FACTOR CAP, such as '1s 2 1h'",
    "--cron": "5 or 6 cron fields, such as '0 9 * * 1-5'",
}


class SeriesOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a repetition and of a spread, as they were given."""

    every: str | None
    backoff: str | None
    cron: str | None
    times: int | None
    until: str | None
    time_zone: str | None
    late_policy: LatePolicy | None
    spread: str | None

    @property
    def option(self) -> str:
        """The option of the rhythm."""
        return (
            "--every"
            if self.every is not None
            else "--backoff"
            if self.backoff is not None
            else "--cron"
        )

    def options(self) -> dict[str, Any]:
        """The same for `message`; typer.BadParameter names the option that is wrong."""
        rhythms = {"--every": self.every, "--backoff": self.backoff, "--cron": self.cron}
        given_rhythms = {
            option: f"{option[2:]} {text}" for option, text in rhythms.items() if text is not None
        }
        if len(given_rhythms) > 1:
            raise typer.BadParameter(
                f"{' and '.join(given_rhythms)} are both given; give one of them"
            )
        for option, text in given_rhythms.items():
            typed = text.removeprefix(f"{option[2:]} ")
            if len(typed.split()) not in FIELDS[option]:
                raise typer.BadParameter(f"{option}: {typed[:80]!r} is not {MEANT[option]}")
            try:
                parse_repetition(text)
                check_units(text)
            except ValueError as error:
                raise typer.BadParameter(
                    f"{option}: {str(error).replace(text[:80], typed[:80])}"
                ) from None
        bounds = {"--times": self.times, "--until": self.until, "--late-policy": self.late_policy}
        stray = next(
            (option for option, value in bounds.items() if value is not None and not given_rhythms),
            None,
        )
        if stray is not None:
            raise typer.BadParameter(f"{stray} goes with --every, --backoff or --cron")
        if self.time_zone is not None and self.cron is None:
            raise typer.BadParameter("--time-zone goes with --cron")
        check_time(self.until, "--until")
        check_delay(self.spread, "--spread")
        return {
            "repeat": next(iter(given_rhythms.values()), None),
            "repeat_times": self.times,
            "repeat_until": self.until,
            "time_zone": self.time_zone,
            "late_policy": self.late_policy,
            "spread": self.spread,
        }


class PayloadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the payload, as they were given."""

    value: str | None
    lines: bool
    null: bool


class SendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a message without those of its payload, as they were given."""

    topic: str
    delay: str | None
    at: str | None
    id: str | None
    key: str | None
    headers: list[str]
    on_conflict: OnConflict | None
    expire_at: str | None
    attempts: int | None
    series: SeriesOptions


def send(
    server: str, output: Format, payload: PayloadOptions, asked: SendOptions, *, wait: bool
) -> None:
    """Send, and print the id; with `wait` only once the shard has applied the message, and was it
    not accepted, exit code 1."""
    series, at, delay, id = asked.series, asked.at, asked.delay, asked.id
    if series.cron is None or at is not None or delay is not None:
        check_when(at, delay)
    options = series.options()
    check_time(asked.expire_at, "--expire-at")
    _check_payload(payload)
    if payload.lines and (id is not None or wait):
        raise typer.BadParameter(
            f"--lines sends several messages, and {'--wait' if wait else '--id'} is for one"
        )
    if id is not None and not id.isprintable() and isinstance(given(id), str):
        raise typer.BadParameter(
            f"--id: {printable(id)} holds a control character; write such an id as base64:..."
        )
    pairs = _headers(asked.headers)

    def made(content: Bytes) -> dict[str, Any]:
        try:
            return message(
                asked.topic,
                content,
                **options,
                deliver_at=at,
                delay=delay,
                id=None if id is None else given(id),
                key=None if asked.key is None else given(asked.key),
                headers=pairs,
                on_conflict=asked.on_conflict,
                expire_at=asked.expire_at,
                attempts=asked.attempts,
            )
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    with connect(server) as client:
        try:
            if payload.lines:
                _send_lines(client, made, output)
                return
            value = payload.value
            content: Bytes = (
                None if value is None else sys.stdin.buffer.read() if value == "-" else given(value)
            )
            found = client.call(requests.schedule(made(content)).as_json())
        except Refused as refused:
            raise worded(refused, by_delay=delay is not None, repeat=series.option) from None
        scheduled = msgspec.convert(found, Scheduled)
        _warn(dict.fromkeys(scheduled.warnings, 1))
        rejected: Rejected | None = None
        if wait:
            try:
                scheduled = client.confirm(scheduled, True, asked.on_conflict)
            except Rejected as error:
                rejected, scheduled = error, error.scheduled or scheduled
    is_upsert = scheduled.result in ("created", "unchanged", "changed")
    if output is Format.json:
        put_json(
            found
            | {"result": scheduled.result}
            | ({"due_at": format_time(requests.time_ms(scheduled.due_at))} if is_upsert else {})
            | ({} if scheduled.detail is None else {"detail": scheduled.detail})
        )
    elif rejected is None:
        print(printable(scheduled.id))
        if scheduled.result != "ignored" and sys.stderr.isatty():
            note(f"due {local(scheduled.due_at)}, {relative(scheduled.due_at)}")
    if rejected is not None:
        raise rejected
    if scheduled.result == "ignored":
        note(f"ignored: {scheduled.detail}")
    elif is_upsert:
        note(scheduled.result)
    elif wait and not scheduled.applied:
        note("accepted: it is in the log, but was not applied within 5 s; see `chronos get`")
        raise typer.Exit(1)


def _warn(texts: Mapping[str, int]) -> None:
    """Warnings on stderr, each with the number of messages that it is about if there are
    several."""
    for text, messages in texts.items():
        note(
            f"warning: {printable(text)}"
            + (f" ({counted(messages, 'message')})" if messages > 1 else "")
        )


def _check_payload(payload: PayloadOptions) -> None:
    value, lines, null = payload.value, payload.lines, payload.null
    if lines and value not in (None, "-"):
        raise typer.BadParameter("--lines reads the messages from stdin; leave out VALUE")
    if (value is not None or lines) and null:
        raise typer.BadParameter("--null sends a null payload; leave out VALUE and --lines")
    if value is None and not null and not lines:
        raise typer.BadParameter("give a VALUE, - to read it from stdin, or --null")


def _headers(given_headers: list[str]) -> dict[str, list[Bytes]]:
    """Values by name; a name that is given more than once has all its values, in order."""
    pairs: dict[str, list[Bytes]] = {}
    for each in given_headers:
        name, equals, text = each.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--header {printable(each)}: write NAME=VALUE")
        pairs.setdefault(name, []).append(given(text))
    return pairs


def _send_lines(client: Client, made: Callable[[Bytes], dict[str, Any]], output: Format) -> None:
    """All of stdin in batches; a failure comes with the number of messages sent before it."""
    sent = 0
    warnings: Counter[str] = Counter()
    with ExitStack() as stack:
        advance = _progress(stack) if sys.stderr.isatty() else lambda _: None
        try:
            for batch in _batches():
                found = client.call(requests.schedule([made(line) for line in batch]).as_json())
                sent += len(found)
                advance(len(found))
                warnings.update(text for one in found for text in one.get("warnings", ()))
                if output is Format.json:
                    for one in found:
                        put_json(one)
        except BaseException:
            note(f"{counted(sent, 'message')} {'was' if sent == 1 else 'were'} sent before this:")
            raise
    _warn(warnings)
    if output is Format.text:
        print(f"sent {counted(sent, 'message')}")


def _batches() -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    batch_bytes = 0
    for line in sys.stdin.buffer:
        stripped = line.removesuffix(b"\n").removesuffix(b"\r")
        if batch and (len(batch) >= LINES_TOGETHER or batch_bytes + len(stripped) > LINES_BYTES):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(stripped)
        batch_bytes += len(stripped)
    if batch:
        yield batch


def _progress(stack: ExitStack) -> Callable[[int], None]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.completed:,.0f} messages"),
        TextColumn("{task.speed:,.0f}/s"),
    )
    progress = stack.enter_context(
        Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
    )
    task = progress.add_task("", total=None)
    return lambda count: progress.advance(task, count)
