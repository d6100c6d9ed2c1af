"""The table of routes: what is served, what it takes and what it may answer. `/openapi.json` is made from it."""

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from msgspec import Struct, field

from chronos.admin import schemas
from chronos.admin.checkpoints import CheckpointHandlers
from chronos.admin.cluster import Cluster
from chronos.admin.context import Call, Context
from chronos.admin.messages import Messages
from chronos.admin.overview import Overview
from chronos.admin.replica_transfer import ReplicaTransfer
from chronos.admin.topics import TopicReads

Handler = Callable[[Call], Awaitable[tuple[int, object] | web.StreamResponse]]

UNAVAILABLE = {503: "The log does not answer, or too much waits to be written.", 507: "The disk is full."}
ELSEWHERE = {503: "No node that holds the shard answers."}
COORDINATOR = {503: "The coordinator does not answer."}
BODY = {
    400: "The body is not JSON.",
    403: "A web page elsewhere sent this.",
    408: "The body took too long to arrive.",
    413: "The body is too large.",
    415: "Content-Type is not application/json.",
    422: "The request can be read, but not be done.",
}
ACTION = {
    200: "What became of it.",
    202: "It is in the log, and was not applied in time to say more.",
    403: "A web page elsewhere sent this.",
    422: "The id, or the time, is not valid.",
    **UNAVAILABLE,
}


class Route(Struct, frozen=True, kw_only=True):
    """One method on one path."""

    method: str
    path: str
    name: str
    summary: str
    handler: Handler | None
    """None: served by the server itself."""
    answers: dict[int, str]
    """What each status means; those from 400 on are problems."""
    answer: Any = None
    """Type of the answers below 400; None: `media`."""
    media: str = "application/json"
    query: type[Struct] = schemas.NoQuery
    body: Any = None
    parameters: dict[str, Any] = field(default_factory=dict)
    """Types of the parameters in the path."""


def routes(
    messages: Messages,
    overview: Overview,
    cluster: Cluster,
    checkpoints: CheckpointHandlers,
    copies: ReplicaTransfer,
    topics: TopicReads,
) -> list[Route]:
    """All of them, in the order of the documentation."""
    by_id = {"id": schemas.Id}
    return [
        Route(
            method="POST", path="/v1/messages", name="schedule", handler=messages.schedule,
            summary="Schedule a message, or an array of up to 10,000. Answers once the log has acknowledged all of"
            " them; if one is wrong, none is written.",
            body=schemas.Message | list[schemas.Message], answer=schemas.Accepted | list[schemas.Accepted],
            answers={202: "Acknowledged: it will be delivered.", **BODY, **UNAVAILABLE},
        ),
        Route(
            method="GET", path="/v1/messages", name="list", handler=messages.page, query=schemas.PageQuery,
            summary="Pending messages in the order in which they are due, page by page.",
            answer=schemas.Page, answers={200: "One page.", 422: "A parameter is not valid.", **ELSEWHERE},
        ),
        Route(
            method="GET", path="/v1/messages/{id}", name="get", handler=messages.get, parameters=by_id,
            query=schemas.ShardsQuery,
            summary="What is known of a message. Waits up to 1 s until everything the log holds now is taken in.",
            answer=schemas.Known,
            answers={200: "What is known.", 404: "Nothing is known of it.", 422: "The id is not valid.", **ELSEWHERE},
        ),
        Route(
            method="DELETE", path="/v1/messages/{id}", name="cancel", handler=messages.cancel, parameters=by_id,
            query=schemas.ShardsQuery,
            summary="Cancel a message. Waits up to 5 s until that is applied.", answer=schemas.Done, answers=ACTION,
        ),
        Route(
            method="PATCH", path="/v1/messages/{id}", name="reschedule", handler=messages.reschedule,
            parameters=by_id, query=schemas.ShardsQuery, body=schemas.Move, summary="Give a pending message a new time. Waits up to 5 s.",
            answer=schemas.Done, answers={**BODY, **ACTION},
        ),
        Route(
            method="POST", path="/v1/messages/{id}/fire", name="fire", handler=messages.fire, parameters=by_id,
            query=schemas.ShardsQuery,
            summary="Deliver a pending message now. Waits up to 5 s until that is decided.",
            answer=schemas.Done, answers=ACTION,
        ),
        Route(
            method="GET", path="/v1/timeline", name="timeline", handler=overview.timeline, query=schemas.TimelineQuery,
            summary="Pending messages per interval, counted by the minute.",
            answer=schemas.Timeline, answers={200: "The counts.", 422: "A parameter is not valid.", **ELSEWHERE},
        ),
        Route(
            method="GET", path="/v1/shards", name="shards", handler=overview.shards,
            query=schemas.OverviewQuery,
            summary="Every shard: role, positions, lag, lateness, totals.",
            answer=schemas.Shards, answers={200: "All shards.", 422: "A parameter is not valid.", **ELSEWHERE},
        ),
        Route(
            method="POST", path="/v1/shards/{shard}/transfer", name="transfer", handler=cluster.transfer,
            parameters={"shard": schemas.Count}, query=schemas.TransferQuery, answer=schemas.Asked,
            summary="Hand a shard over to another node. Waits up to 10 s until that one is master.",
            answers={200: "It is master.", 202: "Asked for, not done yet.",
                     403: "A web page elsewhere sent this.", 404: "There is no such shard or node.",
                     422: "The node is missing.", 501: "A standalone node has nobody to transfer to.", **COORDINATOR},
        ),
        Route(
            method="GET", path="/v1/shards/{shard}/digest", name="digest", handler=copies.digest,
            parameters={"shard": schemas.Count}, answer=schemas.DigestInfo,
            summary="What this node's replica comes to. Replicas that have applied the same records have the same digest.",
            answers={200: "The digest.", 404: "There is no such shard.", 503: "This node holds nothing of it.",
                     507: "The disk is full."},
        ),
        Route(
            method="GET", path="/v1/shards/{shard}/checkpoint", name="copy", handler=copies.checkpoint,
            parameters={"shard": schemas.Count}, media="application/x-tar",
            summary="A checkpoint of the shard, for another node of the cluster that begins with it. That node names"
            " itself in `Chronos-Node`, and shows in `Chronos-Token` what it told the coordinator.",
            answers={200: "A tar: the manifest, then the files it names.", 403: "Not asked for by a member.",
                     404: "There is no such shard.", 503: "This node holds nothing of it, or sends others already.",
                     507: "The disk is full."},
        ),
        Route(
            method="GET", path="/v1/nodes", name="nodes", handler=cluster.nodes,
            summary="The nodes of the cluster, and the last changes of roles.",
            answer=schemas.Nodes, answers={200: "All nodes."},
        ),
        Route(
            method="POST", path="/v1/nodes/{node}/drain", name="drain", handler=cluster.drain,
            parameters={"node": str}, answer=schemas.Asked,
            summary="Let a node be master of nothing, before maintenance. Waits up to 10 s until that is so.",
            answers={200: "It is master of nothing.", 202: "Asked for, not done yet.",
                     403: "A web page elsewhere sent this.", 404: "There is no such node.",
                     501: "A standalone node has nobody to hand over to.", **COORDINATOR},
        ),
        Route(
            method="POST", path="/v1/nodes/{node}/undrain", name="undrain", handler=cluster.undrain,
            parameters={"node": str}, answer=schemas.Asked, summary="The end of a drain: it may be master again.",
            answers={202: "Asked for.", 403: "A web page elsewhere sent this.", 404: "There is no such node.",
                     501: "A standalone node is always master.", **COORDINATOR},
        ),
        Route(
            method="GET", path="/v1/checkpoints", name="checkpoints", handler=checkpoints.kept,
            summary="The checkpoints of every shard, as this node saw them last.", answer=schemas.CheckpointsInfo,
            answers={200: "All of them.", 501: "No place for them is configured."},
        ),
        Route(
            method="POST", path="/v1/checkpoints", name="checkpoint", handler=checkpoints.make,
            summary="Make a checkpoint of every shard now. `GET` shows them once they are whole.",
            answer=schemas.CheckpointsInfo,
            answers={202: "Asked for.", 403: "A web page elsewhere sent this.", 501: "No place for them is configured."},
        ),
        Route(
            method="GET", path="/v1/topics", name="topics", handler=topics.topics,
            summary="The topics of the embedded log.", answer=schemas.Topics,
            answers={200: "All topics.", 409: "The topics are Kafka's: ask it."},
        ),
        Route(
            method="GET", path="/v1/topics/{topic}/records", name="records", handler=topics.records,
            parameters={"topic": str}, query=schemas.RecordsQuery,
            summary="Records of a partition of the embedded log; waits for one if there is none.", answer=schemas.Records,
            answers={200: "Records, or none when the wait is over.", 404: "There is no such topic or partition.",
                     409: "The topics are Kafka's: use a consumer.", 410: "The record is not kept any more.",
                     422: "A parameter is not valid."},
        ),
        Route(
            method="GET", path="/livez", name="live", handler=overview.live, answer=schemas.Health,
            summary="Whether the process is worth keeping alive.", answers={200: "It is.", 503: "It has failed."},
        ),
        Route(
            method="GET", path="/readyz", name="ready", handler=overview.ready, answer=schemas.Health,
            summary="Whether every shard is in its place and nothing is paused.",
            answers={200: "It is so.", 503: "It is not; the problem says why."},
        ),
        Route(
            method="GET", path="/metrics", name="metrics", handler=None, media="text/plain",
            summary="Metrics for Prometheus.", answers={200: "Prometheus's text format."},
        ),
        Route(
            method="GET", path="/openapi.json", name="openapi", handler=None, answer=dict[str, Any],
            summary="This description.", answers={200: "OpenAPI 3.1."},
        ),
        Route(
            method="GET", path="/", name="page", handler=None, media="text/html",
            summary="The page of the service, for people.", answers={200: "HTML."},
        ),
    ]  # fmt: skip


def table(context: Context | None) -> list[Route]:
    """The routes over a context; without one, only to be read."""
    known: Any = context
    return routes(
        Messages(known),
        Overview(known),
        Cluster(known),
        CheckpointHandlers(known),
        ReplicaTransfer(known),
        TopicReads(known),
    )
