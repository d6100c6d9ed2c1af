"""Handlers of the console's view Audit: entries of the audit trail, and the results of audits of
the archive.

This module only reads: `admin/http/audit.py` writes the trail. A result is what `chronos audit -o
json` prints, which the operator puts into a file in the folder `admin.archive_audits`. The trail of
this node alone is read, from its end, in bounded parts. Its entries are only roughly in order:
nodes may share a file, each with the time of its own clock."""

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from chronos.admin.http.context import Call, Context
from chronos.admin.http.encoding import begin_again
from chronos.admin.http.problems import ProblemError, converted, wrong_field
from chronos.admin.http.schemas import (
    ArchiveAudit,
    ArchiveAudits,
    ArchiveAuditsQuery,
    ArchiveVerdict,
    AuditedMessages,
    AuditedReason,
    AuditEntry,
    AuditPage,
    AuditQuery,
    AuditSample,
    WholeArchiveAudit,
)
from chronos.admin.messages.scheduling import time_ms
from chronos.core.timefmt import format_time
from chronos.node.opening import open_audit_trail
from chronos.ports import AuditTrail

PART_S = 2.0
"""How long one page may read; at least one entry is read."""

DISORDER_MS = 60_000
"""How far the clocks of the nodes may differ: so far before `since` is still looked for entries."""

_decode = msgspec.json.Decoder(AuditEntry).decode

Part = tuple[list[AuditEntry], Sequence[int] | None, int]
"""The entries of a page, the position behind them, None if everything was read, and the number of
entries that were read."""

RESULT = ".json"
"""The ending of the files that are results."""

RESULT_BYTES_MAX = 8 << 20
"""A larger file is not read. `chronos audit` prints at most 10,000 rows by hour and 1,000 targets:
some 3 MB."""

BROKEN = ("missing", "duplicated", "early")
"""Outcomes that break a promise."""


class Period(msgspec.Struct, frozen=True):
    """Times as entries have them, which order like text."""

    since: str
    until: str | None
    begin: str
    """No entry before this one is in the period."""


class AuditReads:
    """The handler of `/v1/audit`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def page(self, call: Call) -> tuple[int, object]:
        """Entries of the trail, the newest first."""
        query: AuditQuery = call.query
        context = self._context
        trail = open_audit_trail(context.node.config)
        if trail is None:
            raise ProblemError(
                501,
                "no-trail",
                "audit.path is not set: the trail is in the log lines of `chronos.audit` of each "
                "node",
                hint="set audit.path to a file to read it here",
            )
        period = _period(query)
        behind = None if query.after is UNSET else context.cursors.open(call, query, query.after)
        try:
            found, position, read = await context.in_thread(_part, trail, query, period, behind)
        except LookupError:
            raise begin_again() from None
        return 200, AuditPage(
            entries=found,
            after=None if position is None else context.cursors.seal(call, query, position),
            read=read,
        )


def _period(query: AuditQuery) -> Period:
    since_ms = 0 if query.since is UNSET else converted("since", time_ms, query.since)
    until_ms = None if query.until is UNSET else converted("until", time_ms, query.until)
    if until_ms is not None and since_ms > until_ms:
        raise wrong_field("until", "lies before since, so that nothing is in between")
    return Period(
        since=format_time(since_ms),
        until=None if until_ms is None else format_time(until_ms),
        begin=format_time(max(0, since_ms - DISORDER_MS)),
    )


def _part(
    trail: AuditTrail, query: AuditQuery, period: Period, behind: Sequence[int] | None
) -> Part:
    """Read until the page is full, the time is over, or the period has ended."""
    ends_s = time.monotonic() + PART_S
    found: list[AuditEntry] = []
    position = behind
    read = 0
    with closing(trail.newest(behind)) as entries:
        for data, position in entries:
            read += 1
            entry = _entry(data)
            if entry is not None and entry.time < period.begin:
                return found, None, read
            if entry is not None and _is_wanted(entry, query, period):
                found.append(entry)
            if len(found) == query.limit or time.monotonic() >= ends_s:
                return found, position, read
    return found, None, read


def _entry(data: bytes) -> AuditEntry | None:
    """The entry; None for a line that a full disk cut short, or a record of another program."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _is_wanted(entry: AuditEntry, query: AuditQuery, period: Period) -> bool:
    return (
        query.token in (UNSET, entry.token)
        and query.action in (UNSET, entry.verb)
        and query.phase in (UNSET, entry.phase)
        and (query.id is UNSET or query.id in entry.ids)
        and (not query.refused or entry.status >= 400)
        and period.since <= entry.time
        and (period.until is None or entry.time < period.until)
    )


class _Result(AuditedMessages, kw_only=True, rename={"start": "from", "end": "to"}):
    """The fields of the output of `chronos audit -o json` that are shown."""

    cluster: str
    start: str
    end: str
    archived: str | None
    judged_until: str
    clean: bool
    not_proved: list[str]
    reasons: list[AuditedReason]
    targets: list[AuditedMessages]
    worst: list[AuditedMessages]
    samples: list[AuditSample]


_decode_result = msgspec.json.Decoder(_Result).decode
_SHOWN = set(_Result.__struct_fields__) & set(WholeArchiveAudit.__struct_fields__)


class FileState(NamedTuple):
    """The parts of a file's status that change with its contents or permissions."""

    written_ns: int
    changed_ns: int
    size: int
    inode: int

    @property
    def written_at(self) -> str:
        return format_time(self.written_ns // 1_000_000)


def state_of(status: os.stat_result) -> FileState:
    """Return the part of a file's status that is compared."""
    return FileState(status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


class ArchiveAuditReads:
    """The handlers of `/v1/archive-audits`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._one_at_a_time = asyncio.Lock()
        """A folder on a network may hang: no more than one thread waits for it."""
        self._known: dict[str, tuple[FileState, ArchiveAudit]] = {}
        """Results that were read, by file, each with the state of the file then."""

    async def page(self, call: Call) -> tuple[int, object]:
        """The newest results, without their details."""
        query: ArchiveAuditsQuery = call.query
        async with self._one_at_a_time:
            return 200, await self._context.in_thread(self._newest, self._folder(), query.limit)

    async def audit(self, call: Call) -> tuple[int, object]:
        """One result."""
        name = call.request.match_info["audit"]
        async with self._one_at_a_time:
            return 200, await self._context.in_thread(_one, self._folder(), name)

    def _folder(self) -> Path:
        folder = self._context.node.config.admin.archive_audits
        if folder is None:
            raise ProblemError(
                501,
                "no-audits",
                "admin.archive_audits is not set",
                hint="set it to a folder, and let `chronos audit -o json` write its results there",
            )
        return Path(folder)

    def _newest(self, folder: Path, limit: int) -> ArchiveAudits:
        files = _files(folder)
        self._known = {name: known for name, known in self._known.items() if name in files}
        newest = sorted(files, key=lambda name: (-files[name].written_ns, name))[:limit]
        return ArchiveAudits(
            audits=[self._summary(folder, name, files[name]) for name in newest], total=len(files)
        )

    def _summary(self, folder: Path, name: str, state: FileState) -> ArchiveAudit:
        known = self._known.get(name)
        if known is not None and known[0] == state:
            return known[1]
        try:
            whole = read_result(folder, name, state)
        except OSError as error:
            return ArchiveAudit(name=name, written_at=state.written_at, problem=_why(error))
        fields = {field: getattr(whole, field) for field in ArchiveAudit.__struct_fields__}
        self._known[name] = state, ArchiveAudit(**fields)
        return self._known[name][1]


def _files(folder: Path) -> dict[str, FileState]:
    """Return the states of the results by their names without the ending. Hidden files, such as
    those of an editor, and names that are not UTF-8 are left out."""
    found = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name.removesuffix(RESULT)
                if name == entry.name or name.startswith(".") or not name or not _is_text(name):
                    continue
                # It may be gone meanwhile.
                with suppress(OSError):
                    if entry.is_file():
                        found[name] = state_of(entry.stat())
    except OSError as error:
        raise ProblemError(
            503, "unavailable", f"admin.archive_audits cannot be read: {error}"
        ) from None
    return found


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _why(error: OSError) -> str:
    return f"cannot be read: {error.strerror}"


def read_result(folder: Path, name: str, state: FileState) -> WholeArchiveAudit:
    """Return the result in a file, or why it has none. Raises OSError."""
    found = WholeArchiveAudit(name=name, written_at=state.written_at)
    with (folder / f"{name}{RESULT}").open("rb") as file:
        data = file.read(RESULT_BYTES_MAX + 1)
    if not data:
        return replace(found, problem="empty: the audit is running, or it failed")
    if len(data) > RESULT_BYTES_MAX:
        return replace(found, problem=f"larger than {RESULT_BYTES_MAX >> 20} MiB")
    try:
        result = _decode_result(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return replace(found, problem=f"not a result of `chronos audit -o json`: {error}")
    verdict: ArchiveVerdict = "clean"
    if not result.clean:
        verdict = "broken" if any(map(result.counts.get, BROKEN)) else "not-proved"
    known = {field: getattr(result, field) for field in _SHOWN}
    return replace(found, verdict=verdict, **known)


def _one(folder: Path, name: str) -> WholeArchiveAudit:
    state = _files(folder).get(name)
    if state is None:
        raise ProblemError(404, "no-audit", f"admin.archive_audits has no {name}{RESULT}")
    try:
        found = read_result(folder, name, state)
    except OSError as error:
        raise ProblemError(404, "no-audit", f"{name}{RESULT}: {_why(error)}") from None
    if isinstance(found.problem, str):
        raise ProblemError(404, "no-audit", f"{name}{RESULT}: {found.problem}")
    return found
