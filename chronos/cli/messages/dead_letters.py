"""`chronos dead-letters`: list, show, replay and discard, with their options and help; and what
`rejected` uses too: options of the filter, the reading of pages, and the lines about headers and
payloads."""

import base64
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, cast

import msgspec
import typer

from chronos.cli.options import HERE, Output, Server, at_least, confirm, moment, with_connection
from chronos.cli.output import (
    NOT_SHOWN,
    Format,
    connect,
    counted,
    fetch,
    given,
    local,
    note,
    number,
    printable,
    put,
    put_json,
    relative,
    size,
    table,
)
from chronos.client import (
    Client,
    DeadLetterRefusal,
    DeadLetterTotals,
    NotFound,
    WholeDeadLetter,
    dead_letters,
    requests,
)
from chronos.client.dead_letters import PAGE_LETTERS, DeadLetterFilter, Position, Verb
from chronos.core.timefmt import format_time

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TOPIC",
        help="Only messages for this topic, or for a pattern such as 'mail*'.",
    ),
]
ReasonOption = Annotated[
    str | None,
    typer.Option(
        "--reason", metavar="REASON", help="Only those with this reason, such as target-missing."
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Only those written at or after this time: RFC 3339, or -2h, now.",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until", metavar="TIME", help="Only those written before this time; the same forms."
    ),
]
OneId = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="The id of a message: its newest dead letter."),
]
POSITION = typer.Option(
    "--position",
    metavar="PARTITION:OFFSET",
    help="The dead letter at this position, as `list` shows it: an id may have several.",
)
OnePosition = Annotated[str | None, POSITION]
Positions = Annotated[list[str] | None, POSITION]
All = Annotated[bool, typer.Option("--all", help="All dead letters that are not resolved.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count them, by reason and target.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

dead_letters_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List, show, replay or discard the messages that could not be delivered.

    A dead letter is resolved once it was replayed or discarded. Its record stays in the dead-letter topic.

    \b
    Examples:
      chronos dead-letters list
      chronos dead-letters replay --target orders --reason target-missing --dry-run
    """,  # noqa: E501
)

SHOWN_CHARACTERS = 1_000
"""Characters of a payload that are shown."""

RETRIES = 6
"""Repetitions of one part, within about 6 s: a long replay outlasts a short failure of the log."""

LINE_EVERY_S = 2.0
"""Seconds between two lines of progress where stderr is not a terminal."""

DONE = {"replay": "replayed", "discard": "discarded"}


@dead_letters_app.command(name="list")
@with_connection
def list_letters(
    target: Target = None,
    reason: ReasonOption = None,
    since: Since = None,
    until: Until = None,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Also those that were replayed or discarded.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            "-n", "--limit", callback=at_least(1), metavar="N", help="Show at most N dead letters."
        ),
    ] = 50,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """List dead letters, the newest first.

    \b
    Examples:
      chronos dead-letters list
      chronos dead-letters list --target orders --since -2h
      chronos dead-letters list --reason expired -n 500 -o json
    """
    with connect(server) as client:
        filter_ = _filter(target=target, reason=reason, since=since, until=until)

        def page(letters: int, after: str | None) -> dict[str, Any]:
            asked = dead_letters.page(filter_, resolved=resolved, limit=letters, after=after)
            answer: dict[str, Any] = client.call(asked.as_json())
            return answer

        letters, after, records = read_pages(page, "letters", limit)
    if output is Format.json:
        put_json({"letters": letters, "after": after, "records": records})
        return
    if letters:
        headings = (
            *("DEAD", "", "REASON", "TARGET", "ID", "POSITION", "SIZE"),
            "RESOLVED" if resolved else "",
        )
        put(table([(heading, "left") for heading in headings], [_row(one) for one in letters]))
    else:
        note(f"no dead letters{'' if resolved else ' that are not resolved'}; {_read(records)}")
    note_more(after, limit)


@dead_letters_app.command(name="show")
@with_connection
def show_letter(
    id: OneId = None,
    position: OnePosition = None,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Show the newest dead letter of a message, or the one at a position, with its payload. Exit
    code 4 if there is none.

    \b
    Examples:
      chronos dead-letters show reminder-17
      chronos dead-letters show --position 0:4711
    """
    if id is not None and position is None:
        asked = dead_letters.get(given(id))
    elif id is None and position is not None:
        asked = dead_letters.at(_position(position))
    else:
        raise typer.BadParameter("give an ID, or --position")
    found = fetch(server, output, asked.as_json())
    if found is None:
        return
    put(table(None, list(_facts(msgspec.convert(found, WholeDeadLetter)))))


@dead_letters_app.command(name="replay")
@with_connection
def replay_letters(
    id: OneId = None,
    position: Positions = None,
    target: Target = None,
    reason: ReasonOption = None,
    since: Since = None,
    until: Until = None,
    all_: All = False,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", help="At most N dead letters a second.", min=0.1),
    ] = None,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway",
            help="Replay also those whose cause is still there: they will fail again. Not those "
            "that targets.allow and targets.deny forbid: Chronos would refuse their records.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Schedule dead letters again, due at once, the oldest first. Correct the cause before.

    Those whose cause is still there, because the target is missing or forbidden, or takes neither
    their size nor a message without a key, are named and left as they are. Counts all first and
    asks. A replayed message keeps its id, target and headers, and has the header chronos-replayed.
    A command that was stopped or killed can be repeated: nothing is delivered twice. Exit code 4 if
    no dead letter has the id or the position, 1 if some cannot be replayed.

    \b
    Examples:
      chronos dead-letters replay reminder-17
      chronos dead-letters replay --position 0:4711 --position 2:17
      chronos dead-letters replay --target orders --reason target-missing --dry-run
      chronos dead-letters replay --target orders --since -2h --rate 500 --yes
      chronos dead-letters replay --all
    """
    _resolve(
        server,
        output,
        "replay",
        id=id,
        positions=position or [],
        target=target,
        reason=reason,
        since=since,
        until=until,
        all=all_,
        rate=rate,
        dry_run=dry_run,
        yes=yes,
        anyway=anyway,
    )


@dead_letters_app.command(name="discard")
@with_connection
def discard_letters(
    id: OneId = None,
    position: Positions = None,
    target: Target = None,
    reason: ReasonOption = None,
    since: Since = None,
    until: Until = None,
    all_: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Mark dead letters as discarded: they are no longer listed or replayed. Counts them first and
    asks.

    \b
    Examples:
      chronos dead-letters discard reminder-17
      chronos dead-letters discard --position 0:4711
      chronos dead-letters discard --reason expired --until -7d --yes
    """
    _resolve(
        server,
        output,
        "discard",
        id=id,
        positions=position or [],
        target=target,
        reason=reason,
        since=since,
        until=until,
        all=all_,
        rate=None,
        dry_run=dry_run,
        yes=yes,
    )


def read_pages(
    ask: Callable[[int, str | None], dict[str, Any]], name: str, limit: int
) -> tuple[list[dict[str, Any]], str | None, int]:
    """At most `limit` letters of as many pages as that takes, the key of the next page, and the
    number of records read.

    `ask`: returns a page of at most so many letters, after a key. `name`: of the letters in it.
    """
    found: list[dict[str, Any]] = []
    after, records = None, 0
    while len(found) < limit:
        page = ask(min(PAGE_LETTERS, limit - len(found)), after)
        found += page[name]
        after, records = page["after"], records + page["records"]
        if after is None:
            break
    return found, after, records


def note_more(after: str | None, limit: int) -> None:
    """Say how more letters are shown, if there may be more."""
    if after is not None:
        note(
            f"there may be more; show them with -n {limit * 10}, or --until the time of the last "
            "one"
        )


def header_facts(headers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """One row for each header."""
    for name, content in headers.items():
        for one in content if isinstance(content, list) else [content]:
            yield "header", printable(f"{name}={one if isinstance(one, str) else repr(one)}")


def payload_facts(
    value_bytes: int | None, value: str | None, value_base64: str | None
) -> Iterator[tuple[str, str]]:
    """The size of a payload and its beginning; neither `value` nor `value_base64`: it is not
    shown."""
    yield "payload", "null" if value_bytes is None else size(value_bytes)
    if value_bytes:
        text = value if value_base64 is None else str(base64.b64decode(value_base64))
        yield "", NOT_SHOWN if text is None else printable(text[:SHOWN_CHARACTERS])


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    return (
        local(one["dead_at"]),
        relative(one["dead_at"]),
        printable(one["reason"]),
        printable(one["topic"]) or "-",
        printable(one["id"]) or "-",
        f"{one['partition']}:{one['offset']}",
        size(one["value_bytes"]),
        one.get("resolution", ""),
    )


def _position(text: str) -> Position:
    partition, _, offset = text.partition(":")
    if not (partition.isdecimal() and offset.isdecimal() and text.isascii()):
        raise typer.BadParameter(
            f"--position {printable(text)}: write PARTITION:OFFSET, such as 0:4711"
        )
    return int(partition), int(offset)


def _facts(found: WholeDeadLetter) -> Iterator[tuple[str, str]]:
    yield "id", printable(found.id) or "-"
    yield "reason", printable(found.reason)
    yield "detail", printable(found.detail)
    yield "resolved", found.resolution or "no"
    yield "dead", f"{local(found.dead_at)}  ({relative(found.dead_at)})"
    yield (
        "due",
        "-" if found.due_at is None else f"{local(found.due_at)}  ({relative(found.due_at)})",
    )
    yield "target", printable(found.topic) or "-"
    key = (
        found.target.key if found.target.key_base64 is None else f"base64:{found.target.key_base64}"
    )
    if key is not None:
        yield "key", printable(key)
    yield from header_facts(found.target.headers)
    yield "attempt", str(found.attempt)
    if found.occurrence > 1:
        yield "occurrence", str(found.occurrence)
    yield "source", printable(found.source)
    if found.replayed is not None:
        yield "replay of", printable(found.replayed)
    yield "stored", f"partition {found.partition}, offset {found.offset} of the dead-letter topic"
    yield from payload_facts(found.value_bytes, found.value, found.value_base64)


def _resolve(
    server: str,
    output: Format,
    verb: Verb,
    *,
    id: str | None,
    positions: list[str],
    all: bool,
    rate: float | None,
    dry_run: bool,
    yes: bool,
    anyway: bool = False,
    **which: str | None,
) -> None:
    """1. count, 2. ask, 3. replay or discard part by part."""
    filter_ = _filter(**which)
    if (id is not None) + bool(positions) + all + bool(filter_) != 1:
        raise typer.BadParameter(
            "give an ID, or --position, or a filter (--target, --reason, --since, --until), or "
            "--all"
        )
    if rate is not None and not math.isfinite(rate):
        raise typer.BadParameter(f"--rate: {rate:g} is not a number of dead letters a second")
    places = [_position(text) for text in positions]
    is_named = id is not None or bool(places)
    named = None if id is None else given(id)
    if not is_named and "until" not in filter_:
        # What fails after the count was not shown.
        filter_ = _filter(**which | {"until": format_time(time.time_ns() // 1_000_000)})
        all = False
    with connect(server) as client:
        steps = partial(
            dead_letters.resolve_all, verb, filter_, id=named, positions=places, all=all
        )
        shown = _LetterProgress("counted")
        count = _run(client, steps(dry_run=True, progress=shown), shown)
        if is_named and not count.matched:
            what = f"at {', '.join(positions)}" if id is None else f"of {printable(id)}"
            raise NotFound(f"no dead letter {what} that is not resolved; {_read(count.records)}")
        if (gone := len(set(places)) - count.matched) > 0:
            note(f"{counted(gone, 'position')} without a dead letter that is not resolved")
        if output is Format.text and (dry_run or not is_named):
            _put_counts(count)
        _tell_refused(count.refused, anyway=anyway, done=False)
        if dry_run or not count.matched:
            if output is Format.json:
                put_json(count)
            return
        stays = [each.letters for each in count.refused if each.final or not anyway]
        left = count.matched - sum(stays)
        if not left:
            if output is Format.json:
                put_json(count)
            else:
                print(f"0 dead letters {DONE[verb]}")
            raise typer.Exit(1)
        if not is_named:
            question = f"{verb} {counted(left, 'dead letter')}?"
            confirm(question, yes=yes, shown="counts", done=DONE[verb])
    with connect(server, RETRIES) as client:
        shown = _LetterProgress(DONE[verb], count.matched)
        done = _run(client, steps(rate=rate, anyway=anyway, progress=shown), shown)
    if output is Format.json:
        put_json(done)
    else:
        print(f"{counted(done.resolved, 'dead letter')} {DONE[verb]}")
    # With --anyway, those that were told before the question are not told again.
    told = count.refused if anyway else ()
    _tell_refused([each for each in done.refused if each not in told], anyway=anyway, done=True)
    if done.refused:
        raise typer.Exit(1)


def _tell_refused(refusals: Sequence[DeadLetterRefusal], *, anyway: bool, done: bool) -> None:
    """Dead letters that cannot be replayed, and those that would fail again, with the reasons;
    `anyway`: the latter are replayed. `done`: after the replay. On stderr."""
    again = "will fail again" if anyway else "would fail again"
    for refused in sorted(refusals, key=lambda each: not each.final):
        what = "cannot be replayed" if refused.final else again
        note(
            f"{counted(refused.letters, 'dead letter')} {what}: {refused.reason}; the first is"
            f" {printable(refused.id) or 'without an id'}: {printable(refused.detail)}"
        )
    if not (anyway or done) and any(not refused.final for refused in refusals):
        note("remove the cause first; --anyway replays them all the same")


def _run(
    client: Client, steps: requests.Steps[DeadLetterTotals], shown: "_LetterProgress"
) -> DeadLetterTotals:
    """Run all parts; an interrupt ends the command between two of them or within one."""
    try:
        return client.run(steps)
    except KeyboardInterrupt:
        shown.end()
        note("stopped; the command can be repeated")
        raise typer.Exit(130) from None
    finally:
        shown.end()


def _read(records: int) -> str:
    return f"{counted(records, 'record')} of the topic read"


def _put_counts(count: DeadLetterTotals) -> None:
    rows = [
        (printable(each.reason), printable(each.topic) or "-", number(each.letters))
        for each in count.counts
    ]
    if rows:
        put(table([("REASON", "left"), ("TARGET", "left"), ("DEAD LETTERS", "right")], rows))
        sys.stdout.flush()
    else:
        note(f"no dead letters that are not resolved; {_read(count.records)}")


def _filter(**which: str | None) -> DeadLetterFilter:
    """The filter of the options that were given."""
    found: dict[str, Any] = {
        "target": which["target"],
        "reason": which["reason"],
        "since": moment(which["since"], "--since"),
        "until": moment(which["until"], "--until"),
    }
    filter_ = cast(
        DeadLetterFilter, {name: value for name, value in found.items() if value is not None}
    )
    try:
        dead_letters.fields(filter_)
    except ValueError as error:
        raise typer.BadParameter(
            str(error).replace("until", "--until").replace("since", "--since")
        ) from None
    return filter_


class _LetterProgress:
    """Shows the totals so far on stderr: one line that changes on a terminal, elsewhere a line now
    and then."""

    def __init__(self, done: str, total: int | None = None) -> None:
        self._done = done
        self._total = total
        self._began_s = self._shown_s = time.monotonic()

    def __call__(self, totals: DeadLetterTotals) -> None:
        now_s = time.monotonic()
        is_terminal = sys.stderr.isatty()
        if not is_terminal and now_s - self._shown_s < LINE_EVERY_S:
            return
        self._shown_s = now_s
        seconds = now_s - self._began_s
        count = totals.resolved if self._total is not None else totals.matched
        of = "" if self._total is None else f" of {number(max(self._total, count))}"
        rate = f", {number(round(count / seconds))}/s" if seconds >= 1 else ""
        text = f"{number(count)}{of} {self._done}, {counted(totals.records, 'record')} read{rate}"
        if is_terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        else:
            note(text)

    def end(self) -> None:
        """Leave the line."""
        if sys.stderr.isatty() and self._shown_s > self._began_s:
            print(file=sys.stderr)
            self._shown_s = self._began_s
