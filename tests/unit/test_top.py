"""The screen of `chronos top`, as a function of the answers of a service."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import typer.main

from chronos.cli.app import app
from chronos.cli.service import top
from chronos.cli.service.top import View, answered, failed, growth, recent_lateness_ms, screen
from tests.harness.table import table

ROOT = Path(__file__).parents[2]
NOW = datetime(2030, 1, 31, 12, 3, 4, tzinfo=UTC)


def stamp(seconds: float) -> str:
    """A time as the API writes it, this long after NOW."""
    return (NOW + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def node(name: str = "a", **changed: Any) -> dict[str, Any]:
    """A node that is ready."""
    return {
        "node": name,
        "cluster": "shop",
        "version": "0.1.0",
        "zone_data": "IANA 2026f",
        "log": "kafka",
        "ready": True,
        "reasons": [],
        "leaving": False,
        "drained": False,
        "started_at": stamp(-300),
        "disk_free_bytes": 5 << 30,
        **changed,
    }


def shard(number: int = 0, **changed: Any) -> dict[str, Any]:
    """A shard without a trouble."""
    totals = {"delivered": 0, "dead": 0, "expired": 0, "rejected": 0} | changed.pop("totals", {})
    return {
        "shard": number,
        "node": "a",
        "role": "master",
        "master": "a",
        "paused": None,
        "pending": 1_000,
        "parked": 0,
        "next_due_at": stamp(5),
        "oldest_overdue_ms": 0,
        "lag": 0,
        "lateness": {"count": 0, "mean_ms": None, "p50_ms": None, "p99_ms": None},
        "store_bytes": 1 << 20,
        "held_back": None,
        "waits_for": None,
        "dead_recently": None,
        "unitless": None,
        "unhealthy": None,
        "in_sync": None,
        "in_sync_needed": None,
        "in_sync_missing": None,
        "totals": totals,
        **changed,
    }


def look(*shards: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """The answers of a service with these shards."""
    intervals = [{"start": stamp(60 * at), "pending": at} for at in range(60)]
    return {
        "nodes": [node()],
        "away": [],
        "controller": "a",
        "sure": True,
        "history": [],
        "shards": list(shards),
        "timeline": {
            "start": stamp(-4),
            "end": stamp(3_596),
            "pending": 1_770,
            "intervals": intervals,
        },
        **changed,
    }


START = View(server="http://127.0.0.1:7700", every_s=1.0)


def view(*shards: dict[str, Any], **changed: Any) -> View:
    """What is known after one answer."""
    return answered(START, look(*shards, **changed), NOW, 100.0)


def text(shown: View, columns: int = 80, rows: int | None = None, **options: Any) -> list[str]:
    """The lines of the screen, each checked to fit."""
    lines = screen(shown, NOW, columns, rows, **options)
    assert all(line.cell_len <= columns for line in lines)
    assert rows is None or len(lines) <= rows
    return [line.plain.rstrip() for line in lines]


def test_a_service_in_order_is_told_in_80_columns() -> None:
    """Rates and mean lateness of what happened between the first and the last answer."""
    before = {"count": 10, "mean_ms": 1.0, "p50_ms": 1.0, "p99_ms": 5.0}
    after = {"count": 30, "mean_ms": 3.0, "p50_ms": 2.5, "p99_ms": 25.0}
    first = look(shard(0, totals={"delivered": 100}, lateness=before), shard(1))
    last = look(
        shard(0, totals={"delivered": 120, "dead": 2, "expired": 1}, lateness=after),
        shard(1, next_due_at=None, pending=0),
    )
    shown = answered(answered(START, first, NOW, 100.0), last, NOW, 104.0)
    assert text(shown, keys="q quit") == [
        "chronos top  cluster shop  http://127.0.0.1:7700                    12:03:04 UTC",
        "node a  ready  controller, kafka log, version 0.1.0, up 5.0 min, 5.0 GiB free",
        "pending      1,000                      next due  in 5 s",
        "delivered    120, 5.0 deliveries/s      lateness  4 ms mean, p99 ≤ 25 ms",
        "dead letters 3, 1 expired               rejected  0",
        "due within the next hour: 1,770, at most 59 per minute",
        text(shown)[6],
        "",
        "SHARD  MASTER  PENDING  NEXT DUE  LAG  PER S      p99  DEAD  REJECTED",
        "    0  a         1,000    in 5 s    0    5.0  ≤ 25 ms     2         0",
        "    1  a             0         -    0    0.0        -     0         0",
        "",
        "q quit",
    ]


def test_the_bars_are_those_of_the_timeline() -> None:
    """The least number that is not zero has a bar, the greatest one the highest."""
    bars = text(view(shard()))[6]
    assert bars.startswith("12:03  ▁▁")
    assert bars.endswith("█ 13:03")
    assert len(bars) == len("12:03  13:03") + 60
    empty = {"start": stamp(0), "end": stamp(60), "pending": 0, "intervals": []}
    assert "nothing is due within the next hour" in text(view(shard(), timeline=empty))


def test_times_are_shown_in_the_zone_of_now() -> None:
    """Also those that the service tells in UTC."""
    lines = screen(view(shard()), NOW.astimezone(timezone(timedelta(hours=2), "EET")), 80)
    assert lines[0].plain.endswith("14:03:04 EET")
    assert lines[6].plain.startswith("14:03 ")


def test_a_wide_terminal_has_more_columns() -> None:
    """And a narrow one keeps the shard, its master and its trouble."""
    waiting = view(shard(paused="no broker answers"))
    (wide,) = [line for line in text(waiting, 140) if line.startswith("SHARD")]
    (narrow,) = [line for line in text(waiting, 30) if line.startswith("SHARD")]
    for heading in ("LATE p50", "DELIVERED", "REJECTED", "STORE"):
        assert heading in wide
        assert heading not in narrow
    assert [line for line in text(waiting, 30) if "paused" in line and "0  a" in line]


def test_a_service_that_does_not_answer_leaves_its_last_state() -> None:
    """With the time of the first failure, until the next answer."""
    silent = failed(view(shard()), "Connection refused", NOW)
    silent = failed(silent, "Connection refused", NOW + timedelta(seconds=9))
    lines = text(silent)
    assert lines[1:3] == ["no answer since 12:03:04 UTC; last state below", "  Connection refused"]
    assert "pending      1,000                      next due  in 5 s" in lines
    back = answered(silent, look(shard()), NOW, 110.0)
    assert not [line for line in text(back) if "no answer" in line]


def test_the_state_before_the_first_answer_says_what_to_do() -> None:
    """Without a state there is no `last state below`."""
    assert text(START)[1:] == ["asking"]
    assert text(failed(START, "Connection refused", NOW))[1:] == [
        "no answer since 12:03:04 UTC; there is no earlier state",
        "  Connection refused",
        "  next: `chronos doctor`; runbooks in docs/operations: not-starting",
    ]


def test_relative_times_of_an_old_state_stand_still() -> None:
    """They are those of the answer, not of the moment in which it is shown."""
    lines = screen(failed(view(shard()), "refused", NOW), NOW + timedelta(minutes=9), 80)
    assert [line for line in lines if line.plain.endswith("next due  in 5 s")]


TROUBLES: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    (
        {},
        {"nodes": [node(ready=False, reasons=["shard 0 is starting"])]},
        "! shard 0 is starting",
        "chronos doctor",
    ),
    (
        {},
        {"sure": False},
        "! the coordinator does not answer; roles stay as they are",
        "chronos failover status",
    ),
    (
        {},
        {"away": [{"node": "b", "since": stamp(-300), "shards": [1, 2]}]},
        "! node b holds shards 1, 2, and is away since 5.0 min ago",
        "chronos failover status",
    ),
    ({"paused": "the clocks differ"}, {}, "! paused: shard 0: the clocks differ", "chronos doctor"),
    (
        {"oldest_overdue_ms": 90_000},
        {},
        "! shard 0: its next message is overdue by 90 s, 1,000 are pending",
        "chronos doctor",
    ),
    ({"master": None}, {}, "! no node is master of shard 0", "chronos failover status"),
    ({"node": None}, {}, "! shard 0: no node with a replica of it answers", "chronos doctor"),
    (
        {"unhealthy": ["b", "c"]},
        {},
        "! shard 0: the probes of b, c find the master unhealthy",
        "chronos failover status",
    ),
    (
        {"waits_for": "partition 3 of orders has no leader"},
        {},
        "! shard 0: partition 3 of orders has no leader",
        "chronos doctor",
    ),
    (
        {"held_back": {"records": 7, "since": stamp(-9)}},
        {},
        "! shard 0: 7 records are held back by an open transaction, since 9 s ago",
        "chronos doctor",
    ),
    (
        {"in_sync": ["b"], "in_sync_needed": 2, "in_sync_missing": 1},
        {},
        "! shard 0: 1 of 2 followers in sync",
        "chronos doctor",
    ),
    (
        {
            "dead_recently": {
                "text": "3 messages for orders became dead letters",
                "last_at": stamp(-1),
            }
        },
        {},
        "! shard 0: 3 messages for orders became dead letters",
        "chronos dead-letters list",
    ),
]


@table(("of_shard", "of_nodes", "told", "command"), TROUBLES)
def test_a_trouble_is_told_with_the_next_command(
    of_shard: dict[str, Any], of_nodes: dict[str, Any], told: str, command: str
) -> None:
    """Once, in the words of `chronos doctor` or `chronos status`."""
    lines = text(view(shard(**of_shard), **of_nodes), 100)
    assert sum(line.startswith(told) for line in lines) == 1, lines
    assert sum(line.startswith("! ") for line in lines) == 1, lines
    (then,) = [line for line in lines if line.startswith("next: ")]
    assert then.startswith(f"next: `{command}`; runbooks in docs/operations: ")


def test_rejected_records_are_told_while_they_come() -> None:
    """By their growth within the window; the total remains afterwards."""
    first, last = look(shard(totals={"rejected": 4})), look(shard(totals={"rejected": 6}))
    shown = answered(answered(START, first, NOW, 100.0), last, NOW, 103.0)
    assert "! records rejected in 3 s: 2" in text(shown)
    later = answered(shown, last, NOW, 120.0)
    assert not [line for line in text(later) if line.startswith("! ")]


def test_a_trouble_of_many_shards_is_one_line() -> None:
    """And a paused shard is not told a second time because it is overdue."""
    shards = [shard(at, paused="no broker answers", oldest_overdue_ms=99_000) for at in range(64)]
    lines = text(view(*shards))
    assert [line for line in lines if line.startswith("! ")] == [
        "! paused: shards 0 to 63: no broker answers"
    ]


def test_everything_fits_24_lines() -> None:
    """Troubles and shards without room are counted, and shards with a trouble come first."""
    shards = [shard(at) for at in range(60)]
    shards += [
        shard(at, waits_for=f"the leader of partition {at} of orders does not acknowledge " * 2)
        for at in range(60, 64)
    ]
    nodes = [node(name, ready=name != "d") for name in "abcdef"]
    lines = text(view(*shards, nodes=nodes), rows=24, keys="q quit")
    assert lines[1].startswith("node d  not ready")
    assert "3 more nodes, 3 of them ready" in lines
    assert [line for line in lines if line.endswith(" more: `chronos status`")]
    assert [line for line in lines if line.startswith("next: ")]
    heading = next(at for at, line in enumerate(lines) if line.startswith("SHARD"))
    assert lines[heading + 1].split()[0] == "60"
    assert lines[-3].startswith("6") or lines[-3].endswith(" more shards")
    assert [line for line in lines if "more shards" in line]
    assert lines[-1] == "q quit"


def test_all_shards_are_shown_where_the_height_has_no_bound() -> None:
    """In a pipe."""
    lines = text(view(*(shard(at) for at in range(64))))
    assert lines[-1].split()[0] == "63"


def test_a_paused_screen_says_since_when() -> None:
    """And how to go on."""
    assert text(view(shard()), paused=NOW)[1] == "paused at 12:03:04 UTC: p continues"


def test_control_characters_of_a_service_have_no_effect() -> None:
    """They are escaped in names and texts."""
    shown = view(shard(paused="\x1b[2J", master="\x1b[31m"), nodes=[node("\x1b[2J")])
    assert not [line for line in text(failed(shown, "\x1b[2J", NOW)) if "\x1b" in line]


def test_a_counter_that_starts_again_is_no_growth() -> None:
    """Of lateness when a node was started again, of totals when a replica behind answers."""
    late = {"count": 30, "mean_ms": 3.0, "p50_ms": 2.5, "p99_ms": 25.0}
    again = {"count": 2, "mean_ms": 9.0, "p50_ms": 2.5, "p99_ms": 25.0}
    first = look(shard(totals={"delivered": 100}, lateness=late))
    last = look(shard(totals={"delivered": 90}, lateness=again))
    shown = answered(answered(START, first, NOW, 100.0), last, NOW, 101.0)
    assert growth(shown, lambda one: int(one["totals"]["delivered"])) == (0, 1.0)
    assert recent_lateness_ms(shown) is None


def test_rates_are_those_of_ten_seconds() -> None:
    """An older answer is forgotten; at long intervals two answers are enough."""
    shown = START
    for at in range(31):
        shown = answered(shown, look(shard(totals={"delivered": at * at})), NOW, float(at))
    assert growth(shown, lambda one: int(one["totals"]["delivered"])) == (900 - 400, 10.0)
    slow = View(server="", every_s=60.0)
    for at in range(3):
        slow = answered(slow, look(shard(totals={"delivered": at})), NOW, 60.0 * at)
    assert growth(slow, lambda one: int(one["totals"]["delivered"])) == (1, 60.0)


def test_the_next_commands_and_their_runbooks_exist() -> None:
    """Each is a first command of the page about operations."""
    operations = (ROOT / "docs/operations.md").read_text()
    verbs: Any = typer.main.get_command(app)
    found = [value for value in vars(top).values() if isinstance(value, top.Next)]
    assert len(found) >= 7
    for then in found:
        assert (ROOT / f"docs/operations/{then.runbook}.md").is_file()
        assert then.command in operations
        command = verbs
        for word in shlex.split(then.command)[1:]:
            if word.startswith("-"):
                break
            command = command.commands[word]
