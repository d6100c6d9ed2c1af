"""The comparison: each service gets the same load, one after the other, and the same is measured of
each.

A burst: messages that are all due at one moment, written before it. Accepted: how many a second
until the last is acknowledged. Delivered: how many a second from that moment until a reader in
another process has the last one. Steady: messages at a constant rate, each due 3 to 10 s later;
lateness is the time of the reader minus the due time."""

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.bench.peers.systems import SYSTEMS, System
from tests.bench.peers.task import Task

RATES = (1_000, 5_000, 20_000)
"""Messages a second of the steady loads."""

STEADY_S = 20

REST_S = 60.0
"""How long a reader waits for the rest of the messages, from the time when the last is due."""

READER_S = 2.0
"""A reader has connected after so long."""

LOAD_MAX = 1.0
"""Load average above which nothing is measured."""


class Measured(NamedTuple):
    """Of one service: the median of its rounds."""

    system: System
    accepted: float
    """A second."""
    delivered: float
    """A second; 0 if the messages were not all accepted before they were due."""
    steady: list[tuple[float, float]]
    """p50 and p99 (ms) for each rate."""
    wrong: str
    """Messages that were early, duplicated or not delivered."""


def compare(
    names: Sequence[str], *, messages: int, rounds: int, say: Callable[[str], None]
) -> list[Measured]:
    """Measure the services in turns."""
    chosen = [each for each in SYSTEMS if not names or each.name.lower() in names]
    found: dict[str, list[Measured]] = {each.name: [] for each in chosen}
    for number in range(rounds):
        for system in chosen:
            say(f"{system.name} {system.version()}, round {number + 1} of {rounds}")
            one = _measure(system, messages)
            say(f"     {one.accepted:,.0f}/s, {one.delivered:,.0f}/s, {one.steady}, {one.wrong}")
            found[system.name].append(one)
    return [_median(system, found[system.name]) for system in chosen]


def _median(system: System, rounds: Sequence[Measured]) -> Measured:
    median = statistics.median
    return Measured(
        system,
        median(one.accepted for one in rounds),
        median(one.delivered for one in rounds),
        [
            (median(p50 for p50, _ in steady), median(p99 for _, p99 in steady))
            for steady in zip(*(one.steady for one in rounds), strict=True)
        ],
        "; ".join(sorted({one.wrong for one in rounds})),
    )


def _measure(system: System, messages: int) -> Measured:
    written, burst = _run(
        system, lead_s=system.lead_s, count=messages, timeout_s=system.lead_s + REST_S
    )
    is_late = written["accepted_s"] >= system.lead_s
    results = [burst]
    steady = []
    for rate in RATES:
        _, read = _run(system, count=rate * STEADY_S, rate=rate, timeout_s=STEADY_S + 10 + REST_S)
        results.append(read)
        steady.append((read["p50"], read["p99"]))
    counts = {
        text: sum(int(one[name]) for one in results)
        for name, text in (
            ("early", "early"),
            ("duplicated", "duplicated"),
            ("lost", f"not delivered {REST_S:g} s later"),
        )
    }
    wrong = ", ".join(f"{count:,} {text}" for text, count in counts.items() if count) or "none"
    return Measured(
        system,
        messages / written["accepted_s"],
        0.0 if is_late or burst["lost"] else messages / burst["max"] * 1_000,
        steady,
        wrong,
    )


def _run(
    system: System, *, lead_s: float = 0.0, **task: Any
) -> tuple[dict[str, float], dict[str, float]]:
    """Run a writer and a reader on a new server; what both print. `lead_s`: all messages are due so
    long after the writer begins."""
    with (
        tempfile.TemporaryDirectory(prefix="chronos-peers-") as folder,
        system.run(Path(folder) / "server") as server,
    ):
        if lead_s:
            task["due_ms"] = int((time.time() + READER_S + lead_s) * 1_000)
        argument = msgspec.json.encode(Task(server=server, **task)).decode()
        reader = _start(system, "read", argument)
        try:
            time.sleep(READER_S)
            writer = _start(system, "write", argument)
            return _result(writer), _result(reader)
        finally:
            reader.kill()


def _start(system: System, verb: str, task: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([*system.driver(), verb, task], stdout=subprocess.PIPE, text=True)


def _result(process: "subprocess.Popen[str]") -> dict[str, float]:
    output, _ = process.communicate(timeout=600)
    if process.returncode:
        raise RuntimeError(f"a driver exited with {process.returncode}")
    result: dict[str, float] = json.loads(output)
    return result


def rows(measured: Sequence[Measured]) -> list[list[str]]:
    """The rows of the table, with a heading."""
    heading = ["", "version", "messages kept in", "accepted", "burst delivered"]
    heading += [f"p50, p99 at {rate:,}/s" for rate in RATES]
    table = [[*heading, "wrong"]]
    for one in measured:
        delivered = f"{one.delivered:,.0f}/s" if one.delivered else "not all accepted in time"
        table.append(
            [
                one.system.name,
                one.system.version(),
                one.system.keeps,
                f"{one.accepted:,.0f}/s",
                delivered,
                *(f"{p50:,.0f}, {p99:,.0f} ms" for p50, p99 in one.steady),
                one.wrong,
            ]
        )
    return table
