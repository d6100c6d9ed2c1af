"""The HTTP interface of a node: API, OpenAPI description, metrics and console.

    http        connections, senders, the table of routes, checks of JSON, the audit trail
    messages    handlers: schedule, find, list and change messages
    letters     handlers: dead letters and rejected records
    cluster     handlers: nodes, shards, registry, topics, metrics
    archive     the same for `chronos archive --follow`, which is no node: metrics and readiness

A request passes server -> access -> its route's handler -> the node. Handlers share
`http.context`."""

from chronos.admin.http.server import Server

__all__ = ["Server"]
