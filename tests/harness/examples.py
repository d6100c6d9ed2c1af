"""A request to each route of the HTTP interface."""

from __future__ import annotations

from typing import Any, NamedTuple


class Example(NamedTuple):
    """A request to one route; `{target}` stands for a target topic."""

    path: str
    body: Any = None


EXAMPLES = {
    "schedule": Example(
        "/v1/messages", {"target": {"topic": "{target}"}, "value": "v", "delay": "1h"}
    ),
    "list": Example("/v1/messages"),
    "get": Example("/v1/messages/{target}-1"),
    "outcome": Example("/v1/messages/{target}-1/outcome?offset=0"),
    "cancel": Example("/v1/messages/{target}-2"),
    "reschedule": Example("/v1/messages/{target}-1", {"delay": "2h"}),
    "fire": Example("/v1/messages/{target}-2/fire"),
    "pause": Example("/v1/messages/{target}-2/pause", {}),
    "resume": Example("/v1/messages/{target}-2/resume"),
    "dead_letters": Example("/v1/dead-letters"),
    "dead_letter": Example("/v1/dead-letters/{target}-dead"),
    "dead-letter-at": Example("/v1/dead-letters/at/0:0"),
    "dead-letter-counts": Example("/v1/dead-letter-counts"),
    "replay": Example("/v1/dead-letters/replay", {"all": True, "dry_run": True}),
    "discard": Example("/v1/dead-letters/discard", {"all": True, "dry_run": True}),
    "rejected": Example("/v1/rejected"),
    "rejected-record": Example("/v1/rejected/{target}-rejected"),
    "rejected-counts": Example("/v1/rejected-counts"),
    "start": Example("/v1/jobs", {"action": "count", "filter": {"target": "{target}"}}),
    "jobs": Example("/v1/jobs"),
    "job": Example("/v1/jobs/none"),
    "stop": Example("/v1/jobs/none"),
    "timeline": Example("/v1/timeline"),
    "history": Example("/v1/history"),
    "targets": Example("/v1/targets"),
    "shards": Example("/v1/shards"),
    "transfer": Example("/v1/shards/0/transfer?to=x"),
    "digest": Example("/v1/shards/0/digest"),
    "copy": Example("/v1/shards/0/checkpoint"),
    "nodes": Example("/v1/nodes"),
    "drain": Example("/v1/nodes/x/drain"),
    "undrain": Example("/v1/nodes/x/undrain"),
    "forget": Example("/v1/nodes/x/forget"),
    "rates": Example("/v1/rates"),
    "set-rate": Example("/v1/rates/{target}", {"rate": "5/s"}),
    "remove-rate": Example("/v1/rates/{target}"),
    "routes": Example("/v1/registry/routes"),
    "registered": Example("/v1/registry/nodes"),
    "register": Example(
        "/v1/registry/nodes/x",
        {
            "cluster": "c",
            "instance": "i",
            "address": "http://x:1",
            "version": "1",
            "state_version": 1,
            "shards": [],
        },
    ),
    "unregister": Example("/v1/registry/nodes/x"),
    "registered-topics": Example("/v1/registry/topics"),
    "remove-topic": Example("/v1/registry/topics/x"),
    "clusters": Example("/v1/registry/clusters"),
    "namespaces": Example("/v1/registry/config"),
    "values": Example("/v1/registry/config/n"),
    "failover": Example("/v1/failover"),
    "arm": Example("/v1/shards/0/arm"),
    "value": Example("/v1/registry/config/n/k"),
    "set-value": Example("/v1/registry/config/n/k", {"value": "v"}),
    "delete-value": Example("/v1/registry/config/n/k"),
    "checkpoints": Example("/v1/checkpoints"),
    "checkpoint": Example("/v1/checkpoints"),
    "topics": Example("/v1/topics"),
    "records": Example("/v1/topics/{target}/records"),
    "whoami": Example("/v1/whoami"),
    "audit": Example("/v1/audit"),
    "archive-audits": Example("/v1/archive-audits"),
    "archive-audit": Example("/v1/archive-audits/a"),
    "live": Example("/livez"),
    "ready": Example("/readyz"),
    "metrics": Example("/metrics"),
    "openapi": Example("/openapi.json"),
    "page": Example("/"),
    "view": Example("/ui/messages"),
    "file": Example("/static/app.js"),
}
