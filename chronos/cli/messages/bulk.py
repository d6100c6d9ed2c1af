"""Bulk operations on the command line: the jobs that change or count all pending messages of a
filter, their progress, and the list of a node's jobs.

A node of the service runs the job, not this process. Ctrl-C stops the job; what it wrote stays."""

import sys
import time
from typing import Any

import msgspec
import typer

from chronos.cli.options import ChangeOptions, check_when
from chronos.cli.output import (
    Format,
    connect,
    counted,
    local,
    note,
    number,
    printable,
    put,
    put_json,
    relative,
    span,
    table,
    worded,
)
from chronos.client import (
    Client,
    Job,
    NotFound,
    Refused,
    ServiceFailed,
    Unreachable,
    requests,
)
from chronos.client.requests import FilterOptions

DONE = {
    "cancel": "cancelled",
    "reschedule": "rescheduled",
    "fire": "fired",
    "pause": "paused",
    "resume": "resumed",
}

LOOK_EVERY_S = 0.2
"""Pause between two looks at a job."""

LINE_EVERY_S = 5.0
"""Seconds between two lines of progress where stderr is not a terminal."""

SILENT_S = 30.0
"""How long the node may not answer before the command gives up."""

TARGETS_SHOWN = 20
"""Targets shown as text; `-o json` has all of them."""

LOST = "the job ends with its node; what it wrote stays. Repeat the command for the rest"


def act(
    server: str,
    output: Format,
    change: ChangeOptions,
    matching: FilterOptions,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """1. count, 2. ask for confirmation, 3. run the job. Exit code 0 once every message was looked
    at and no action failed."""
    verb, delay, at, until = change.verb, change.delay, change.at, change.until
    if verb == "reschedule" and not (dry_run and at is None and delay is None):
        check_when(at, delay)
    if not (dry_run or yes or sys.stdin.isatty()):
        raise typer.BadParameter(
            "stdin is not a terminal, so the command cannot ask: give --yes, or count first with "
            "--dry-run"
        )
    if verb in ("pause", "resume"):
        matching = {**matching, "series": True}
    if dry_run:
        count(server, output, matching)
        return
    with connect(server) as client:
        if not yes:
            found = _run(client, requests.start_job("count", matching), by_delay=False)
            _show_targets(found, to_stdout=False)
            _check(found)
            if not found["matched"]:
                return
            count_text = counted(found["matched"], "message")
            if "series" in matching:
                count_text = f"{found['matched']:,} series"
            if not typer.confirm(f"{verb} {count_text}?", err=True):
                note("nothing was changed")
                raise typer.Exit(1)
        found = _run(
            client,
            requests.start_job(verb, matching, at, delay, until),
            by_delay=delay is not None,
        )
    if output is Format.json:
        put_json(found)
    else:
        print(_result(msgspec.convert(found, Job), DONE[verb]))
    _check(found)


def count(server: str, output: Format, matching: FilterOptions) -> None:
    """The pending messages of a filter, counted by target; without conditions all of them."""
    with connect(server) as client:
        found = _run(client, requests.start_job("count", matching), by_delay=False)
    if output is Format.json:
        put_json(found)
    else:
        _show_targets(found, to_stdout=True)
    _check(found)


def _check(found: dict[str, Any]) -> None:
    """End with exit code 1 unless the job did all of its work."""
    job = msgspec.convert(found, Job)
    if job:
        return
    if job.state == "done":
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in job.reasons.items())
        raise ServiceFailed(f"{counted(job.failed, 'action')} failed: {reasons or 'not written'}")
    raise ServiceFailed(
        f"the job was {job.state}: {job.error}; what it wrote stays. Repeat the command for the "
        "rest"
    )


def _run(client: Client, request: requests.HttpRequest, *, by_delay: bool) -> dict[str, Any]:
    """Start a job and show its progress until it has ended; Ctrl-C stops it."""
    try:
        found: dict[str, Any] = client.call(request.as_json())
    except Refused as refused:
        raise worded(refused, by_delay=by_delay) from None
    progress = _Progress()
    try:
        heard_s = time.monotonic()
        while found["state"] == "running":
            time.sleep(LOOK_EVERY_S)
            try:
                found = client.call(requests.job(found["id"]).as_json())
                heard_s = time.monotonic()
            except NotFound:
                raise ServiceFailed(f"the node was restarted: {LOST}") from None
            except Unreachable as error:
                if time.monotonic() - heard_s > SILENT_S:
                    raise Unreachable(f"{error} Job {found['id']}: {LOST}") from None
            progress.show(found)
    except KeyboardInterrupt:
        found = client.call(requests.stop_job(found["id"]).as_json())
    finally:
        progress.close()
    return found


def _result(job: Job, done: str) -> str:
    parts = [f"{job.done:,} {done}"]
    if job.too_late:
        parts.append(f"{job.too_late:,} too late")
    if job.failed:
        parts.append(f"{job.failed:,} failed")
    left = job.matched - job.done - job.too_late - job.failed
    if job.action == "resume" and job.state == "done" and left:
        parts.append(f"{left:,} not paused")
    return f"{', '.join(parts)} in {span(job.elapsed_ms / 1_000)}"


def _show_targets(found: dict[str, Any], *, to_stdout: bool) -> None:
    """The counts by target: the result of a dry run, otherwise on stderr before the question."""
    job = msgspec.convert(found, Job)
    rows = [(printable(each.topic), number(each.messages)) for each in job.targets[:TARGETS_SHOWN]]
    rest = job.matched - sum(each.messages for each in job.targets[:TARGETS_SHOWN])
    if rest:
        rows.append(("other targets", number(rest)))
    if not rows:
        note("no pending message matches")
    elif to_stdout:
        put(
            table(
                [("TARGET", "left"), ("MESSAGES", "right")], [*rows, ("all", number(job.matched))]
            )
        )
    else:
        for topic, messages in rows:
            note(f"{messages:>12}  {topic}")


class _Progress:
    """The progress of a job on stderr: a bar on a terminal, a line every few seconds elsewhere."""

    def __init__(self) -> None:
        self._line_s = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def show(self, found: dict[str, Any]) -> None:
        """Show the current counts."""
        counts = f"{found['matched']:,} match"
        if found["action"] != "count":
            counts += f", {found['done']:,} done, {found['rate']:,.0f}/s"
        if not sys.stderr.isatty():
            if time.monotonic() - self._line_s >= LINE_EVERY_S:
                self._line_s = time.monotonic()
                note(
                    f"{found['action']}: {found['scanned']:,} of {found['expected']:,} read, "
                    f"{counts}"
                )
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        if self._bar is None:
            columns = (BarColumn(20), TextColumn("{task.description}", markup=False))
            self._bar = Progress(
                *columns, console=Console(stderr=True, highlight=False), transient=True
            )
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        total = max(found["expected"], found["scanned"]) or None
        self._bar.update(self._task, description=counts, completed=found["scanned"], total=total)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()


def show(server: str, output: Format, id: str | None, *, stop: bool) -> None:
    """The jobs of a node, or one; or stop one."""
    with connect(server) as client:
        if id is None:
            request = requests.jobs()
        else:
            request = requests.stop_job(id) if stop else requests.job(id)
        found = client.call(request.as_json())
    if output is Format.json:
        put_json(found)
    elif id is not None:
        put(table(None, _facts(msgspec.convert(found, Job), found["filter"])))
    elif found["jobs"]:
        headings = [
            ("JOB", "left"),
            ("ACTION", "left"),
            ("STATE", "left"),
            ("BEGAN", "left"),
            ("MATCHED", "right"),
            ("DONE", "right"),
            ("TOO LATE", "right"),
            ("FAILED", "right"),
            ("PER SECOND", "right"),
        ]
        put(table(headings, [_line(each) for each in msgspec.convert(found["jobs"], list[Job])]))
    else:
        note("no jobs")


def _line(job: Job) -> tuple[str, ...]:
    counts = (
        number(count)
        for count in (job.matched, job.done, job.too_late, job.failed, round(job.rate))
    )
    return job.id, job.action, job.state, relative(job.started_at), *counts


def _facts(job: Job, matching: dict[str, Any]) -> list[tuple[str, str]]:
    conditions = ", ".join(f"{name} {value}" for name, value in matching.items())
    facts = [
        ("job", job.id),
        ("node", job.node),
        ("action", job.action),
        ("filter", printable(conditions) or "all messages"),
        ("state", job.state if job.error is None else f"{job.state}: {job.error}"),
        ("began", f"{local(job.started_at)}  ({relative(job.started_at)})"),
        ("took", span(job.elapsed_ms / 1_000)),
        ("read", f"{job.scanned:,} of {job.expected:,}"),
        ("matched", number(job.matched)),
    ]
    if job.action != "count":
        facts += [
            ("done", f"{job.done:,}  ({job.rate:,.0f} per second)"),
            ("too late", number(job.too_late)),
        ]
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in job.reasons.items())
        facts.append(("failed", f"{job.failed:,}  {reasons}".rstrip()))
    facts += [
        (f"to {printable(each.topic)}", number(each.messages))
        for each in job.targets[:TARGETS_SHOWN]
    ]
    return facts
