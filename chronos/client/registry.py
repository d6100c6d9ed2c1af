"""Requests to the registry that every node serves."""

import json
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from chronos.client.requests import Request, ask


def routes(topic: str | None = None, shard: int | None = None, cluster: str | None = None) -> Request:
    """The routes of a topic, by default of the delay topic of the node asked."""
    return ask("/v1/registry/routes", _given(topic=topic, shard=shard, cluster=cluster))


def nodes(cluster: str | None = None) -> Request:
    """The registered nodes, by default of all clusters."""
    return ask("/v1/registry/nodes", _given(cluster=cluster))


def topics(cluster: str | None = None) -> Request:
    """The registered topics, by default of all clusters."""
    return ask("/v1/registry/topics", _given(cluster=cluster))


def clusters() -> Request:
    """The clusters with registered nodes."""
    return ask("/v1/registry/clusters", {})


def remove_topic(topic: str, cluster: str | None = None) -> Request:
    """Remove a topic from the registry asked."""
    return _change("DELETE", f"topics/{quote(topic, safe='')}", cluster)


def allow_writes(node: str, cluster: str | None = None, *, allowed: bool) -> Request:
    """Restore or wipe the write permission of a node."""
    return _change("POST", f"nodes/{quote(node, safe='')}/{'restore' if allowed else 'wipe'}-write", cluster)


def config(namespace: str | None = None, key: str | None = None) -> Request:
    """The namespaces, the values of one, or one value."""
    return ask(_config_path(*[name for name in (namespace, key) if name is not None]), {})


def set_config(namespace: str, key: str, value: str) -> Request:
    """Set one value in the registry asked."""
    body = msgspec.json.encode({"value": value})
    return Request(method="PUT", path=_config_path(namespace, key), body=body, decode=json.loads)


def delete_config(namespace: str, key: str) -> Request:
    """Delete one value from the registry asked."""
    return Request(method="DELETE", path=_config_path(namespace, key), decode=json.loads, repeatable=False)


def _given(**query: Any) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}


def _change(method: str, path: str, cluster: str | None) -> Request:
    query = _given(cluster=cluster)
    full = f"/v1/registry/{path}" + (f"?{urlencode(query)}" if query else "")
    return Request(method=method, path=full, decode=json.loads, repeatable=False)


def _config_path(*names: str) -> str:
    return "/".join(["/v1/registry/config", *(quote(name, safe="") for name in names)])
