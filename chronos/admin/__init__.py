"""The HTTP interface of a node: API, OpenAPI, metrics, and the page of the service.

server -> routes -> messages, overview, topics -> context -> scheduling, appending, waiting -> wire
"""

from chronos.admin.server import Server

__all__ = ["Server"]
