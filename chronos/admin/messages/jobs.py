"""Bulk operations over HTTP: jobs that cancel, reschedule, fire, pause, resume or count all pending
messages that a filter selects.

A job writes an action, an ordinary record of the delay topic, for each message that it is to
change; it changes no store itself. `count` writes none, and an action is written again if the log
did not acknowledge it. Pause and resume concern series only. A job runs on the node that received
the request, for the shards that this node holds; for the other shards it starts jobs on nodes that
hold them and adds up their counts. Jobs are kept in memory: a node that starts again does not know
its jobs. A node that stops also stops the parts on other nodes; after a crash they go on without
it. The actions that were written remain, and the same job may be started again."""

import asyncio
import secrets
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import aiohttp
import msgspec
import structlog
from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from chronos.admin.cluster.peers import NOT_CONNECTED, silent
from chronos.admin.http.access import forbidden
from chronos.admin.http.context import Call, Context
from chronos.admin.http.problems import ProblemError, beyond_limits, decode_body, wrong_field
from chronos.admin.http.schemas import (
    JobFilter,
    JobInfo,
    JobRequest,
    Jobs,
    Reschedule,
    ShardsQuery,
    TargetCount,
)
from chronos.admin.http.tokens import Sender
from chronos.admin.messages.listing import to_filter
from chronos.admin.messages.scheduling import Rhythm, new_time, paused, plan_action, resumed
from chronos.core.cluster.roles import Member
from chronos.core.keys import id_key, parse_generated_id, partition_of
from chronos.core.message import ACTION, ID, Reason
from chronos.core.query.filter import Filter
from chronos.core.query.lookup import find
from chronos.core.query.scan import Match, pending_between, scan_pending
from chronos.core.reach import EVERYTHING, Reach
from chronos.core.shard.codec import PENDING, unpack_id_state
from chronos.core.timefmt import format_time
from chronos.errors import ChronosError, Retry
from chronos.ports import Appended, Outgoing

BATCH = 1_000
"""Actions written at a time; fewer than twice as many when a scan finds more."""

IN_FLIGHT = 2
"""Batches written and not applied yet: few, so that the steps of the shard stay short and
deliveries go on."""

COLLECT_S = 0.25
"""How long matching messages may wait for their batch to be full."""

RECORD_BYTES = 200
"""Bytes of an action's record without its id, roughly."""

CAUGHT_UP_S = 10.0
"""How long a job waits at its beginning until the shard has applied the records that are in the
log."""

WRITE_S = 60.0
"""How long a batch is tried again while the log does not take it."""

AGAIN_S = 1.0
"""Pause before it is tried again."""

RESULTS_S = 3.0
"""How long a stopped job waits for the results of its last batches."""

TARGETS_MAX = 10_000
"""Targets counted one by one."""

log = structlog.get_logger("chronos.http")

KEPT_MAX = 100
"""Jobs that are kept; the oldest ended ones are forgotten first."""

RUNNING_MAX = 10
"""Jobs that run at a time: each keeps a snapshot of the store."""

ASK_EVERY_S = 0.5
"""How often another node is asked about its part of a job."""

SILENT_S = 30.0
"""How long the other node may fail to answer before the job fails."""

STOP_S = 5.0
"""How long a request to stop a job waits until it has ended."""

VERBS = {
    "cancel": b"cancel",
    "reschedule": b"reschedule",
    "fire": b"fire-now",
    "pause": b"reschedule",
    "resume": b"reschedule",
    "count": None,
}

PART_AGAIN = (
    "a part of the job may go on: look at `chronos jobs` of that node before you repeat the command"
)

SAMPLE_ID = b"sample"
"""An id with which the action of a job is checked before it starts."""

_decode_request = msgspec.json.Decoder(JobRequest).decode
_decode_info = msgspec.json.Decoder(JobInfo).decode


class Order(Struct, frozen=True, kw_only=True):
    """The action of a job, its filter and its parameters."""

    matching: Filter
    verb: bytes | None
    """The action; None: messages are counted only."""
    time: tuple[str, bytes] | None = None
    """The header with the new time of a `reschedule`."""
    rhythm: Rhythm | None = None
    """The new time of each series that is paused, or goes on."""


class Counts(Struct):
    """The counts of a job so far. For one event loop."""

    expected: int = 0
    scanned: int = 0
    matched: int = 0
    written: int = 0
    done: int = 0
    too_late: int = 0
    failed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Label of the reason -> number of refused actions."""
    targets: Counter[str] = field(default_factory=Counter)
    """Target -> number of matching messages, of the first `TARGETS_MAX` targets."""
    other_targets: int = 0
    """Matching messages for further targets."""


class WriteFailed(Exception):
    """The log did not take a batch."""


class ShardMissed(Exception):
    """A shard had not applied its log, so that messages may be missing in its store; or it left
    this node."""


class BulkRun:
    """One job's run on one shard that this node holds. `stopping` is set by it when it fails, so
    that the other runs end too."""

    def __init__(
        self, context: Context, shard: int, order: Order, counts: Counts, stopping: asyncio.Event
    ) -> None:
        self._context = context
        self._shard = context.shards[shard]
        self._order = order
        self._counts = counts
        self._stopping = stopping
        self._in_flight: deque[list[int]] = deque()

    async def run(self) -> None:
        """1. wait until the log is applied, 2. scan a snapshot, 3. write actions in batches, 4.
        count their results.

        Ends early once `stopping` is set. Raises ChronosError when the store cannot be read,
        WriteFailed, ShardMissed."""
        try:
            await self._run()
            await self._settle(0)
        except Exception:
            self._stopping.set()
            with suppress(ShardMissed):
                await self._settle(0)
            raise

    async def _run(self) -> None:
        context, shard, counts = self._context, self._shard, self._counts
        deadline_s = asyncio.get_running_loop().time() + CAUGHT_UP_S
        if not await context.caught_up(shard.number, deadline_s):
            raise ShardMissed(
                f"shard {shard.number} has not applied its log in time; if that persists, see "
                "`chronos status`"
            )
        snapshot = await context.in_thread(shard.store.snapshot)
        try:
            counts.expected += await context.in_thread(
                pending_between, snapshot, self._order.matching
            )
            scan = scan_pending(snapshot, shard.number, self._order.matching)
            waiting: list[Match] = []
            since_s = 0.0
            while (
                not self._stopping.is_set()
                and (found := await context.in_thread(next, scan, None)) is not None
            ):
                scanned, matches = found
                # How many messages of others lie between is not for a sender with limits.
                counts.scanned += len(matches) if self._order.matching.reach.is_limited else scanned
                self._count(matches)
                if self._order.verb is None:
                    continue
                if matches and not waiting:
                    since_s = time.monotonic()
                waiting += matches
                if len(waiting) >= BATCH or (waiting and time.monotonic() - since_s > COLLECT_S):
                    await self._write(waiting)
                    waiting = []
            if waiting and not self._stopping.is_set():
                await self._write(waiting)
        finally:
            await context.in_thread(snapshot.close)

    def _count(self, matches: Sequence[Match]) -> None:
        counts = self._counts
        counts.matched += len(matches)
        for target, count in Counter(match.target for match in matches).items():
            if target in counts.targets or len(counts.targets) < TARGETS_MAX:
                counts.targets[target] += count
            else:
                counts.other_targets += count

    async def _write(self, matches: list[Match]) -> None:
        records, impossible, as_wanted = await self._context.in_thread(self._plan, matches)
        if impossible:
            self._counts.failed += impossible
            self._counts.reasons[Reason.BAD_VALUE.label] += impossible
        self._counts.too_late += len(matches) - len(records) - impossible - as_wanted
        if not records:
            return
        try:
            appended = await self._append(records)
        except WriteFailed:
            self._counts.failed += len(records)
            raise
        self._counts.written += len(records)
        self._in_flight.append([each.offset for each in appended])
        await self._settle(IN_FLIGHT - 1)

    def _plan(self, matches: list[Match]) -> tuple[list[Outgoing], int, int]:
        """The actions on those messages that are still pending, and still in the due window: the
        snapshot may be a minute old. And the numbers of series that cannot be moved, and of those
        that are as they should be: they are not paused.

        A message that has got the id of one of them since then is left alone, except in the moment
        between here and the log."""
        shard, order, topic = self._shard, self._order, self._context.delay_topic
        assert order.verb is not None
        shards = len(self._context.shards)
        states = shard.store.get([id_key(match.id) for match in matches])
        cursor = shard.state.cursor
        headers: dict[str, bytes | None] = {ACTION: order.verb}
        if order.time is not None:
            headers[order.time[0]] = order.time[1]
        rules = self._context.rules[shard.number]
        records: list[Outgoing] = []
        impossible = as_wanted = 0
        for match, data in zip(matches, states, strict=True):
            if data is None:
                is_pending = (match.place_ms, match.offset) > cursor
            else:
                id_state = unpack_id_state(data)
                is_same = id_state.state == PENDING and id_state.offset == match.offset
                # It may have been moved out of the due window.
                is_pending = (
                    is_same and order.matching.start <= (id_state.due_ms, 0) < order.matching.stop
                )
            if not is_pending:
                continue
            if order.rhythm is not None:
                found = find(
                    shard.store, shard.state, shard.number, shards, match.id, reach=EVERYTHING
                )
                if found is None or found.state != "pending" or found.entry is None:
                    continue
                try:
                    time_header = order.rhythm.time(found.entry, rules)
                except ProblemError:
                    impossible += 1
                    continue
                if time_header is None:
                    as_wanted += 1
                    continue
                headers = {ACTION: order.verb, time_header[0]: time_header[1]}
            if parse_generated_id(match.id, shards) is None:
                records.append((topic, match.id, None, headers, shard.number))
            else:
                records.append((topic, None, None, {**headers, ID: match.id}, shard.number))
        return records, impossible, as_wanted

    async def _append(self, records: list[Outgoing]) -> list[Appended]:
        """Write the records; repeat it while the log does not accept them: an action may be written
        twice."""
        size = sum(len(record[1] or b"") + RECORD_BYTES for record in records)
        deadline_s = time.monotonic() + WRITE_S
        while True:
            try:
                return await self._context.appender.append(records, size)
            except (Retry, ProblemError) as error:
                if time.monotonic() > deadline_s or self._stopping.is_set():
                    raise WriteFailed(str(error)) from error
            await asyncio.sleep(AGAIN_S)

    async def _settle(self, in_flight_max: int) -> None:
        """Count the results of the oldest batches once they are applied. Raises ShardMissed if this
        node no longer holds the shard; then none are left to wait for."""
        waiter = self._context.pull_waiters[self._shard.number]
        stop_s = RESULTS_S
        while len(self._in_flight) > in_flight_max:
            offsets = self._in_flight[0]
            while not await waiter.wait(offsets[-1] + 1, 0.5):
                if not self._context.peers.holds(self._shard.number):
                    unknown = sum(map(len, self._in_flight))
                    self._in_flight.clear()
                    raise ShardMissed(
                        f"this node no longer holds shard {self._shard.number}; the results of "
                        f"{unknown} actions are not known"
                    )
                if self._stopping.is_set():
                    stop_s -= 0.5
                    if stop_s <= 0:
                        return
            self._in_flight.popleft()
            for offset in offsets:
                self._count_result(self._shard.applied.refusal(offset))

    def _count_result(self, reason: int | None) -> None:
        counts = self._counts
        if reason is None or reason == Reason.IGNORED:
            # A cancel of a message that is cancelled already is ignored.
            counts.done += 1
        elif reason in (Reason.TOO_LATE, Reason.UNKNOWN):
            counts.too_late += 1
        else:
            counts.failed += 1
            counts.reasons[Reason(reason).label] += 1


class PartFailed(Exception):
    """Another node did not finish its part of a job."""


class RemotePart:
    """The part of a job that another node runs."""

    def __init__(self, context: Context, member: Member, info: JobInfo) -> None:
        self.info = info
        """As last asked for."""
        self._context = context
        self._member = member

    async def run(self, stopping: asyncio.Event) -> None:
        """Ask until it has ended; once `stopping` is set, have it stopped. Raises PartFailed."""
        path = f"/v1/jobs/{self.info.id}"
        heard_s = time.monotonic()
        method = "GET"
        while self.info.state == "running":
            await _until(stopping, ASK_EVERY_S)
            method = "DELETE" if stopping.is_set() else "GET"
            try:
                status, body = await self._context.peers.ask_member(
                    self._member, method, path, {}, reach=EVERYTHING
                )
            except (aiohttp.ClientError, TimeoutError, OSError):
                if time.monotonic() - heard_s > SILENT_S or stopping.is_set():
                    raise PartFailed(
                        f"node {self._member.node} does not answer; it may go on with its part"
                    ) from None
                continue
            heard_s = time.monotonic()
            if status >= 300:
                raise PartFailed(f"node {self._member.node} was restarted and has lost its part")
            self.info = _decode_info(body)
        if self.info.state != "done" and not stopping.is_set():
            raise PartFailed(f"node {self._member.node}: {self.info.error or self.info.state}")


class BulkJob:
    """One bulk operation. For one event loop."""

    def __init__(
        self, context: Context, request: JobRequest, order: Order, token: str | None
    ) -> None:
        self.id = secrets.token_hex(6)
        self.token = token
        """Name of the token that began it; None: of a request without a token, or of another
        node's."""
        self.running = True
        self.ended = asyncio.Event()
        self._context = context
        self._action = request.action
        self._filter = JobFilter() if request.filter is UNSET else request.filter
        self._order = order
        self._counts = Counts()
        self._parts: list[RemotePart] = []
        self._stopping = asyncio.Event()
        self._stopped = False
        self._error: str | None = None
        self._started_ms, self._began_s, self._took_s = context.now_ms(), time.monotonic(), 0.0

    def is_for(self, sender: Sender) -> bool:
        """Return whether the sender may see and stop it: one with reach, those of senders with the
        same reach."""
        return not sender.is_limited or self._order.matching.reach == sender.reach

    async def run(self, shards: list[int], parts: list[RemotePart]) -> None:
        """Run all parts at a time; the job fails when one of them does."""
        self._parts = parts
        runs = [
            BulkRun(self._context, shard, self._order, self._counts, self._stopping).run()
            for shard in shards
        ]
        runs += [part.run(self._stopping) for part in parts]
        watch = asyncio.ensure_future(self._watch())
        try:
            for found in await asyncio.gather(*runs, return_exceptions=True):
                if isinstance(found, BaseException):
                    self._error = self._error or self._text(found)
        finally:
            watch.cancel()
            self.running, self._took_s = False, time.monotonic() - self._began_s
            self.ended.set()
        info = self.info(with_targets=False)
        log.info(
            "job ended",
            job=self.id,
            action=info.action,
            state=info.state,
            matched=info.matched,
            done=info.done,
            too_late=info.too_late,
            failed=info.failed,
            seconds=round(self._took_s, 1),
            why=info.error,
        )

    async def _watch(self) -> None:
        """Stop the job when the server stops."""
        await self._context.stopping.wait()
        self.stop("the node is stopping")

    def stop(self, why: str) -> None:
        """Stop the job: it writes no further action."""
        if self.running and not self._stopping.is_set():
            self._stopped, self._error = True, why
            self._stopping.set()

    @staticmethod
    def _text(error: BaseException) -> str:
        if isinstance(error, ChronosError | WriteFailed | ShardMissed | PartFailed):
            return str(error)
        log.error("job failed", why=repr(error))
        return f"{error!r}; this is a bug in Chronos"

    def info(self, *, with_targets: bool) -> JobInfo:
        """The job as the API shows it."""
        counts = self._counts
        targets, reasons = counts.targets.copy(), counts.reasons.copy()
        others = [part.info for part in self._parts]
        everywhere: list[Counts | JobInfo] = [counts, *others]
        for other in others:
            targets.update({each.topic: each.messages for each in other.targets or ()})
            reasons.update(other.reasons)

        def total(of: Callable[[Counts | JobInfo], int]) -> int:
            return sum(of(each) for each in everywhere)

        elapsed_s = time.monotonic() - self._began_s if self.running else self._took_s
        scanned, done = total(lambda each: each.scanned), total(lambda each: each.done)
        return JobInfo(
            id=self.id,
            node=self._context.node.config.node.id,
            action=self._action,
            filter=self._filter,
            state="running"
            if self.running
            else "stopped"
            if self._stopped
            else "failed"
            if self._error
            else "done",
            started_at=format_time(self._started_ms),
            ended_at=None
            if self.running
            else format_time(self._started_ms + int(self._took_s * 1_000)),
            elapsed_ms=int(elapsed_s * 1_000),
            expected=total(lambda each: each.expected),
            scanned=scanned,
            matched=total(lambda each: each.matched),
            written=total(lambda each: each.written),
            done=done,
            too_late=total(lambda each: each.too_late),
            failed=total(lambda each: each.failed),
            reasons=dict(reasons),
            rate=round((scanned if self._order.verb is None else done) / max(elapsed_s, 0.001), 1),
            targets=[
                TargetCount(topic=topic, messages=count) for topic, count in targets.most_common()
            ]
            if with_targets
            else UNSET,
            other_targets=total(lambda each: each.other_targets),
            error=self._error,
        )


class JobHandlers:
    """The handlers of `/v1/jobs`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._jobs: OrderedDict[str, BulkJob] = OrderedDict()

    async def start(self, call: Call) -> tuple[int, object]:
        """Start a job."""
        query: ShardsQuery = call.query
        context = self._context
        request = decode_body(_decode_request, JobRequest, call.body)
        order = self._order(request, call.sender)
        name, limits = call.sender.name, call.sender.limits
        if (
            limits is not None
            and sum(job.running and job.token == name for job in self._jobs.values()) >= limits.jobs
        ):
            raise beyond_limits(name, f"{limits.jobs} running jobs")
        if sum(job.running for job in self._jobs.values()) >= RUNNING_MAX:
            raise ProblemError(
                409,
                "too-many-jobs",
                f"{RUNNING_MAX} jobs are running",
                hint="wait for one to end, or stop one",
            )
        held, missing = context.peers.split(context.peers.requested(query.shards))
        job = BulkJob(context, request, order, name)
        # From now on it counts for those that are asked for meanwhile.
        self._jobs[job.id] = job
        try:
            parts = await self._start_parts(missing, call.body, call.sender.reach)
        except BaseException:
            del self._jobs[job.id]
            raise
        ended = [each for each, kept in self._jobs.items() if not kept.running]
        for each in ended[: max(0, len(self._jobs) - KEPT_MAX)]:
            del self._jobs[each]
        context.spawn(job.run(held, parts))
        return 202, job.info(with_targets=True)

    async def _start_parts(self, shards: list[int], body: bytes, reach: Reach) -> list[RemotePart]:
        """Start jobs on nodes that hold the shards; none if one of them cannot be started, as far
        as the nodes answer."""
        peers = self._context.peers
        parts: list[RemotePart] = []
        for group in peers.groups(shards):
            member = next(iter(peers.holders(group[0])), None)
            goes_on = False
            try:
                if member is None:
                    raise PartFailed(f"no node with a replica of shard {group[0]} answers")
                query = {"shards": ",".join(map(str, group))}
                try:
                    status, answer = await peers.ask_member(
                        member, "POST", "/v1/jobs", query, body, reach=reach
                    )
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    goes_on = not isinstance(error, NOT_CONNECTED)
                    raise PartFailed(silent(member, error)) from None
                if status != 202:
                    raise PartFailed(f"node {member.node} answered {status}")
            except PartFailed as error:
                stopping = asyncio.Event()
                stopping.set()
                left = await asyncio.gather(
                    *(part.run(stopping) for part in parts), return_exceptions=True
                )
                raise ProblemError(
                    503,
                    "no-holder",
                    "; ".join(str(each) for each in (error, *left) if each is not None),
                    hint=PART_AGAIN if goes_on or any(left) else "try again: nothing goes on",
                ) from None
            parts.append(RemotePart(self._context, member, _decode_info(answer)))
        return parts

    def _order(self, request: JobRequest, sender: Sender) -> Order:
        """The order of a request; ProblemError with status 422 when it cannot be executed."""
        given = JobFilter() if request.filter is UNSET else request.filter
        headers = [] if given.headers is UNSET else given.headers.items()
        matching = to_filter(sender, given, headers, within="filter.")
        if sender.is_limited and matching.target is None:
            raise forbidden(
                sender, "is for some messages only", hint="give filter.target, one of its targets"
            )
        verb = VERBS[request.action]
        if verb is not None and matching == Filter(reach=sender.reach) and given.due_from is UNSET:
            raise wrong_field("filter", 'has no condition; {"due_from": 0} is true of all messages')
        time_header = None
        if request.action == "reschedule":
            time_header = new_time(Reschedule(deliver_at=request.deliver_at, delay=request.delay))
        elif request.deliver_at is not UNSET or request.delay is not UNSET:
            field = "delay" if request.deliver_at is UNSET else "deliver_at"
            raise wrong_field(field, "only a reschedule has a new time")
        if request.until is not UNSET and request.action != "pause":
            raise wrong_field("until", "only a pause has an end")
        rhythm = None
        if request.action in ("pause", "resume"):
            matching, now_ms = replace(matching, is_series=True), self._context.now_ms()
            rhythm = (
                resumed(now_ms)
                if request.action == "resume"
                else paused(request.until, now_ms, self._context.rules[0])
            )
        elif verb is not None:
            rules = self._context.rules[partition_of(SAMPLE_ID, len(self._context.rules))]
            plan_action(
                SAMPLE_ID,
                verb.decode(),
                time_header,
                rules,
                self._context.delay_topic,
                self._context.now_ms(),
            )
        return Order(matching=matching, verb=verb, time=time_header, rhythm=rhythm)

    async def jobs(self, call: Call) -> tuple[int, object]:
        """The jobs of this node."""
        found = [job for job in reversed(self._jobs.values()) if job.is_for(call.sender)]
        return 200, Jobs(jobs=[job.info(with_targets=False) for job in found])

    async def get(self, call: Call) -> tuple[int, object]:
        """One job."""
        return 200, self._job(call).info(with_targets=True)

    async def stop(self, call: Call) -> tuple[int, object]:
        """Stop a job, and wait until it has ended."""
        job = self._job(call)
        job.stop("stopped by a request")
        await _until(job.ended, STOP_S)
        return 202 if job.running else 200, job.info(with_targets=True)

    def _job(self, call: Call) -> BulkJob:
        job_id = call.request.match_info["job"]
        job = self._jobs.get(job_id)
        if job is None or not job.is_for(call.sender):
            raise ProblemError(
                404,
                "no-job",
                f"this node has no job {job_id[:100]}",
                hint=(
                    "jobs are kept in memory by the node that was asked, the last 100: after a "
                    "restart, repeat the operation"
                ),
            )
        return job


async def _until(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for the event, at most this long."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
