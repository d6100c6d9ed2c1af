"""The table of routes: path, role, parameters, body, answers and handler of each.

The server serves the table and `openapi` describes it; a route that is not in the table does not
exist."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from aiohttp import web
from msgspec import Struct, field

from chronos.admin.cluster.audit import ArchiveAuditReads, AuditReads
from chronos.admin.cluster.cluster import CheckpointHandlers, ClusterHandlers, ReplicaTransfer
from chronos.admin.cluster.overview import Overview, RateLimitHandlers
from chronos.admin.cluster.registry import RegistryHandlers
from chronos.admin.cluster.topics import TopicReads
from chronos.admin.http import schemas
from chronos.admin.http.context import Call, Context
from chronos.admin.http.tokens import Role
from chronos.admin.letters.dead_letters import DeadLetters
from chronos.admin.letters.rejected import RejectedRecords
from chronos.admin.messages.jobs import JobHandlers
from chronos.admin.messages.listing import Listing
from chronos.admin.messages.messages import Messages

Handler = Callable[[Call], Awaitable[tuple[int, object] | web.StreamResponse]]

UNAVAILABLE = {
    503: "The log does not answer, or too many requests wait to be written.",
    507: "The disk is full.",
}
UNREADABLE = {503: "The log does not answer."}
ELSEWHERE = {503: "No node with a replica of the shard answers."}
COORDINATOR = {503: "The coordinator does not answer."}
PAGE_KEY = {
    400: (
        "`after` is not of a page with the same token and the same conditions: begin again "
        "without it."
    )
}
NOT_ITSELF = {403: "The request does not come from the node that it names."}
BODY = {
    400: "The body is not JSON.",
    408: "The body took too long to arrive.",
    413: "The body is too large.",
    415: "Content-Type is not application/json, or the body has a Content-Encoding.",
    422: "A field or a parameter is not valid; `errors` lists all errors.",
}
ACTION = {
    200: "The result of the action.",
    202: (
        "The action is in the log, but was not applied in time, or its message may still be "
        "forwarded."
    ),
    422: "The id or the time is not valid.",
    **UNAVAILABLE,
}

SERIES = {
    404: "Nothing is known of the id.",
    409: "The message is no longer pending.",
    422: "The message is not a series, or the time is not valid.",
}

CONSOLE = {200: "HTML.", 304: "`If-None-Match` has the ETag of the answer."}


class Route(Struct, frozen=True, kw_only=True):
    """One method on one path."""

    method: str
    path: str
    name: str
    role: Role
    """What its sender must be allowed to do."""
    scope: Literal["targets", "service"]
    """`targets`: concerns messages, of which it shows and changes only those within the reach of
    the sender. `service`: concerns all."""
    summary: str
    handler: Handler | None
    """None: served by the server itself."""
    answers: dict[int, str]
    """Meaning of each status; an answer from 400 on is a problem."""
    answer: Any = None
    """Type of the answers below 400; None: not JSON but `media`."""
    media: str = "application/json"
    query: type[Struct] = schemas.NoQuery
    body: Any = None
    parameters: dict[str, Any] = field(default_factory=dict)
    """Types of the parameters in the path."""
    is_tree: bool = False
    """The parameter of the path may have a `/`."""
    is_repeatable: bool = False
    """A call that names itself is recognized when it is repeated."""


def table(context: Context | None) -> list[Route]:
    """All routes over a context, in the order of the documentation; without one only for their
    descriptions."""
    given: Any = context
    messages = Messages(given)
    listing = Listing(given)
    overview = Overview(given)
    cluster = ClusterHandlers(given)
    checkpoints = CheckpointHandlers(given)
    copies = ReplicaTransfer(given)
    topics = TopicReads(given)
    audit = AuditReads(given)
    archive_audits = ArchiveAuditReads(given)
    dead_letters = DeadLetters(given)
    rejected = RejectedRecords(given)
    jobs = JobHandlers(given)
    rates = RateLimitHandlers(given)
    registry = RegistryHandlers(given)
    by_id = {"id": schemas.Id}
    by_shard = {"shard": schemas.ShardNumber}
    by_job = {"job": schemas.JobId}
    by_node = {"node": schemas.NodeName}
    by_topic = {"topic": schemas.TopicName}
    by_namespace = {"namespace": schemas.ConfigName}
    by_key = by_namespace | {"key": schemas.ConfigName}
    by_pattern = {"pattern": schemas.RatePattern}
    return [
        Route(
            method="POST",
            path="/v1/messages",
            name="schedule",
            role="write",
            scope="targets",
            is_repeatable=True,
            handler=messages.schedule,
            summary=(
                "Schedule a message, or an array of 1 to 10,000. Answers once the log has "
                "acknowledged all of them; if one is not valid, none is written. A body may have "
                "32 MiB, or twice `topics.message_bytes_max`, and 500 different cron expressions. "
                "With `wait`, the answer says what became of each."
            ),
            body=schemas.Message | schemas.Batch,
            query=schemas.ScheduleQuery,
            answer=schemas.Accepted | list[schemas.Accepted],
            answers={
                200: "With `wait`: the shards have applied the messages, each with this `result`.",
                202: "The log has acknowledged the messages.",
                **BODY,
                **UNAVAILABLE,
                503: (
                    f"{UNAVAILABLE[503]} With `replication.mode: sync`, also: a shard has too few "
                    "followers in sync; then none was written."
                ),
            },
        ),
        Route(
            method="GET",
            path="/v1/messages",
            name="list",
            role="read",
            scope="targets",
            handler=listing.page,
            query=schemas.PageQuery,
            summary=(
                "Pending messages in the order of their due times, page by page; or, by `state`, "
                "settled ones."
            ),
            answer=schemas.Page,
            answers={200: "One page.", **PAGE_KEY, 422: "A parameter is not valid.", **ELSEWHERE},
        ),
        Route(
            method="GET",
            path="/v1/messages/{id}",
            name="get",
            role="read",
            scope="targets",
            handler=messages.get,
            parameters=by_id,
            query=schemas.MessageQuery,
            summary=(
                "State, times and target of a message. Waits up to 1 s until all records that are "
                "in the log now are applied."
            ),
            answer=schemas.MessageInfo,
            answers={
                200: "The message.",
                404: "Nothing is known of the id.",
                422: "The id is not valid.",
                503: (
                    "No node with a replica of the shard answers, or a shard that may hold "
                    "records of the id has not applied them."
                ),
            },
        ),
        Route(
            method="GET",
            path="/v1/messages/{id}/outcome",
            name="outcome",
            role="read",
            scope="targets",
            handler=messages.outcome,
            parameters=by_id,
            query=schemas.OutcomeQuery,
            summary=(
                "What became of a record that schedules a message, by the `offset` in the answer "
                "to `schedule`. Waits until the shard has applied it."
            ),
            answer=schemas.Outcome,
            answers={
                200: "The shard has applied the record.",
                202: "It has not yet.",
                404: "Nothing is known of the id.",
                422: "A parameter is not valid.",
                **ELSEWHERE,
            },
        ),
        Route(
            method="DELETE",
            path="/v1/messages/{id}",
            name="cancel",
            role="write",
            scope="targets",
            is_repeatable=True,
            handler=messages.cancel,
            parameters=by_id,
            query=schemas.ShardsQuery,
            summary="Cancel a message. Waits up to 5 s until the action is applied.",
            answer=schemas.ActionResult,
            answers=ACTION,
        ),
        Route(
            method="PATCH",
            path="/v1/messages/{id}",
            name="reschedule",
            role="write",
            scope="targets",
            is_repeatable=True,
            handler=messages.reschedule,
            parameters=by_id,
            query=schemas.ShardsQuery,
            body=schemas.Reschedule,
            summary=(
                "Give a pending message a new time. Waits up to 5 s until the action is applied."
            ),
            answer=schemas.ActionResult,
            answers={**BODY, **ACTION},
        ),
        Route(
            method="POST",
            path="/v1/messages/{id}/fire",
            name="fire",
            role="write",
            scope="targets",
            handler=messages.fire,
            parameters=by_id,
            query=schemas.ShardsQuery,
            summary="Deliver a pending message now. Waits up to 5 s until the action is applied.",
            answer=schemas.ActionResult,
            answers=ACTION,
        ),
        Route(
            method="POST",
            path="/v1/messages/{id}/pause",
            name="pause",
            role="write",
            scope="targets",
            is_repeatable=True,
            handler=messages.pause,
            parameters=by_id,
            query=schemas.ShardsQuery,
            body=schemas.Pause,
            summary=(
                "Pause a series: leave out its occurrences until a time, or until it is resumed. "
                "Waits up to 5 s until the action is applied."
            ),
            answer=schemas.ActionResult,
            answers={**BODY, **ACTION, **SERIES},
        ),
        Route(
            method="POST",
            path="/v1/messages/{id}/resume",
            name="resume",
            role="write",
            scope="targets",
            is_repeatable=True,
            handler=messages.resume,
            parameters=by_id,
            query=schemas.ShardsQuery,
            summary=(
                "Let a paused series go on with the next time of its rhythm. Waits up to 5 s until "
                "the action is applied."
            ),
            answer=schemas.ActionResult,
            answers={**ACTION, **SERIES},
        ),
        Route(
            method="GET",
            path="/v1/dead-letters",
            name="dead_letters",
            role="read",
            scope="targets",
            handler=dead_letters.page,
            query=schemas.DeadLetterQuery,
            summary=(
                "Dead letters that are not resolved, the newest first, page by page. Each page "
                "reads the dead-letter topic for about 2 s at most, so it may be short, or empty, "
                "although `after` is not null."
            ),
            answer=schemas.DeadLetterPage,
            answers={200: "One page.", **PAGE_KEY, 422: "A parameter is not valid.", **UNREADABLE},
        ),
        Route(
            method="GET",
            path="/v1/dead-letters/{id}",
            name="dead_letter",
            role="read",
            scope="targets",
            handler=dead_letters.get,
            parameters=by_id,
            summary=(
                "The newest dead letter of a message as a whole, resolved or not. Looks for it "
                "for 5 s at most."
            ),
            answer=schemas.DeadLetter,
            answers={
                200: "The dead letter.",
                404: (
                    "There is none in the part of the topic that was read; `detail` tells how far."
                ),
                422: "The id is not valid.",
                **UNREADABLE,
            },
        ),
        Route(
            method="GET",
            path="/v1/dead-letters/at/{position}",
            name="dead-letter-at",
            role="read",
            scope="targets",
            handler=dead_letters.at,
            parameters={"position": schemas.LetterPosition},
            summary=(
                "The dead letter at a position as a whole, resolved or not. An id may have several "
                "dead letters; each has its own `partition` and `offset` in the list."
            ),
            answer=schemas.DeadLetter,
            answers={
                200: "The dead letter.",
                404: "There is no dead letter at the position.",
                422: "The position is not valid.",
                503: (
                    "The log does not answer, or the records after the dead letter, which tell "
                    "whether it is resolved, were not all read within 5 s: ask again."
                ),
            },
        ),
        Route(
            method="GET",
            path="/v1/dead-letter-counts",
            name="dead-letter-counts",
            role="read",
            scope="targets",
            handler=dead_letters.counts,
            query=schemas.DeadLetterCountQuery,
            summary=(
                "Dead letters that are not resolved, counted by reason and target, the oldest "
                "first, part by part."
            ),
            answer=schemas.DeadLetterCounts,
            answers={200: "One part.", **PAGE_KEY, 422: "A parameter is not valid.", **UNREADABLE},
        ),
        Route(
            method="POST",
            path="/v1/dead-letters/replay",
            name="replay",
            role="operate",
            scope="targets",
            handler=dead_letters.replay,
            body=schemas.DeadLetterSelection,
            answer=schemas.DeadLetterResult,
            summary=(
                "Schedule dead letters again, due at once, the oldest first. A replayed message "
                "keeps its id, target and headers, and has the header `chronos-replayed`. "
                "Repeating the request, also after a failure in between, delivers nothing twice."
            ),
            answers={
                200: "The result, once the log has acknowledged it.",
                **BODY,
                400: f"{BODY[400]} Or: {PAGE_KEY[400]}",
                **UNAVAILABLE,
            },
        ),
        Route(
            method="POST",
            path="/v1/dead-letters/discard",
            name="discard",
            role="operate",
            scope="targets",
            handler=dead_letters.discard,
            body=schemas.DeadLetterSelection,
            answer=schemas.DeadLetterResult,
            summary=(
                "Mark dead letters as discarded: they are no longer listed or replayed. Their "
                "records stay in the topic."
            ),
            answers={
                200: "The result, once the log has acknowledged it.",
                **BODY,
                400: f"{BODY[400]} Or: {PAGE_KEY[400]}",
                **UNAVAILABLE,
            },
        ),
        Route(
            method="GET",
            path="/v1/rejected",
            name="rejected",
            role="read",
            scope="targets",
            handler=rejected.page,
            query=schemas.RejectedQuery,
            summary=(
                "Rejected records, the newest first, page by page. Each page reads the rejected "
                "topic for about 2 s at most, so it may be short, or empty, although `after` is "
                "not null."
            ),
            answer=schemas.RejectedPage,
            answers={200: "One page.", **PAGE_KEY, 422: "A parameter is not valid.", **UNREADABLE},
        ),
        Route(
            method="GET",
            path="/v1/rejected/{id}",
            name="rejected-record",
            role="read",
            scope="targets",
            handler=rejected.get,
            parameters=by_id,
            summary=(
                "The newest rejected record of an id as a whole: its key, or for one without a "
                "key the generated id or the position in the delay topic. Looks for it for 5 s at "
                "most."
            ),
            answer=schemas.RejectedRecord,
            answers={
                200: "The record.",
                404: (
                    "There is none in the part of the topic that was read; `detail` tells how far."
                ),
                422: "The id is not valid.",
                **UNREADABLE,
            },
        ),
        Route(
            method="GET",
            path="/v1/rejected-counts",
            name="rejected-counts",
            role="read",
            scope="targets",
            handler=rejected.counts,
            query=schemas.RejectedCountQuery,
            summary=(
                "Rejected records counted by reason, target and partition of the delay topic, the "
                "oldest first, part by part."
            ),
            answer=schemas.RejectedCounts,
            answers={200: "One part.", **PAGE_KEY, 422: "A parameter is not valid.", **UNREADABLE},
        ),
        Route(
            method="POST",
            path="/v1/jobs",
            name="start",
            role="operate",
            scope="targets",
            handler=jobs.start,
            query=schemas.ShardsQuery,
            summary=(
                "Cancel, reschedule or fire all pending messages of a filter, or count them by "
                "target: a job that runs on the node asked. It concerns the messages that are "
                "pending when it starts, not those scheduled later."
            ),
            body=schemas.JobRequest,
            answer=schemas.JobInfo,
            answers={202: "The job runs.", **BODY, 409: "Ten jobs are running.", **ELSEWHERE},
        ),
        Route(
            method="GET",
            path="/v1/jobs",
            name="jobs",
            role="read",
            scope="targets",
            handler=jobs.jobs,
            summary="The jobs of the node asked, the last 100 since it started.",
            answer=schemas.Jobs,
            answers={200: "All jobs."},
        ),
        Route(
            method="GET",
            path="/v1/jobs/{job}",
            name="job",
            role="read",
            scope="targets",
            handler=jobs.get,
            parameters=by_job,
            summary="A job: its state and its counts.",
            answer=schemas.JobInfo,
            answers={200: "The job.", 404: "This node has no such job."},
        ),
        Route(
            method="DELETE",
            path="/v1/jobs/{job}",
            name="stop",
            role="operate",
            scope="targets",
            handler=jobs.stop,
            parameters=by_job,
            summary=(
                "Stop a job: it writes nothing more. What it wrote stays. Waits up to 5 s until "
                "it has ended."
            ),
            answer=schemas.JobInfo,
            answers={
                200: "The job has ended.",
                202: "The job is stopping.",
                404: "This node has no such job.",
            },
        ),
        Route(
            method="GET",
            path="/v1/timeline",
            name="timeline",
            role="read",
            scope="service",
            handler=overview.timeline,
            query=schemas.TimelineQuery,
            summary=(
                "Pending messages per interval. They are counted by the minute of their due times."
            ),
            answer=schemas.Timeline,
            answers={200: "The counts.", 422: "A parameter is not valid.", **ELSEWHERE},
        ),
        Route(
            method="GET",
            path="/v1/history",
            name="history",
            role="read",
            scope="service",
            handler=overview.history,
            query=schemas.HistoryQuery,
            summary=(
                "What the node asked, or all nodes together, did in each of the last minutes, at "
                "most a day: deliveries, failures, lateness and pending messages. Each node's "
                "minutes begin with its process."
            ),
            answer=schemas.History,
            answers={200: "The minutes.", 422: "A parameter is not valid."},
        ),
        Route(
            method="GET",
            path="/v1/shards",
            name="shards",
            role="read",
            scope="service",
            handler=overview.shards,
            query=schemas.OverviewQuery,
            summary="Every shard: role, positions, lag, lateness, totals.",
            answer=schemas.Shards,
            answers={200: "All shards.", 422: "A parameter is not valid.", **ELSEWHERE},
        ),
        Route(
            method="POST",
            path="/v1/shards/{shard}/transfer",
            name="transfer",
            role="operate",
            scope="service",
            handler=cluster.transfer,
            parameters=by_shard,
            query=schemas.TransferQuery,
            answer=schemas.OperationResult,
            summary=(
                "Transfer a shard to another node. Waits up to 3 s for a node that is not seen "
                "yet, then up to 10 s until it is master."
            ),
            answers={
                200: "The node is master of the shard.",
                202: "The controller has the request; it is not done yet.",
                404: "There is no such shard or node.",
                409: (
                    "The controller refuses it: the node cannot lead the shard now. `detail` says "
                    "why."
                ),
                422: "The node is missing.",
                501: "A standalone node has no other node to transfer to.",
                **COORDINATOR,
            },
        ),
        Route(
            method="GET",
            path="/v1/failover",
            name="failover",
            role="read",
            scope="service",
            handler=cluster.failover,
            answer=schemas.FailoverStatus,
            summary=(
                "What the probes of the nodes find of each shard's master, and which failovers an "
                "operator permitted."
            ),
            answers={200: "All shards."},
        ),
        Route(
            method="POST",
            path="/v1/shards/{shard}/arm",
            name="arm",
            role="operate",
            scope="service",
            handler=cluster.arm,
            parameters=by_shard,
            answer=schemas.OperationResult,
            summary=(
                "Permit one failover of a shard within the next 15 s, if two thirds of the nodes "
                "find its master unhealthy. Waits up to 10 s until the controller has the "
                "permission."
            ),
            answers={
                200: "The controller has the permission, or has used it.",
                202: "It is not known yet whether it has.",
                404: "There is no such shard.",
                409: "The failover cannot be permitted.",
                501: "A standalone node has no other node to take over.",
                **COORDINATOR,
            },
        ),
        Route(
            method="GET",
            path="/v1/shards/{shard}/digest",
            name="digest",
            role="operate",
            scope="service",
            handler=copies.digest,
            parameters=by_shard,
            answer=schemas.DigestInfo,
            summary=(
                "The digest of this node's replica. Replicas that have applied the same records "
                "have the same digest."
            ),
            answers={
                200: "The digest.",
                404: "There is no such shard.",
                503: "This node has no data of the shard.",
                507: "The disk is full.",
            },
        ),
        Route(
            method="GET",
            path="/v1/shards/{shard}/checkpoint",
            name="copy",
            role="node",
            scope="service",
            handler=copies.checkpoint,
            parameters=by_shard,
            media="application/octet-stream",
            summary=(
                "A checkpoint of the shard, made now, from which another node of the cluster "
                "restores its replica. The request has the node's name in `Chronos-Node`, and in "
                "`Chronos-Token` the token that the node gave the coordinator."
            ),
            answers={
                200: "A tar archive: the manifest, then the files it lists.",
                403: "The request does not come from a node of the cluster.",
                404: "There is no such shard.",
                503: "This node has no data of the shard, or is sending other checkpoints.",
                507: "The disk is full.",
            },
        ),
        Route(
            method="GET",
            path="/v1/nodes",
            name="nodes",
            role="read",
            scope="service",
            handler=cluster.nodes,
            summary="The nodes of the cluster, and the last changes of roles.",
            answer=schemas.Nodes,
            answers={200: "All nodes."},
        ),
        Route(
            method="POST",
            path="/v1/nodes/{node}/drain",
            name="drain",
            role="operate",
            scope="service",
            handler=cluster.drain,
            parameters=by_node,
            answer=schemas.OperationResult,
            summary=(
                "Drain a node before maintenance: it hands over all shards it leads, and gets "
                "none. Waits up to 3 s for a node that is not seen yet, then up to 10 s until it "
                "leads none."
            ),
            answers={
                200: "The node leads no shard.",
                202: "The controller has the request; it is not done yet.",
                404: "There is no such node.",
                409: "No other node can lead its shards. `detail` says why.",
                501: "A standalone node has no other node to hand over to.",
                **COORDINATOR,
            },
        ),
        Route(
            method="POST",
            path="/v1/nodes/{node}/undrain",
            name="undrain",
            role="operate",
            scope="service",
            handler=cluster.undrain,
            parameters=by_node,
            answer=schemas.OperationResult,
            summary=(
                "End the drain of a node: it may lead shards again. Waits up to 3 s for a node "
                "that is not seen yet."
            ),
            answers={
                202: "The controller has the request.",
                404: "There is no such node.",
                501: "A standalone node is always master.",
                **COORDINATOR,
            },
        ),
        Route(
            method="POST",
            path="/v1/nodes/{node}/forget",
            name="forget",
            role="operate",
            scope="service",
            handler=cluster.forget,
            parameters=by_node,
            answer=schemas.OperationResult,
            summary=(
                "Forget a node that is away and will not come back: no replica is kept in its "
                "place, and the logs are no longer kept for it. A node that was away for 7 days "
                "is forgotten without a request. Waits up to 10 s."
            ),
            answers={
                200: "The node is forgotten.",
                202: "The controller has the request; it is not done yet.",
                404: "There is no such node.",
                409: "The node is a member of the cluster.",
                501: "A standalone node has no other node to forget.",
                **COORDINATOR,
            },
        ),
        Route(
            method="GET",
            path="/v1/targets",
            name="targets",
            role="read",
            scope="service",
            handler=overview.targets,
            query=schemas.TargetsQuery,
            summary=(
                "The messages of each target since the nodes started: delivered, late and "
                "dead-lettered. All nodes are asked; those that do not answer are named."
            ),
            answer=schemas.Targets,
            answers={200: "The targets.", 422: "A parameter is not valid."},
        ),
        Route(
            method="GET",
            path="/v1/rates",
            name="rates",
            role="read",
            scope="service",
            handler=rates.rates,
            query=schemas.RatesQuery,
            summary=(
                "The rate limits of target topics, where each comes from, and the lanes: messages "
                "that are due and wait."
            ),
            answer=schemas.Rates,
            answers={200: "All limits and lanes.", 422: "A parameter is not valid.", **ELSEWHERE},
        ),
        Route(
            method="PUT",
            path="/v1/rates/{pattern}",
            name="set-rate",
            role="operate",
            scope="targets",
            handler=rates.set,
            parameters=by_pattern,
            body=schemas.RateChange,
            answer=schemas.RateInfo,
            summary=(
                "Set the rate limit of the topics that match the pattern. It wins over the "
                "configuration, is kept across restarts, and acts within a second, also on "
                "messages that wait already."
            ),
            answers={
                200: "The limit is in force.",
                202: "The controller has the request; it is not in force yet.",
                **BODY,
                **COORDINATOR,
                507: "The disk is full.",
            },
        ),
        Route(
            method="DELETE",
            path="/v1/rates/{pattern}",
            name="remove-rate",
            role="operate",
            scope="targets",
            handler=rates.remove,
            parameters=by_pattern,
            answer=schemas.RateInfo,
            summary=(
                "Remove a limit that was set at run time. Answers with the limit removed; one of "
                "the configuration is in force again."
            ),
            answers={
                200: "The limit is removed.",
                202: "The controller has the request; it is not removed yet.",
                404: "No limit was set for this pattern at run time.",
                422: "The pattern is not valid.",
                **COORDINATOR,
            },
        ),
        Route(
            method="GET",
            path="/v1/registry/routes",
            name="routes",
            role="read",
            scope="service",
            handler=registry.routes,
            query=schemas.RoutesQuery,
            answer=schemas.ShardRoutes,
            summary=(
                "The nodes that serve each shard of a topic, as they have registered with this "
                "node's registry."
            ),
            answers={
                200: "The routes.",
                404: "No node is registered for it.",
                422: "A parameter is not valid.",
            },
        ),
        Route(
            method="GET",
            path="/v1/registry/nodes",
            name="registered",
            role="read",
            scope="service",
            handler=registry.nodes,
            query=schemas.RegistryQuery,
            answer=schemas.RegisteredNodes,
            summary="The nodes that are registered with this node's registry.",
            answers={200: "The nodes.", 422: "A parameter is not valid."},
        ),
        Route(
            method="PUT",
            path="/v1/registry/nodes/{node}",
            name="register",
            role="node",
            scope="service",
            handler=registry.register,
            parameters=by_node,
            body=schemas.RegistrationBody,
            answer=schemas.RegistrationResult,
            summary=(
                "Register a node with all that it serves, which replaces what was registered. A "
                "node sends it to every registry of its cluster, with its name in `Chronos-Node` "
                "and its token in `Chronos-Token`."
            ),
            answers={
                200: "The registration counts, or is ignored.",
                **BODY,
                **NOT_ITSELF,
                409: "The registry is full.",
                **COORDINATOR,
            },
        ),
        Route(
            method="DELETE",
            path="/v1/registry/nodes/{node}",
            name="unregister",
            role="node",
            scope="service",
            handler=registry.unregister,
            parameters=by_node,
            query=schemas.UnregistrationQuery,
            answer=schemas.UnregistrationResult,
            summary="Remove a node that stops from this node's registry.",
            answers={
                200: "The result.",
                422: "A parameter is not valid.",
                **NOT_ITSELF,
                **COORDINATOR,
            },
        ),
        Route(
            method="GET",
            path="/v1/registry/topics",
            name="registered-topics",
            role="read",
            scope="service",
            handler=registry.topics,
            query=schemas.RegistryQuery,
            answer=schemas.RegisteredTopics,
            summary="The topics that masters have registered.",
            answers={200: "The topics.", 422: "A parameter is not valid."},
        ),
        Route(
            method="DELETE",
            path="/v1/registry/topics/{topic}",
            name="remove-topic",
            role="operate",
            scope="service",
            handler=registry.delete_topic,
            parameters=by_topic,
            query=schemas.OneClusterQuery,
            answer=schemas.OperationResult,
            summary=(
                "Remove a topic from this node's registry, until a master registers a change. The "
                "topic itself stays."
            ),
            answers={
                200: "The topic is removed.",
                404: "The topic is not registered.",
                422: "A parameter is not valid.",
            },
        ),
        Route(
            method="GET",
            path="/v1/registry/clusters",
            name="clusters",
            role="read",
            scope="service",
            handler=registry.clusters,
            answer=schemas.RegisteredClusters,
            summary="The clusters with registered nodes.",
            answers={200: "The clusters."},
        ),
        Route(
            method="GET",
            path="/v1/registry/config",
            name="namespaces",
            role="read",
            scope="service",
            handler=registry.namespaces,
            answer=schemas.Namespaces,
            summary="The namespaces of the registry's configuration.",
            answers={200: "The namespaces."},
        ),
        Route(
            method="GET",
            path="/v1/registry/config/{namespace}",
            name="values",
            role="read",
            scope="service",
            handler=registry.values,
            parameters=by_namespace,
            answer=schemas.NamespaceValues,
            summary="The values of a namespace.",
            answers={
                200: "The values; none if there is no such namespace.",
                422: "A name is not valid.",
            },
        ),
        Route(
            method="GET",
            path="/v1/registry/config/{namespace}/{key}",
            name="value",
            role="read",
            scope="service",
            handler=registry.value,
            parameters=by_key,
            answer=schemas.ConfigEntry,
            summary="One value.",
            answers={200: "The value.", 404: "There is none.", 422: "A name is not valid."},
        ),
        Route(
            method="PUT",
            path="/v1/registry/config/{namespace}/{key}",
            name="set-value",
            role="operate",
            scope="service",
            handler=registry.set_value,
            parameters=by_key,
            body=schemas.ConfigChange,
            answer=schemas.ConfigEntry,
            summary=(
                "Set a value in the registries of all nodes of the cluster. It is kept across "
                "restarts."
            ),
            answers={
                200: "The value is set.",
                202: "The controller has the request; the value is not set yet.",
                **BODY,
                409: "The configuration has as many values, or as many bytes, as it may have.",
                **COORDINATOR,
                507: "The disk is full.",
            },
        ),
        Route(
            method="DELETE",
            path="/v1/registry/config/{namespace}/{key}",
            name="delete-value",
            role="operate",
            scope="service",
            handler=registry.delete_value,
            parameters=by_key,
            answer=schemas.ConfigEntry,
            summary="Delete a value from the registries of all nodes of the cluster.",
            answers={
                200: "The value that was deleted.",
                202: "The controller has the request; the value is not deleted yet.",
                404: "There is none.",
                422: "A name is not valid.",
                **COORDINATOR,
                507: "The disk is full.",
            },
        ),
        Route(
            method="GET",
            path="/v1/checkpoints",
            name="checkpoints",
            role="read",
            scope="service",
            handler=checkpoints.kept,
            summary="The checkpoints of every shard, as this node last read them.",
            answer=schemas.CheckpointsInfo,
            answers={200: "All checkpoints.", 501: "No location for checkpoints is configured."},
        ),
        Route(
            method="POST",
            path="/v1/checkpoints",
            name="checkpoint",
            role="operate",
            scope="service",
            handler=checkpoints.make,
            summary=(
                "Make a checkpoint of every shard of this node now. `GET` shows each one once it "
                "is complete."
            ),
            answer=schemas.CheckpointsInfo,
            answers={
                202: "The checkpoints are being made.",
                501: "No location for checkpoints is configured.",
            },
        ),
        Route(
            method="GET",
            path="/v1/topics",
            name="topics",
            role="read",
            scope="targets",
            handler=topics.topics,
            query=schemas.TopicsQuery,
            summary=(
                "Topics whose records can be read: all of the embedded log; on Kafka those of "
                "Chronos, and the one asked for if `targets` permits it."
            ),
            answer=schemas.Topics,
            answers={
                200: "The topics; none if there is no such topic.",
                422: "A parameter is not valid.",
                **UNREADABLE,
            },
        ),
        Route(
            method="GET",
            path="/v1/topics/{topic}/records",
            name="records",
            role="read",
            scope="targets",
            handler=topics.records,
            parameters={"topic": schemas.TopicName},
            query=schemas.RecordsQuery,
            summary=(
                "Records of a partition, as a `read_committed` consumer sees them. Waits for a "
                "record if there is none. On Kafka only of topics of Chronos and of those that "
                "`targets` permits, with Chronos's own permissions; 64 requests at a time."
            ),
            answer=schemas.Records,
            answers={
                200: "Records, or none after the wait.",
                403: "The topic is not for the token, or `targets` does not permit it.",
                404: "There is no such topic or partition.",
                410: "The record is no longer kept.",
                422: "A parameter is not valid.",
                503: (
                    "The log does not answer, Chronos may not read the topic, or too many "
                    "requests wait."
                ),
            },
        ),
        Route(
            method="GET",
            path="/v1/whoami",
            name="whoami",
            role="any",
            scope="service",
            handler=None,
            summary=(
                "The sender of this request: the name of its token, and what the token permits. "
                "Without tokens, every sender may do everything."
            ),
            answer=schemas.WhoAmI,
            answers={200: "The sender."},
        ),
        Route(
            method="GET",
            path="/v1/audit",
            name="audit",
            role="operate",
            scope="service",
            handler=audit.page,
            query=schemas.AuditQuery,
            summary=(
                "The audit trail: who asked to change something, or to see payloads, and what "
                "came of it. The newest entries first, page by page. Each page reads the trail "
                "for about 2 s at most, so it may be short, or empty, although `after` is not "
                "null."
            ),
            answer=schemas.AuditPage,
            answers={
                200: "One page.",
                **PAGE_KEY,
                422: "A parameter is not valid.",
                501: "`audit.path` is not set: the trail is in the log lines of the nodes.",
                503: "The file or the topic of the trail cannot be read.",
            },
        ),
        Route(
            method="GET",
            path="/v1/archive-audits",
            name="archive-audits",
            role="operate",
            scope="service",
            handler=archive_audits.page,
            query=schemas.ArchiveAuditsQuery,
            summary=(
                "Results of `chronos audit -o json` in the folder `admin.archive_audits` of the "
                "node asked, the newest file first."
            ),
            answer=schemas.ArchiveAudits,
            answers={
                200: "The results.",
                422: "A parameter is not valid.",
                501: "`admin.archive_audits` is not set.",
                503: "The folder cannot be read.",
            },
        ),
        Route(
            method="GET",
            path="/v1/archive-audits/{audit}",
            name="archive-audit",
            role="operate",
            scope="service",
            handler=archive_audits.audit,
            parameters={"audit": schemas.ArchiveAuditName},
            summary="One result, with its targets, its worst minutes and its samples.",
            answer=schemas.WholeArchiveAudit,
            answers={
                200: "The result.",
                404: "There is no such file, or it has no result.",
                501: "`admin.archive_audits` is not set.",
                503: "The folder cannot be read.",
            },
        ),
        Route(
            method="GET",
            path="/livez",
            name="live",
            role="open",
            scope="service",
            handler=overview.live,
            answer=schemas.Health,
            summary="Liveness: 200 while the process should be kept running.",
            answers={200: "The process is alive.", 503: "The process has failed."},
        ),
        Route(
            method="GET",
            path="/readyz",
            name="ready",
            role="open",
            scope="service",
            handler=overview.ready,
            answer=schemas.Health,
            summary="Readiness: 200 if every shard has reached its role and none is paused.",
            answers={
                200: "The node is ready.",
                503: "The node is not ready; the problem lists the reasons.",
            },
        ),
        Route(
            method="GET",
            path="/metrics",
            name="metrics",
            role="read",
            scope="service",
            handler=None,
            media="text/plain",
            summary="Metrics for Prometheus.",
            answers={200: "Prometheus's text format."},
        ),
        Route(
            method="GET",
            path="/openapi.json",
            name="openapi",
            role="open",
            scope="service",
            handler=None,
            answer=dict[str, Any],
            summary="This description in OpenAPI 3.1.",
            answers={200: "OpenAPI 3.1."},
        ),
        Route(
            method="GET",
            path="/",
            name="page",
            role="open",
            scope="service",
            handler=None,
            media="text/html",
            query=schemas.AnyQuery,
            summary="The console of the service, for people.",
            answers=CONSOLE,
        ),
        Route(
            method="GET",
            path="/ui/{view}",
            name="view",
            role="open",
            scope="service",
            handler=None,
            media="text/html",
            query=schemas.AnyQuery,
            parameters={"view": schemas.ViewPath},
            is_tree=True,
            summary="A view of the console. Its conditions are the query, so it can be linked to.",
            answers=CONSOLE | {404: "No such view, which the console itself says too."},
        ),
        Route(
            method="GET",
            path="/static/{file}",
            name="file",
            role="open",
            scope="service",
            handler=None,
            media="text/javascript",
            parameters={"file": schemas.FileName},
            is_tree=True,
            summary="A script or the style sheet of the console.",
            answers={200: "The file.", 304: CONSOLE[304], 404: "There is no such file."},
        ),
    ]
