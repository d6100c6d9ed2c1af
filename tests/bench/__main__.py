"""Measure the figures, print a table, write JSON, and with --keep update
docs/contributing/results.md."""

import argparse
import datetime
import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.figures import FIGURES, Bench, machine
from tests.bench.peers import campaign
from tests.bench.peers.systems import SYSTEMS
from tests.clients.programs import missing_tools
from tests.harness.broker import Broker
from tests.harness.java import pinned_version

RESULTS = Path(__file__).parents[2] / "docs" / "contributing" / "results.md"

SHOWN_US = 0.02
"""Stages that cost less have no row in the page."""


def main() -> int:
    """Run the figures; the exit code is 1 if a bar was missed."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "figures", nargs="*", metavar="FIGURE", help=f"any of {', '.join(FIGURES)}; default: all"
    )
    parser.add_argument(
        "--messages",
        type=int,
        default=500_000,
        help="messages per throughput run (default 500,000)",
    )
    parser.add_argument(
        "--pending",
        type=int,
        default=5_000_000,
        help=(
            "messages of the figure pending (default 5,000,000); each takes about 1 kB of disk "
            "meanwhile"
        ),
    )
    parser.add_argument(
        "--spark-messages",
        type=int,
        metavar="N",
        help=(
            "messages of each part of the figure spark, a multiple of 16 (default: the sizes of "
            "docs/contributing/results.md)"
        ),
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=Path("bench.json"),
        help="the JSON file to write (default bench.json)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="write the table into docs/contributing/results.md"
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        metavar="NAME",
        help=(
            "instead of the figures: the same load for Chronos and for other services, or for some "
            f"of {', '.join(each.name.lower() for each in SYSTEMS)}; --messages in a burst"
        ),
    )
    parser.add_argument(
        "--rounds", type=int, default=1, help="of --peers; the median counts (default 1)"
    )
    parser.add_argument(
        "--busy",
        action="store_true",
        help=f"--peers also at a load average above {campaign.LOAD_MAX:g}; the table says so",
    )
    arguments = parser.parse_args()
    if arguments.peers is not None:
        return _peers(parser, arguments)
    unknown = [name for name in arguments.figures if name not in FIGURES]
    if unknown:
        parser.error(f"unknown figures: {', '.join(unknown)}; known: {', '.join(FIGURES)}")
    console = Console(stderr=True, highlight=False)
    directory = Path(tempfile.mkdtemp(prefix="chronos-bench-"))
    try:
        with Broker(heap_mb=1024, for_load=True) as broker:
            bench = Bench(
                broker,
                directory,
                messages=arguments.messages,
                say=console.print,
                pending=arguments.pending,
                spark_messages=arguments.spark_messages,
            )
            for name in arguments.figures or FIGURES:
                console.rule(name)
                FIGURES[name](bench)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    _print(bench)
    where = (
        f"{machine()}; Kafka {pinned_version('kafka')}, confluent-kafka "
        f"{version('confluent-kafka')}, rocksdict {version('rocksdict')}"
    )
    arguments.json.write_text(
        json.dumps({"machine": where, "rows": [asdict(row) for row in bench.rows]}, indent=1)
    )
    if arguments.keep:
        _keep(bench, where)
    return 0 if all(row.passed for row in bench.rows) else 1


def _peers(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    known = [each.name.lower() for each in SYSTEMS]
    if unknown := [name for name in arguments.peers if name not in known]:
        parser.error(f"unknown services: {', '.join(unknown)}; known: {', '.join(known)}")
    if lacks := missing_tools("go", "node", "npm"):
        parser.error(f"--peers builds the drivers of the other services: {lacks}")
    load = os.getloadavg()[0]
    if load > campaign.LOAD_MAX and not arguments.busy:
        parser.error(
            f"the load average is {load:.1f}, and other programs would be measured too: wait "
            "until it is below 1, or add --busy"
        )
    console = Console(stderr=True, highlight=False)
    measured = campaign.compare(
        arguments.peers,
        messages=arguments.messages,
        rounds=arguments.rounds,
        say=console.print,
    )
    heading, *rows = campaign.rows(measured)
    table = Table(*heading)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if arguments.keep:
        _write_between(
            "peers",
            [
                f"Measured on {datetime.date.today()} by `./scripts/bench --peers --messages "
                f"{arguments.messages} --rounds {arguments.rounds} --keep`: {machine()}; load "
                f"average before it {load:.1f}.",
                "",
                "| " + " | ".join(heading) + " |",
                "|---" * len(heading) + "|",
                *("| " + " | ".join(row) + " |" for row in rows),
            ],
        )
    return 0


def _print(bench: Bench) -> None:
    table = Table("figure", "measured", "bar", "")
    for row in bench.rows:
        table.add_row(row.figure, row.measured, row.bar, "ok" if row.passed else "missed")
    Console().print(table)


def _keep(bench: Bench, where: str) -> None:
    measured = [f"Measured on {datetime.date.today()} by `./scripts/bench --keep`: {where}."]
    if bench.rows:
        rows = [
            f"| {row.figure} | {row.measured} | {row.bar} | "
            f"{'ok' if row.passed else '**missed**'} |"
            for row in bench.rows
        ]
        _write_between(
            "measured", [*measured, "", "| figure | measured | bar | |", "|---|---|---|---|", *rows]
        )
    if bench.stages:
        costs = [
            f"| {stage} | {cost_us:.2f} |"
            for stage, cost_us in bench.stages.items()
            if cost_us >= SHOWN_US
        ]
        _write_between("stages", [*measured, "", "| stage | us a message |", "|---|---|", *costs])


def _write_between(name: str, lines: list[str]) -> None:
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, rest = RESULTS.read_text().split(begin)
    _, tail = rest.split(end)
    RESULTS.write_text(f"{head}{begin}\n" + "\n".join(lines) + f"\n{end}{tail}")


if __name__ == "__main__":
    sys.exit(main())
