"""Bulk operations over HTTP: jobs that cancel, reschedule, fire or count all pending messages of a filter.

A job runs on the node that was asked, for the shards it holds; for the other shards it starts a job on a node that holds them and
adds up the counts. Jobs are kept in memory: one ends with its node. Its actions are in the log by then or never, so it
can be repeated.
"""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

import aiohttp
import msgspec
import structlog
from msgspec import UNSET

from chronos.admin.access import forbidden
from chronos.admin.bulk import BulkRun, Counts, Order, WriteFailed
from chronos.admin.context import Call, Context
from chronos.admin.filters import to_filter
from chronos.admin.problems import ProblemError, beyond_limits, wrong_field
from chronos.admin.scheduling import new_time, plan_action
from chronos.admin.schemas import JobFilter, JobInfo, JobRequest, Jobs, Reschedule, ShardsQuery, TargetCount
from chronos.admin.tokens import Sender
from chronos.admin.validation import decode_body
from chronos.core.filter import Filter
from chronos.core.keys import partition_of
from chronos.core.reach import EVERYTHING, Reach
from chronos.core.roles import Member
from chronos.core.timefmt import format_time
from chronos.errors import ChronosError

log = structlog.get_logger("chronos.http")

KEPT_MAX = 100
"""Jobs that are kept; the oldest ended ones are forgotten first."""

RUNNING_MAX = 10
"""Jobs that run at a time: each keeps a snapshot of the store."""

ASK_EVERY_S = 0.5
"""How often another node is asked about its part of a job."""

SILENT_S = 30.0
"""How long that node may not answer."""

STOP_S = 5.0
"""How long a request to stop a job waits until it has ended."""

VERBS = {"cancel": b"cancel", "reschedule": b"reschedule", "fire": b"fire-now", "count": None}

SAMPLE_ID = b"sample"
"""An id with which the action of a job is checked before it starts."""

_decode_request = msgspec.json.Decoder(JobRequest).decode
_decode_info = msgspec.json.Decoder(JobInfo).decode


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
                status, body = await self._context.peers.ask_member(self._member, method, path, {}, reach=EVERYTHING)
            except (aiohttp.ClientError, TimeoutError, OSError):
                if time.monotonic() - heard_s > SILENT_S or stopping.is_set():
                    raise PartFailed(f"node {self._member.node} does not answer; it may go on with its part") from None
                continue
            heard_s = time.monotonic()
            if status >= 300:
                raise PartFailed(f"node {self._member.node} was restarted and has lost its part")
            self.info = _decode_info(body)
        if self.info.state != "done" and not stopping.is_set():
            raise PartFailed(f"node {self._member.node}: {self.info.error or self.info.state}")


class Job:
    """One bulk operation. For one event loop."""

    def __init__(self, context: Context, request: JobRequest, order: Order, token: str | None) -> None:
        self.id = secrets.token_hex(6)
        self.token = token
        """Name of the token that began it; None: of a request without a token, or of another node's."""
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
        """Return whether the sender may see and stop it: one with reach, those of senders with the same reach."""
        return not sender.is_limited or self._order.matching.reach == sender.reach

    async def run(self, shards: list[int], parts: list[RemotePart]) -> None:
        """Run all parts at a time; the job fails when one of them does."""
        self._parts = parts
        runs = [BulkRun(self._context, shard, self._order, self._counts, self._stopping).run() for shard in shards]
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
        log.info("job ended", job=self.id, action=info.action, state=info.state, matched=info.matched, done=info.done,
                 too_late=info.too_late, failed=info.failed, seconds=round(self._took_s, 1), why=info.error)  # fmt: skip

    async def _watch(self) -> None:
        """Stop the job when the server stops."""
        await self._context.stopping.wait()
        self.stop("the node is stopping")

    def stop(self, why: str) -> None:
        """Write nothing more."""
        if self.running and not self._stopping.is_set():
            self._stopped, self._error = True, why
            self._stopping.set()

    @staticmethod
    def _text(error: BaseException) -> str:
        if isinstance(error, ChronosError | WriteFailed | PartFailed):
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
            state="running" if self.running else "stopped" if self._stopped else "failed" if self._error else "done",
            started_at=format_time(self._started_ms),
            ended_at=None if self.running else format_time(self._started_ms + int(self._took_s * 1_000)),
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
            targets=[TargetCount(topic=topic, messages=count) for topic, count in targets.most_common()]
            if with_targets
            else UNSET,
            other_targets=total(lambda each: each.other_targets),
            error=self._error,
        )


class JobHandlers:
    """The handlers of `/v1/jobs`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._jobs: OrderedDict[str, Job] = OrderedDict()

    async def start(self, call: Call) -> tuple[int, object]:
        """Start a job."""
        query: ShardsQuery = call.query
        context = self._context
        request = decode_body(_decode_request, JobRequest, call.body)
        order = self._order(request, call.sender)
        name, limits = call.sender.name, call.sender.limits
        if limits is not None and sum(job.running and job.token == name for job in self._jobs.values()) >= limits.jobs:
            raise beyond_limits(name, f"{limits.jobs} running jobs")
        if sum(job.running for job in self._jobs.values()) >= RUNNING_MAX:
            raise ProblemError(
                409, "too-many-jobs", f"{RUNNING_MAX} jobs are running", hint="wait for one to end, or stop one"
            )
        held, missing = context.peers.split(context.peers.requested(query.shards))
        job = Job(context, request, order, name)
        parts = await self._start_parts(missing, call.body, call.sender.reach)
        self._jobs[job.id] = job
        ended = [each for each, kept in self._jobs.items() if not kept.running]
        for each in ended[: max(0, len(self._jobs) - KEPT_MAX)]:
            del self._jobs[each]
        context.spawn(job.run(held, parts))
        return 202, job.info(with_targets=True)

    async def _start_parts(self, shards: list[int], body: bytes, reach: Reach) -> list[RemotePart]:
        """Start jobs on nodes that hold the shards; none if one of them cannot be started."""
        peers = self._context.peers
        parts: list[RemotePart] = []
        for group in peers.groups(shards):
            member = next(iter(peers.holders(group[0])), None)
            try:
                if member is None:
                    raise PartFailed(f"no node with a replica of shard {group[0]} answers")
                query = {"shards": ",".join(map(str, group))}
                status, answer = await peers.ask_member(member, "POST", "/v1/jobs", query, body, reach=reach)
                if status != 202:
                    raise PartFailed(f"node {member.node} answered {status}")
            except (PartFailed, aiohttp.ClientError, TimeoutError, OSError) as error:
                stopping = asyncio.Event()
                stopping.set()
                await asyncio.gather(*(part.run(stopping) for part in parts), return_exceptions=True)
                raise ProblemError(
                    503, "no-holder", str(error) or type(error).__name__, hint="try again: nothing goes on"
                ) from None
            parts.append(RemotePart(self._context, member, _decode_info(answer)))
        return parts

    def _order(self, request: JobRequest, sender: Sender) -> Order:
        """The order of a request; ProblemError with status 422 when it cannot be executed."""
        given = JobFilter() if request.filter is UNSET else request.filter
        matching = to_filter(
            sender,
            target=given.target,
            due_from=given.due_from,
            due_to=given.due_to,
            id_prefix=given.id_prefix,
            key=given.key,
            headers=[] if given.headers is UNSET else given.headers.items(),
            within="filter.",
        )
        if sender.is_limited and matching.target is None:
            raise forbidden(
                sender, "is for some messages only", hint="give filter.target, one of its targets"
            )  # fmt: skip
        verb = VERBS[request.action]
        if verb is not None and matching == Filter(reach=sender.reach) and given.due_from is UNSET:
            raise wrong_field("filter", 'has no condition; {"due_from": 0} is true of all messages')
        time_header = None
        if request.action == "reschedule":
            time_header = new_time(Reschedule(deliver_at=request.deliver_at, delay=request.delay))
        elif request.deliver_at is not UNSET or request.delay is not UNSET:
            field = "delay" if request.deliver_at is UNSET else "deliver_at"
            raise wrong_field(field, "only a reschedule has a new time")
        if verb is not None:
            rules = self._context.rules[partition_of(SAMPLE_ID, len(self._context.rules))]
            plan_action(SAMPLE_ID, verb.decode(), time_header, rules, self._context.delay_topic, self._context.now_ms())
        return Order(matching=matching, verb=verb, time=time_header)

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

    def _job(self, call: Call) -> Job:
        job_id = call.request.match_info["job"]
        job = self._jobs.get(job_id)
        if job is None or not job.is_for(call.sender):
            raise ProblemError(
                404, "no-job", f"this node has no job {job_id[:100]}",
                hint="jobs are kept in memory by the node that was asked, the last 100: after a restart, repeat the operation",
            )  # fmt: skip
        return job


async def _until(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for the event, at most this long."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
