"""Cancel messages of every Kafka client with every other, and report what was wrong;
`scripts/clients` runs this."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.clients.campaign import SHARDS, Outcome, TooSlow, cancellers, readings, run
from tests.clients.judge import Reading
from tests.clients.openapi import GENERATORS, run_generated
from tests.clients.programs import CLIENTS, ClientError, Program, left_out, set_up
from tests.clients.snippets import Place, snippets, wait_for_message
from tests.harness.broker import Broker, BrokerError
from tests.harness.java import ROOT
from tests.harness.service import Service, ServiceError
from tests.integration.foreign import Tail, Topics

WRONG, INCOMPLETE = 1, 2
"""Exit codes."""

EPILOG = """
For every ordered pair of clients the first writes messages, and the second cancels half of them, by header and by tombstone, replaces
a tenth and reschedules a tenth. Java and confluent-kafka also act in transactions that are committed and that are aborted.
Required: no cancelled message is delivered; every other one is, exactly once, with its last value, and not before its due
time; no record is rejected. Then every client reads a topic with aborted transactions: those that can read committed records
only must show exactly these. Every program in docs/how-to/schedule.md must schedule its message. Last, four generators make
clients of /openapi.json, and a linter checks it; each client must schedule, find and cancel a message.

Exit codes: 0 nothing was wrong, 1 something was, 2 a client is left out or the campaign could not be run.
"""  # noqa: E501


def table(outcome: Outcome, programs: list[Program], each: int) -> str:
    """Wrong messages by pair."""
    columns = [canceller.name for canceller in cancellers(programs)]
    width = max(map(len, columns))
    lines = [f"wrong messages of {each}: producer in the row, canceller in the column"]
    lines += [f"  {number:>2} = {name}" for number, name in enumerate(columns, 1)]
    lines.append(" " * width + "".join(f"{number:>4}" for number in range(1, len(columns) + 1)))
    for program in programs:
        cells = [sum(outcome.wrong[program.client.name, column].values()) for column in columns]
        lines.append(f"{program.client.name:<{width}}" + "".join(f"{cell:>4}" for cell in cells))
    for (producer, canceller), found in outcome.wrong.items():
        if found:
            lines.append(f"wrong: written by {producer}, cancelled by {canceller}: {dict(found)}")
    lines += [
        f"rejected: {count} records of {name}: {reason}"
        for (name, reason), count in outcome.rejected.items()
    ]
    cancelled = sum(wanted.value is None for wanted in outcome.expected.values())
    lines.append(
        f"{len(outcome.wrong)} pairs, {len(outcome.expected)} messages, {cancelled} of them "
        f"cancelled, {outcome.forwarded} records forwarded: "
        f"{', '.join(missed(outcome)) or '0 wrong, 0 rejected'}"
    )
    return "\n".join(lines)


def summary(outcome: Outcome | None, found: dict[str, Reading], programs: list[Program]) -> str:
    """One line for each client, as in docs/contributing/results.md."""
    lines = [
        (
            "| client | version | partitioner | records in another partition | wrong as producer "
            "| wrong as canceller | aborted records shown |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for program in programs:
        name = program.client.name
        cells = [name, program.version(), program.client.partitioner]
        if outcome is None:
            cells += ["", "", ""]
        else:
            count, misplaced = outcome.placed.get(name, (0, 0))
            cells.append(f"{misplaced} of {count}")
            for side in (0, 1):
                wrong = [
                    sum(kinds.values())
                    for pair, kinds in outcome.wrong.items()
                    if pair[side].partition(":")[0] == name
                ]
                cells.append(str(sum(wrong)))
        reading = found.get(name)
        cells.append("" if reading is None else _reading(reading))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _reading(reading: Reading) -> str:
    others = {
        "markers": reading.others,
        "committed missing": reading.missing,
        "committed repeated": reading.repeated,
    }
    return ", ".join(
        [str(reading.aborted), *(f"{count} {name}" for name, count in others.items() if count)]
    )


def unlike_documented(found: dict[str, Reading]) -> list[str]:
    """Readers that do not behave as docs/concepts/exactly-once.md says."""
    complaints = []
    for name, reading in found.items():
        if CLIENTS[name].committed_only and reading != Reading(0, 0, 0, 0):
            complaints.append(f"{name} should show exactly the committed records: {reading}")
        elif not CLIENTS[name].committed_only and reading.aborted == 0:
            complaints.append(f"{name} is documented to show aborted records, and shows none")
    return complaints


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="scripts/clients",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--only", default="", help=f"comma separated: {', '.join(CLIENTS)}")
    made.add_argument(
        "--allow-missing",
        action="store_true",
        help="leave out clients whose tool is missing, without exit code 2",
    )
    made.add_argument(
        "--messages", type=int, default=40, help="messages of each pair, at least 10 (default 40)"
    )
    made.add_argument(
        "--due", type=float, default=90.0, help="seconds until the messages are due (default 90)"
    )
    made.add_argument(
        "--misplaced",
        choices=("forward", "reject"),
        default="forward",
        help=(
            "`topics.misplaced` of the service (default forward); with reject the campaign must "
            "find wrong messages"
        ),
    )
    made.add_argument("--seed", type=int, default=1, help="seed of the bytes in ids (default 1)")
    made.add_argument(
        "--part",
        choices=("all", "cancels", "readers", "snippets", "generated"),
        default="all",
        help="what is tried (default all)",
    )
    made.add_argument(
        "--programs",
        type=Path,
        default=ROOT / ".cache" / "clients",
        help="directory of the programs and their packages (default .cache/clients)",
    )
    return made


def main() -> int:
    """Set up the clients, run the campaign, print the tables."""
    arguments = parser().parse_args()
    names = arguments.only.split(",") if arguments.only else list(CLIENTS)
    if unknown := set(names) - set(CLIENTS):
        parser().error(f"unknown clients: {', '.join(sorted(unknown))}")
    if arguments.messages < 10:
        parser().error("--messages must be at least 10")
    without = ("snippets", "generated")
    chosen = [] if arguments.part in without else [CLIENTS[name] for name in names]
    absent = left_out(chosen)
    if arguments.part in ("all", "snippets"):
        absent |= {
            f"the snippet {each.name}": reason for each in snippets() if (reason := each.missing())
        }
    if arguments.part in ("all", "generated"):
        absent |= {each.name: reason for each in GENERATORS if (reason := each.missing())}
    for name, reason in absent.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)
    if absent and not arguments.allow_missing:
        print(
            "choose clients with --only, or go on without these with --allow-missing",
            file=sys.stderr,
        )
        return INCOMPLETE
    try:
        if arguments.part in ("all", "generated"):
            with tempfile.TemporaryDirectory() as folder:
                run_generated(Path(folder), arguments.programs.resolve())
        if arguments.part == "generated":
            return 0
        programs = set_up(
            [client for client in chosen if client.name not in absent], arguments.programs.resolve()
        )
        return campaign(programs, arguments)
    except (BrokerError, ClientError, ServiceError, TooSlow) as error:
        print(f"error: {error}", file=sys.stderr)
        return INCOMPLETE


def missed(outcome: Outcome) -> list[str]:
    """What the outcome must not have."""
    bad = sum(sum(kinds.values()) for kinds in outcome.wrong.values())
    rejections = sum(outcome.rejected.values())
    found = {f"{bad} messages are wrong": bad, f"{rejections} records were rejected": rejections}
    return [text for text, count in found.items() if count]


def campaign(programs: list[Program], arguments: argparse.Namespace) -> int:
    """Run it on a broker of its own."""
    topics, outcome, found = Topics.of("clients"), None, {}
    complaints: list[str] = []
    with tempfile.TemporaryDirectory() as folder, Broker() as broker:
        if arguments.part in ("all", "cancels"):
            settings = topics.settings(shards=SHARDS, topics__misplaced=arguments.misplaced)
            with Service(
                Path(folder, "node"), bootstrap=broker.bootstrap, settings=settings
            ) as service:
                service.start()
                outcome = run(
                    broker,
                    service,
                    topics,
                    programs,
                    arguments.messages,
                    arguments.due,
                    arguments.seed,
                )
                assert service.stop() == 0, service.tail()
            print(table(outcome, programs, arguments.messages), flush=True)
            complaints += missed(outcome)
        if arguments.part in ("all", "readers"):
            found = readings(broker, programs)
            complaints += unlike_documented(found)
        if arguments.part in ("all", "snippets"):
            run_snippets(broker, Path(folder), arguments.programs.resolve())
    if arguments.part != "snippets":
        print(summary(outcome, found, programs))
    for text in complaints:
        print(f"missed: {text}")
    return WRONG if complaints else 0


def run_snippets(broker: Broker, folder: Path, programs: Path) -> None:
    """Run each program of the documentation whose tools are there; a line for each."""
    topics = Topics.of("snippets")
    settings = topics.settings(shards=SHARDS)
    with Service(folder / "snippets", bootstrap=broker.bootstrap, settings=settings) as service:
        service.start()
        target = broker.create_topic("snippets.target")
        place = Place(broker.bootstrap, service.url, topics.delay, target)
        for number, snippet in enumerate(snippets()):
            if snippet.missing():
                continue
            snippet.run(place, f"snippet-{number}", programs)
            with Tail(broker.bootstrap, target) as tail:
                wait_for_message(tail, target, f"snippet-{number}")
            print(f"delivered: the message of the snippet {snippet.name}", flush=True)
        assert service.stop() == 0, service.tail()


if __name__ == "__main__":
    sys.exit(main())
