"""The HTTP interface of a node: API, OpenAPI, metrics, and the console.

server -> routes -> messages, overview, cluster, topics, ... -> context -> scheduling, appending,
waiting -> schemas"""

from chronos.admin.http.server import Server

__all__ = ["Server"]
