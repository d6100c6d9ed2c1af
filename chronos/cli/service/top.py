"""`chronos top`: the state of a service on a screen that is refreshed; with `--once`, or where
stdout is no terminal, it is printed once.

    _Asking (a thread) -> View -> screen (a pure function) -> terminal

Most texts about problems are those of `chronos doctor` and `chronos status`."""

import os
import select
import shutil
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from chronos.cli.output import (
    PROSE_COLUMNS,
    console,
    number,
    parsed,
    printable,
    put,
    relative,
    size,
    span,
)
from chronos.cli.service.findings import OVERDUE_MS, of_cluster, of_nodes, of_shard
from chronos.cli.service.status import (
    at_most,
    bars,
    held_back,
    look,
    next_due,
    node_words,
    other_reasons,
    unhealthy,
    waits_for,
)
from chronos.client import Client, ServiceFailed, Unreachable
from chronos.core.texts import shards_text

if TYPE_CHECKING:
    from rich.text import Text

ASK_S = 5.0
"""How long the service may take to answer before the screen says that it does not."""

WINDOW_S = 10.0
"""Rates and the mean lateness are those of this time before the last answer."""

SNAPSHOT_S = 1.0
"""Time between the two looks of a snapshot, from which its rates follow."""

REDRAW_S = 1.0
"""Longest time between two drawings: the clock and the size of the terminal."""

NODES_MAX = 3
"""Nodes shown, those that are not ready first."""

SHARDS_MIN = 4
"""Shards for which there is room however many troubles there are."""

NAME_COLUMNS = 20
"""Widest name of a node in the table."""


# --- What is known


class Sample(NamedTuple):
    """The shards of one answer, and when it came."""

    clock_s: float
    """By a clock that only goes forward."""
    shards: dict[int, dict[str, Any]]


class View(Struct, frozen=True, kw_only=True):
    """What the screen shows: the last answer, and since when there is none."""

    server: str
    every_s: float
    found: dict[str, Any] | None = None
    """The last answer of `status.look`."""
    at: datetime | None = None
    """When it came."""
    samples: tuple[Sample, ...] = ()
    """Of the last WINDOW_S, oldest first."""
    silent_since: datetime | None = None
    """When the first request failed after the last answer."""
    error: str = ""
    """Why the last request failed."""


def answered(view: View, found: dict[str, Any], now: datetime, clock_s: float) -> View:
    """The view after an answer. `clock_s`: by a clock that only goes forward."""
    shards = {shard["shard"]: shard for shard in found["shards"]}
    # At long intervals two answers give the rate.
    window_s = max(WINDOW_S, 1.5 * view.every_s)
    kept = tuple(sample for sample in view.samples if clock_s - sample.clock_s <= window_s)
    return replace(
        view,
        found=found,
        at=now,
        samples=(*kept, Sample(clock_s, shards)),
        silent_since=None,
        error="",
    )


def failed(view: View, error: str, now: datetime) -> View:
    """The view after a request without an answer."""
    return replace(view, silent_since=view.silent_since or now, error=error)


def growth(view: View, of: Callable[[dict[str, Any]], int]) -> tuple[int, float] | None:
    """How much a counter of the shards grew, and in how many seconds; None with a single sample."""
    if len(view.samples) < 2:
        return None
    first, last = view.samples[0], view.samples[-1]
    grown = sum(
        max(0, of(shard) - of(first.shards[at]))
        for at, shard in last.shards.items()
        if at in first.shards
    )
    return grown, last.clock_s - first.clock_s


def recent_lateness_ms(view: View) -> float | None:
    """The mean lateness of what was delivered in the window; None if nothing was."""
    if len(view.samples) < 2:
        return None
    first, last = view.samples[0].shards, view.samples[-1].shards
    count, sum_ms = 0, 0.0
    for at, shard in last.items():
        new, old = shard["lateness"], first.get(at, shard)["lateness"]
        # Another node, or one that was started again, counts from its own start.
        if first.get(at, shard)["node"] != shard["node"] or new["count"] <= old["count"]:
            continue
        count += new["count"] - old["count"]
        sum_ms += new["count"] * new["mean_ms"] - old["count"] * (old["mean_ms"] or 0.0)
    return max(0.0, sum_ms / count) if count else None


# --- What is wrong


class Next(NamedTuple):
    """The remedy of a trouble: a command, and the runbook in docs/operations."""

    command: str
    runbook: str


NOT_READY = Next("chronos doctor", "not-ready")
PAUSED = Next("chronos doctor", "paused")
LATE = Next("chronos doctor", "late")
ROLES = Next("chronos failover status", "roles")
DEAD = Next("chronos dead-letters list", "dead-letters")
REJECTED = Next("chronos rejected count --by reason,target", "dead-letters")
SILENT = Next("chronos doctor", "not-starting")


class Trouble(Struct, frozen=True):
    """One line about a problem."""

    text: str
    next: Next
    is_problem: bool = True


def troubles(view: View) -> list[Trouble]:
    """The problems and then the notes of the last answer, each text once."""
    if view.found is None:
        return []
    found, now = view.found, view.at
    shards = [shard for shard in found["shards"] if shard["node"] is not None]
    made = [
        Trouble(finding.text, NOT_READY, finding.verdict == "problem")
        for finding in of_nodes(found)
        if finding.verdict != "ok"
    ]
    made += [
        Trouble(finding.text, ROLES, finding.verdict == "problem")
        for finding in of_cluster(found, now)
    ]
    vacant = [shard["shard"] for shard in shards if shard["master"] is None]
    if vacant and found["controller"] is not None:
        made.append(Trouble(f"no node is master of {shards_text(vacant)}", ROLES))
    made += [Trouble(text, PAUSED) for text in other_reasons({**found, "shards": shards})]
    made += _of_shards(found["shards"])
    for tell, then in ((unhealthy, ROLES), (waits_for, LATE)):
        made += [Trouble(text, then) for text in map(tell, shards) if text]
    made += [Trouble(text, LATE) for shard in shards if (text := held_back(shard, now))]
    rejected = growth(view, lambda shard: int(shard["totals"]["rejected"]))
    if rejected is not None and rejected[0]:
        text = f"records rejected in {span(rejected[1])}: {number(rejected[0])}"
        made.append(Trouble(text, REJECTED, is_problem=False))
    return sorted(dict.fromkeys(made), key=lambda trouble: not trouble.is_problem)


def _of_shards(shards: list[dict[str, Any]]) -> Iterator[Trouble]:
    """What `chronos doctor` finds of the shards, each text once with the shards that have it. That
    a paused shard is overdue is left out: why it is paused is told elsewhere."""
    same: dict[tuple[str, bool, Next], list[int]] = {}
    for shard in shards:
        calm = {**shard, "oldest_overdue_ms": 0} if shard["paused"] else shard
        dead = shard["dead_recently"]
        for finding in of_shard(calm):
            is_dead = dead is not None and finding.text.startswith(dead["text"])
            key = (finding.text, finding.verdict == "problem", DEAD if is_dead else LATE)
            same.setdefault(key, []).append(shard["shard"])
    for (text, is_problem, then), numbers in same.items():
        yield Trouble(f"{shards_text(numbers)}: {text}", then, is_problem)


def _what_next(then: Sequence[Next]) -> str:
    """The commands and the runbooks, each once."""
    commands = ", ".join(dict.fromkeys(f"`{one.command}`" for one in then))
    runbooks = ", ".join(dict.fromkeys(one.runbook for one in then))
    return f"next: {commands}; runbooks in docs/operations: {runbooks}"


# --- The screen


def screen(
    view: View,
    now: datetime,
    columns: int,
    rows: int | None = None,
    *,
    keys: str = "",
    paused: datetime | None = None,
) -> "list[Text]":
    """The lines of the screen, each of at most `columns` columns; with `rows`, at most as many.

    `now` has the zone in which times are shown. `keys`: the last line. `paused`: since when the
    screen stands still."""
    from rich.text import Text

    zone = now.tzname() or "local time"

    def clock(moment: datetime) -> str:
        return f"{moment.astimezone(now.tzinfo):%H:%M:%S} {zone}"

    cluster = "" if view.found is None else f"cluster {view.found['nodes'][0]['cluster']}  "
    head = [_ends(f"chronos top  {cluster}{printable(view.server)}", clock(now), columns)]
    if paused is not None:
        head.append(Text(f"paused at {clock(paused)}: p continues", "yellow"))
    if view.silent_since is not None:
        state = "there is no earlier state" if view.found is None else "last state below"
        head.append(Text(f"no answer since {clock(view.silent_since)}; {state}", "bold red"))
        head += _wrapped(view.error, columns, "  ", "red")
        if view.found is None:
            head += _wrapped(_what_next([SILENT]), columns, "  ", "bold")
    if view.found is None:
        if view.silent_since is None:
            head.append(Text("asking"))
        return _cut([*head, *([Text(keys, "dim")] if keys else [])], columns, rows)
    wrong = troubles(view)
    head += [*_nodes(view), *_numbers(view, now, columns), Text("")]
    foot = [Text(""), Text(keys, "dim")] if keys else []
    shards, in_cluster = view.found["shards"], view.found["controller"] is not None
    room = None if rows is None else rows - len(head) - len(foot)
    told = _told(view, wrong, columns, room, min(len(shards), SHARDS_MIN))
    left = None if room is None else room - len(told)
    return _cut(
        [*head, *told, *_shards(view, shards, in_cluster, columns, left), *foot], columns, rows
    )


def _cut(lines: "list[Text]", columns: int, rows: int | None) -> "list[Text]":
    for line in lines:
        line.truncate(columns, overflow="ellipsis")
    return lines[:rows]


def _ends(left: str, right: str, columns: int) -> "Text":
    """One line with a text at each end."""
    from rich.text import Text

    line = Text(left, "bold")
    line.truncate(columns - len(right) - 2, overflow="ellipsis")
    return line.append(" " * (columns - line.cell_len - len(right)) + right)


def _wrapped(text: str, columns: int, indent: str, style: str) -> "list[Text]":
    from rich.text import Text

    lines = textwrap.wrap(
        printable(text),
        min(columns, PROSE_COLUMNS),
        initial_indent=indent,
        subsequent_indent=" " * max(2, len(indent)),
        break_on_hyphens=False,
    )
    return [Text(line, style) for line in lines]


def _nodes(view: View) -> "list[Text]":
    from rich.text import Text

    assert view.found is not None
    found = view.found
    nodes = sorted(found["nodes"], key=lambda node: bool(node["ready"]))
    lines = []
    for node in nodes[:NODES_MAX]:
        free = node["disk_free_bytes"]
        facts = [
            *node_words(node, found["controller"]),
            f"{node['log']} log",
            f"version {node['version']}",
            f"up {relative(node['started_at'], view.at).removesuffix(' ago')}",
            *([] if free is None else [f"{size(free)} free"]),
        ]
        state = ("ready", "green") if node["ready"] else ("not ready", "red")
        name = printable(node["node"])
        lines.append(Text.assemble(f"node {name}  ", state, f"  {', '.join(facts)}"))
    if len(nodes) > NODES_MAX:
        ready = sum(node["ready"] for node in nodes[NODES_MAX:])
        lines.append(Text(f"{len(nodes) - NODES_MAX} more nodes, {ready} of them ready"))
    return lines


def _numbers(view: View, now: datetime, columns: int) -> "list[Text]":
    """Counters, rates, lateness, and what is due within the next hour."""
    from rich.text import Text

    assert view.found is not None
    shards, timeline = view.found["shards"], view.found["timeline"]

    def total(name: str) -> int:
        return sum(shard["totals"][name] for shard in shards)

    parked = sum(shard["parked"] for shard in shards)
    overdue_ms = max((shard["oldest_overdue_ms"] for shard in shards), default=0)
    due = [shard["next_due_at"] for shard in shards if shard["next_due_at"] is not None]
    delivered = growth(view, lambda shard: int(shard["totals"]["delivered"]))
    mean_ms = recent_lateness_ms(view)
    p99_ms = max((shard["lateness"]["p99_ms"] or 0.0 for shard in shards), default=0.0)
    counts = [interval["pending"] for interval in timeline["intervals"]]
    most = max(counts, default=0)
    pairs = [
        (
            "pending",
            number(sum(shard["pending"] for shard in shards))
            + (f", {number(parked)} parked" if parked else ""),
            "next due",
            next_due(overdue_ms, min(due, key=_moment, default=None), view.at),
        ),
        (
            "delivered",
            number(total("delivered"))
            + ("" if delivered is None else f", {_rate(*delivered)} deliveries/s"),
            "lateness",
            ("-" if mean_ms is None else f"{span(mean_ms / 1_000)} mean")
            + (f", p99 {at_most(p99_ms)}" if p99_ms else ""),
        ),
        (
            "dead letters",
            f"{number(total('dead') + total('expired'))}"
            + (f", {number(expired)} expired" if (expired := total("expired")) else ""),
            "rejected",
            number(total("rejected")),
        ),
    ]
    half = columns // 2
    lines = [Text(f"{a:<13}{b:<{half - 15}}  {c:<10}{d}") for a, b, c, d in pairs]
    if not most:
        return [*lines, Text("nothing is due within the next hour")]
    lines.append(
        Text(
            f"due within the next hour: {number(timeline['pending'])}, at most "
            f"{number(most)} per minute"
        )
    )
    start, end = (
        f"{moment.astimezone(now.tzinfo):%H:%M}" if (moment := parsed(timeline[side])) else "-"
        for side in ("start", "end")
    )
    return [*lines, Text(f"{start} {bars(counts)} {end}")]


def _moment(text: str) -> float:
    """For the order of times; one beyond the calendar is the last."""
    found = parsed(text)
    return float("inf") if found is None else found.timestamp()


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.1f}" if seconds > 0 else "-"


def _told(
    view: View, wrong: list[Trouble], columns: int, room: int | None, shards: int
) -> "list[Text]":
    """What is wrong and what to do next, in the room that `shards` lines of the table, its heading
    and the count of the others leave."""
    from rich.text import Text

    if not wrong:
        return []
    silent = [] if view.silent_since is None else [SILENT]
    last = _wrapped(_what_next([*silent, *(one.next for one in wrong)]), columns, "", "bold")
    most = None if room is None else max(1, room - shards - 2 - len(last) - 1)
    lines: list[Text] = []
    for at, one in enumerate(wrong):
        more = _wrapped(one.text, columns, "! ", "red" if one.is_problem else "yellow")
        is_last = at == len(wrong) - 1
        if most is not None and len(lines) + len(more) + (not is_last) > most:
            if not lines:
                lines = more[: max(1, most - (not is_last))]
                at += 1
            if at < len(wrong):
                lines.append(Text(f"  {len(wrong) - at} more: `chronos status`"))
            break
        lines += more
    return [*lines, *last, Text("")]


class Column(NamedTuple):
    """One column of the table of shards."""

    heading: str
    rank: int
    """Columns with the highest rank are left out first where there is no room for all."""
    cell: Callable[[dict[str, Any]], str]
    is_text: bool = False


def _shards(
    view: View,
    shards: list[dict[str, Any]],
    in_cluster: bool,
    columns: int,
    room: int | None,
) -> "list[Text]":
    """The table, shards with a trouble first where not all have room."""
    from rich.text import Text

    made = _columns(view, in_cluster)
    if room is not None and len(shards) + 1 > room:
        shards = sorted(shards, key=lambda shard: not _state(shard))
        shown, rest = shards[: max(0, room - 2)], shards[max(0, room - 2) :]
    else:
        shown, rest = shards, []
    cells = [[column.cell(shard) for column in made] for shard in shown]
    widths = [
        max([len(column.heading), *(len(row[at]) for row in cells)])
        for at, column in enumerate(made)
    ]
    kept = list(range(len(made)))
    while len(kept) > 1 and sum(widths[at] + 2 for at in kept) - 2 > columns:
        kept.remove(max(kept, key=lambda at: made[at].rank))

    def line(row: list[str]) -> str:
        return "  ".join(
            f"{row[at]:<{widths[at]}}" if made[at].is_text else f"{row[at]:>{widths[at]}}"
            for at in kept
        ).rstrip()

    lines = [Text(line([column.heading for column in made]), "bold")]
    lines += [
        Text(line(row), "red" if _state(shard) else "")
        for shard, row in zip(shown, cells, strict=True)
    ]
    if rest:
        wrong = sum(bool(_state(shard)) for shard in rest)
        told = f", {wrong} of them with a trouble" if wrong else ""
        lines.append(Text(f"{len(rest)} more shards{told}"))
    return lines


def _columns(view: View, in_cluster: bool) -> list[Column]:
    first = view.samples[0] if len(view.samples) > 1 else None

    def rate(shard: dict[str, Any]) -> str:
        before = None if first is None else first.shards.get(shard["shard"])
        if first is None or before is None:
            return "-"
        grown = shard["totals"]["delivered"] - before["totals"]["delivered"]
        return _rate(max(0, grown), view.samples[-1].clock_s - first.clock_s)

    def master(shard: dict[str, Any]) -> str:
        name = printable(shard["master"] or "none") if in_cluster else shard["role"]
        return name if len(name) <= NAME_COLUMNS else name[: NAME_COLUMNS - 1] + "…"

    def due(shard: dict[str, Any]) -> str:
        return next_due(shard["oldest_overdue_ms"], shard["next_due_at"], view.at)

    def late(name: str) -> Callable[[dict[str, Any]], str]:
        return lambda shard: at_most(shard["lateness"][name])

    def count(name: str) -> Callable[[dict[str, Any]], str]:
        return lambda shard: number(shard["totals"][name])

    return [
        Column("SHARD", 0, lambda shard: str(shard["shard"])),
        Column("MASTER" if in_cluster else "ROLE", 1, master, is_text=True),
        Column("PENDING", 3, lambda shard: number(shard["pending"])),
        Column("NEXT DUE", 4, due),
        Column("LAG", 6, lambda shard: number(shard["lag"])),
        Column("PER S", 5, rate),
        Column("LATE p50", 11, late("p50_ms")),
        Column("p99", 7, late("p99_ms")),
        Column("DELIVERED", 10, count("delivered")),
        Column("DEAD", 8, count("dead")),
        Column("REJECTED", 9, count("rejected")),
        Column("STORE", 12, lambda shard: size(shard["store_bytes"])),
        Column("", 2, _state, is_text=True),
    ]


def _state(shard: dict[str, Any]) -> str:
    """Return the problem of a shard in a few words; empty if there is none."""
    if shard["node"] is None:
        return "no answer"
    if shard["paused"]:
        return "paused"
    if shard["role"] not in ("master", "follower", "none"):
        return str(shard["role"])
    if unhealthy(shard):
        return "unhealthy"
    if held_back(shard):
        return "held back"
    if waits_for(shard):
        return "waits"
    if shard["oldest_overdue_ms"] > OVERDUE_MS:
        return "late"
    return "messages fail" if shard.get("dead_recently") else ""


# --- The terminal


def show(server: str, *, every_s: float, once: bool) -> None:
    """Show the screen once if `once` or if stdout is not a terminal; otherwise until q or
    Ctrl-C."""
    if once or not sys.stdout.isatty() or console().is_dumb_terminal:
        _snapshot(server, min(every_s, SNAPSHOT_S))
        return
    # The verb ends as by the signal, and the terminal is as before.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _end)
    with suppress(KeyboardInterrupt):
        _watch(server, every_s)


def _end(ending: int, _: object) -> NoReturn:
    raise SystemExit(128 + ending)


def _client(server: str) -> Client:
    return Client(server, timeout_s=ASK_S, retries=0)


def _local_now() -> datetime:
    return datetime.now().astimezone()


def _snapshot(server: str, apart_s: float) -> None:
    from rich.console import Group

    view = View(server=server, every_s=apart_s)
    with _client(server) as client:
        view = answered(view, look(client), _local_now(), time.monotonic())
        time.sleep(apart_s)
        view = answered(view, look(client), _local_now(), time.monotonic())
    columns = shutil.get_terminal_size((PROSE_COLUMNS, 24)).columns
    put(Group(*screen(view, _local_now(), columns)))


class _Asking(threading.Thread):
    """Asks the service again and again. Each answer or error is put into `results`, and a byte is
    written to the pipe, so that one `select` waits for keys and answers."""

    def __init__(self, server: str, every_s: float) -> None:
        super().__init__(name="asking", daemon=True)
        self._server, self._every_s = server, every_s
        self.results: SimpleQueue[dict[str, Any] | Exception] = SimpleQueue()
        self.readable, self._writable = os.pipe()

    def run(self) -> None:
        with _client(self._server) as client:
            while True:
                began_s = time.monotonic()
                result: dict[str, Any] | Exception
                try:
                    result = look(client)
                except Exception as error:
                    result = error
                self.results.put(result)
                os.write(self._writable, b".")
                time.sleep(max(0.0, began_s + self._every_s - time.monotonic()))


def _watch(server: str, every_s: float) -> None:
    from rich.console import Group
    from rich.live import Live

    out = console()
    view = shown = View(server=server, every_s=every_s)
    paused: datetime | None = None
    asking = _Asking(server, every_s)
    asking.start()
    with _keys() as keys, Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            now = _local_now()
            help_ = f"q quit  p {'continue' if paused else 'pause'}  every {span(every_s)}"
            lines = screen(
                shown,
                now,
                out.width,
                out.height,
                paused=paused,
                keys=f"{help_}, rates of {span(WINDOW_S)}, times in UTC{now.isoformat()[-6:]}",
            )
            live.update(Group(*lines), refresh=True)
            ready, _, _ = select.select([asking.readable, *keys], [], [], REDRAW_S)
            if asking.readable in ready:
                os.read(asking.readable, 1)
                view = _after(view, asking.results.get())
            for file in keys:
                if file not in ready:
                    continue
                typed = os.read(file, 100).lower()
                if not typed or b"q" in typed:
                    return
                if b"p" in typed:
                    paused = now if paused is None else None
            if paused is None:
                shown = view


def _after(view: View, result: dict[str, Any] | Exception) -> View:
    """Return the view after a request; an error that a repetition cannot remedy ends the verb."""
    if isinstance(result, Unreachable | ServiceFailed):
        return failed(view, str(result), _local_now())
    if isinstance(result, Exception):
        raise result
    return answered(view, result, _local_now(), time.monotonic())


@contextmanager
def _keys() -> Iterator[list[int]]:
    """The file that keys are read from, each at once and without an echo; none if stdin is not a
    terminal."""
    if not sys.stdin.isatty():
        yield []
        return
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        yield [file]
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
