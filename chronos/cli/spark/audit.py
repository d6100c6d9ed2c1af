"""`chronos audit`: the outcomes of the archived messages that were due in a window, counted, as
tables or JSON, and as an HTML report; and the forms of `--from` and `--to`."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from chronos.cli.options import SparkOptions
from chronos.cli.output import Format, note, number, printable, put, put_json, table
from chronos.cli.spark.archive import archive_job
from chronos.client.requests import delay_ms
from chronos.core.timefmt import format_time, parse_time_ms
from chronos.errors import ArchiveFailed
from chronos.spark.objective import Result, parse_objective, results

if TYPE_CHECKING:
    from chronos.spark.audit.job import Audit
    from chronos.spark.audit.summary import SummaryRow

TARGETS_SHOWN = 20
"""Targets shown on the terminal; `-o json` has all of the summary."""

NOT_PROVED = 6
"""Exit code: no promise was broken as far as the archive proves, and it does not prove every
outcome."""

OBJECTIVE_MISSED = 7
"""Exit code: no promise was broken, and an objective of `--slo` was missed."""

DAYS_SHOWN = 10
"""Days that missed an objective shown on the terminal."""

SAMPLES_SHOWN = 10
"""Broken promises shown on the terminal."""


LOST = {
    "recreated": "was deleted and created again",
    "deleted": "does not exist any more",
    "truncated": "lost records that were archived",
}
"""The change of a target, by the reason of its last gap."""


def parse_moment(text: str, now_ms: int, option: str) -> int:
    """Epoch ms of RFC 3339, epoch ms, `now`, or a time before now such as `-2h`."""
    try:
        if text == "now":
            return now_ms
        if text.startswith("-"):
            return max(0, now_ms - delay_ms(text[1:]))
        return parse_time_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}; or a time before now, such as -2h") from None


def parse_window(start: str | None, end: str | None, now_ms: int) -> tuple[int | None, int | None]:
    """Epoch ms of `--from` and `--to`, each None if it is not given."""
    from_ms = None if start is None else parse_moment(start, now_ms, "--from")
    to_ms = None if end is None else parse_moment(end, now_ms, "--to")
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise typer.BadParameter("--from must lie before --to")
    return from_ms, to_ms


def run(
    output: Format,
    options: SparkOptions,
    *,
    start: str | None,
    end: str | None,
    details: str | None,
    report: str | None,
    slo: list[str],
) -> None:
    """Audit and show the result; exit code 1 if a promise was broken, OBJECTIVE_MISSED if an
    objective was missed, NOT_PROVED if not every outcome is proved."""
    try:
        objectives = [parse_objective(each) for each in slo]
    except ValueError as error:
        raise typer.BadParameter(f"--slo: {error}") from None
    now_ms = time.time_ns() // 1_000_000
    from_ms, to_ms = parse_window(start, end, now_ms)
    if details is not None:
        from chronos.spark.session import need_spark

        need_spark()
        from chronos.spark.audit.job import check_details

        check_details(details)  # before Spark starts, which takes seconds
    with archive_job("audit", options, "stopped; nothing was judged") as (spark, storage, display):
        from chronos.spark.audit.job import EmptyWindow, audit

        try:
            found = audit(
                spark,
                storage,
                from_ms=from_ms,
                to_ms=to_ms,
                now_ms=now_ms,
                details=details,
                watch=display,
            )
        except EmptyWindow as error:
            raise typer.BadParameter(str(error)) from None
    _publish(found, output, report, results(objectives, found.overall, found.days))


def _publish(
    found: "Audit", output: Format, report: str | None, objectives: Sequence[Result] = ()
) -> None:
    """Show the audit, then write its page: a page that cannot be written does not cost the
    result."""
    if output is Format.json:
        put_json(as_json(found, objectives))
    else:
        _show(found, objectives)
    if report is not None:
        _write_report(found, report, objectives)
    if found.broken:
        raise typer.Exit(1)
    if not all(each.met for each in objectives):
        raise typer.Exit(OBJECTIVE_MISSED)
    if not found.clean:
        raise typer.Exit(NOT_PROVED)


def _write_report(found: "Audit", path: str, objectives: Sequence[Result]) -> None:
    from chronos.spark.audit.report import html

    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(html(found, objectives))
    except OSError as error:
        raise ArchiveFailed(f"the report cannot be written: {error}") from None
    note(f"the report is in {path}")


def as_json(found: "Audit", objectives: Sequence[Result] = ()) -> dict[str, Any]:
    """The object that `-o json` prints: times as RFC 3339, lateness in ms."""

    def row(each: "SummaryRow") -> dict[str, Any]:
        late = each.lateness
        return {
            **({} if each.target is None else {"target": each.target}),
            **({} if each.at_ms is None else {"at": format_time(each.at_ms)}),
            "counts": each.counts,
            "lateness": {
                "count": late.count,
                "p50_ms": late.p50_ms,
                "p99_ms": late.p99_ms,
                "p999_ms": late.p999_ms,
                "max_ms": late.max_ms,
            },
        }

    return {
        "cluster": found.cluster,
        "from": format_time(found.span.from_ms),
        "to": format_time(found.span.to_ms),
        "archived": _time(found.archived_ms or None),
        "judged_until": format_time(found.judged_ms),
        "clean": found.clean,
        "not_proved": found.not_proved,
        "objectives": [
            {
                "objective": each.objective.text,
                "value_ms": each.value_ms,
                "met": each.met,
                "missed_days": [format_time(day)[:10] for day in each.missed_days],
            }
            for each in objectives
        ],
        **row(found.overall),
        "reasons": [
            {"outcome": outcome, "reason": why, "count": count}
            for outcome, why, count in found.reasons
        ],
        "targets": [row(each) for each in found.targets],
        "hours": [row(each) for each in found.hours],
        "days": [row(each) for each in found.days],
        "worst": [row(each) for each in found.worst],
        "samples": [
            {
                "outcome": each.outcome,
                "shard": each.shard,
                "offset": each.source_offset,
                "target": each.target,
                "due_minute": format_time(each.at_ms),
            }
            for each in found.samples
        ],
        "shards": [
            {
                "shard": each.shard,
                "settled_until": _time(each.settled_ms),
                "gap": _time(each.gap_ms),
            }
            for each in found.shards
        ],
        "archived_targets": [
            {
                "target": each.target,
                "archived_until": _time(each.covered_ms),
                "gap": _time(each.gap_ms),
                "gap_reason": each.gap_reason,
                "compacted": _time(each.compacted_ms),
                "known_since": _time(each.born_ms),
                "open_transaction": each.unresolved,
            }
            for each in found.archived_targets
        ],
        "details": found.details,
        "versions": found.versions,
    }


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else format_time(at_ms)


def _show(found: "Audit", objectives: Sequence[Result] = ()) -> None:
    from rich.console import Group
    from rich.text import Text

    from chronos.spark.audit.outcomes import OUTCOMES, WRONG
    from chronos.spark.audit.report import MEANINGS, share

    counts, late = found.overall.counts, found.overall.lateness
    total = sum(counts.values())
    parts: list[Any] = [
        Text(
            f"{printable(found.cluster)}: messages due from {format_time(found.span.from_ms)}"
            f" to {format_time(found.span.to_ms)}"
        ),
        Text(
            f"judged up to {format_time(found.judged_ms)}, archived "
            f"{_time(found.archived_ms or None) or 'not yet'}\n"
        ),
    ]
    if not total:
        nothing = (
            "nothing was due"
            if found.archived_ms >= found.span.to_ms
            else "no archived message is due"
        )
        parts.append(Text(f"{nothing} in this window"))
    else:
        rows = [
            (name, number(counts[name]), share(counts[name], total), MEANINGS[name])
            for name in OUTCOMES
            if counts.get(name)
        ]
        parts.append(
            table(
                [("OUTCOME", "left"), ("MESSAGES", "right"), ("SHARE", "right"), ("", "left")], rows
            )
        )
        parts.append(
            Text(
                f"\nlateness of {number(late.count)} delivered: p50 {_ms(late.p50_ms)}, p99 "
                f"{_ms(late.p99_ms)},"
                f" p99.9 {_ms(late.p999_ms)}, max {_ms(late.max_ms)}\n"
            )
        )
        columns = [
            ("TARGET", "left"),
            ("MESSAGES", "right"),
            *((name.upper(), "right") for name in WRONG),
            ("LATE p50", "right"),
            ("p99", "right"),
            ("p99.9", "right"),
            ("max", "right"),
        ]
        parts.append(table(columns, [_cells(each) for each in found.targets[:TARGETS_SHOWN]]))
        if len(found.targets) > TARGETS_SHOWN:
            parts.append(
                Text(f"and {number(len(found.targets) - TARGETS_SHOWN)} more targets: see -o json")
            )
    for each in found.samples[:SAMPLES_SHOWN]:
        where = (
            f"shard {each.shard}, offset {each.source_offset}, for {printable(each.target or '-')}"
        )
        parts.append(
            Text(
                f"{each.outcome}: {where}, due {format_time(each.at_ms)} or within a minute", "red"
            )
        )
    put(Group(*parts))
    for warning in warnings(found):
        note(warning)
    if found.broken:
        put(Text("promises were broken: " + _wrong(counts), "red"))
    for result in objectives:
        put(Text(_objective(result), "" if result.met else "red"))
    if found.not_proved:
        put(
            Text(
                "not everything could be judged: " + "; ".join(found.not_proved),
                "yellow" if sys.stdout.isatty() else "",
            )
        )
    if found.clean:
        green = "green" if sys.stdout.isatty() else ""
        put(
            Text(
                (
                    f"nothing is missing, duplicated or early: {number(total)} messages, each "
                    "with its outcome"
                ),
                green,
            )
            if not counts.get("pending")
            else Text(
                (
                    f"nothing due before {format_time(found.judged_ms)} is missing, duplicated or "
                    "early"
                ),
                green,
            )
        )


def _objective(result: Result) -> str:
    """One line about an objective; a missed one with the days that missed it."""
    objective = result.objective
    verdict = "met" if result.met else "missed"
    line = f"objective {objective.text} is {verdict}: {objective.figure} is {_ms(result.value_ms)}"
    if not result.missed_days:
        return line
    shown = ", ".join(format_time(day)[:10] for day in result.missed_days[:DAYS_SHOWN])
    more = len(result.missed_days) - DAYS_SHOWN
    return f"{line}; missed on {shown}" + (f" and {more} more days" if more > 0 else "")


def warnings(found: "Audit") -> list[str]:
    """One line for each reason why the audit could not judge more."""
    lines = []
    counts = found.overall.counts
    if counts.get("unknown"):
        lines.append(
            f"{number(counts['unknown'])} messages are unknown: `chronos backfill` does not send "
            "them; with --gone --target it sends those that are not in their target"
        )
    if counts.get("pending"):
        lines.append(
            f"{number(counts['pending'])} messages are not judged yet: run `chronos archive`, "
            "then audit again"
        )
    gaps = [str(each.shard) for each in found.shards if each.gap_ms is not None]
    if gaps:
        lines.append(f"records of shards {', '.join(gaps)} were deleted before they were archived")
    for each in found.archived_targets:
        if each.gap_reason in LOST:
            lines.append(
                f"{printable(each.target)} {LOST[each.gap_reason]}: the audit counts what was "
                "delivered, not what is there now; `chronos backfill --gone --target "
                f"{printable(each.target)}` finds what was lost with it"
            )
        elif each.gap_ms is not None:
            lines.append(
                f"records of {printable(each.target)} were deleted before they were archived"
            )
        if each.compacted_ms is not None:
            lines.append(
                f"{printable(each.target)} is compacted: a record that a newer one replaced may "
                "have been removed before it was archived"
            )
        if each.unresolved:
            lines.append(
                f"a transaction was open in {printable(each.target)} when it was last archived"
            )
    return lines


def _cells(row: "SummaryRow") -> list[str]:
    from chronos.spark.audit.outcomes import WRONG

    late = row.lateness
    return [
        printable(row.target or "-"),
        number(sum(row.counts.values())),
        *(number(row.counts.get(name, 0)) for name in WRONG),
        *(_ms(value) for value in (late.p50_ms, late.p99_ms, late.p999_ms, late.max_ms)),
    ]


def _ms(value: int | None) -> str:
    from chronos.spark.audit.report import duration

    return duration(value)


def _wrong(counts: dict[str, int]) -> str:
    from chronos.spark.audit.outcomes import WRONG

    return ", ".join(f"{number(counts[name])} {name}" for name in WRONG if counts.get(name))
