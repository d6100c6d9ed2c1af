"""The descriptions of the HTTP interface, generated from the table of routes and the types of
`schemas`: `/openapi.json`, `docs/reference/http.md`, and its long form on the documentation's
site."""

import re
from functools import cache
from typing import Any
from urllib.parse import quote

import msgspec

from chronos import __version__
from chronos.admin.http import schemas
from chronos.admin.http.audit import is_recorded
from chronos.admin.http.generators import for_generators
from chronos.admin.http.problems import PROBLEM_JSON
from chronos.admin.http.routes import Route, table
from chronos.admin.http.tokens import ROLES

_TEMPLATE = "#/components/schemas/{name}"

EVERYWHERE = {
    400: "The Host header is not valid.",
    401: "The service needs a token, and the request has no valid one.",
    403: "The request comes from a web page of another site, or the token does not permit it.",
    421: "This host name is not served here.",
    422: "A parameter is not known.",
    429: "The token has as many connections, long polls or jobs as it may have at a time.",
    503: "With `audit.required`: the request cannot be written down.",
}
"""Further answers of every route."""

ROLE_TEXTS = {
    "open": "Needs no token.",
    "any": "Needs a token, with any role.",
    **{role: f"Role: `{role}`." for role in ROLES},
    "node": "Only for nodes of the cluster.",
}
"""What the sender of a request needs."""

FORMATS = (
    schemas.Time,
    schemas.Duration,
    schemas.Id,
    schemas.TopicName,
    schemas.Base64,
    schemas.Instant,
    schemas.ShardNumber,
    schemas.ShardList,
    schemas.PageKey,
    schemas.NodeName,
    schemas.ReasonName,
    schemas.LetterPosition,
)
"""Types that the reference calls by their titles."""


SENDERS = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of `admin.tokens`; a client certificate in it does the same.",
    }
}
"""How a request says from whom it is."""

SERVERS = [{"url": ".", "description": "The node, or the proxy, that serves this description."}]
"""Relative to the address of the description, as OpenAPI has it: so it is right behind a proxy's
path too."""


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 description, as generators of clients take it."""
    return for_generators(inline(), _TEMPLATE)


@cache
def encoded() -> bytes:
    """The same as JSON. It depends on the code alone, and takes some 40 ms to make."""
    return msgspec.json.encode(document())


def inline() -> dict[str, Any]:
    """The description with the schemas of the fields as `schemas` has them, without names for
    unions."""
    listed = table(None)
    types = [kind for route in listed for kind in (route.body, route.answer) if kind is not None]
    type_schemas, components = msgspec.json.schema_components(
        [*types, schemas.Problem], ref_template=_TEMPLATE
    )
    for component in components.values():
        if "description" in component:
            component["description"] = " ".join(component["description"].split())
    by_type = dict(zip(map(repr, types), type_schemas, strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for route in listed:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Chronos",
            "version": __version__,
            "description": (
                "A delayed-message service: delivers messages to topics at their due times, "
                "exactly once."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": SERVERS,
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": SENDERS},
    }


def text() -> str:
    """The description as JSON, indented."""
    return msgspec.json.format(encoded()).decode() + "\n"


IDEMPOTENCY_PARAMETER: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": (
        "Names the call, the same at each repetition: what was executed is not executed again, and "
        "the answer says what it did. Of messages, those with an id are recognized."
    ),
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}
"""The header of a request that its client may repeat."""


def _operation(route: Route, by_type: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "description": ROLE_TEXTS[route.role],
        # A service without tokens admits every request.
        "security": [{}]
        if route.role in ("open", "node")
        else [{}, *({name: []} for name in SENDERS)],
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": schema_of(kind)}
        for name, kind in route.parameters.items()
    ]
    parameters += query_parameters(route.query)
    if route.is_repeatable:
        parameters.append(IDEMPOTENCY_PARAMETER)
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": by_type[repr(route.body)]}},
        }
    operation["responses"] = {
        str(status): _response(route, status, meaning, by_type)
        for status, meaning in sorted((_everywhere(route) | route.answers).items())
    }
    return operation


def _everywhere(route: Route) -> dict[int, str]:
    left_out = {401, 429} if route.role in ("open", "node") else set()
    left_out |= {422} if route.query is schemas.AnyQuery else set()
    left_out |= set() if is_recorded(route) else {503}
    return {status: meaning for status, meaning in EVERYWHERE.items() if status not in left_out}


def _response(route: Route, status: int, meaning: str, by_type: dict[str, Any]) -> dict[str, Any]:
    if status == 304:
        return {"description": meaning}
    if status >= 400 and (route.media != "text/html" or status != 404):
        content: dict[str, Any] = {
            PROBLEM_JSON: {"schema": {"$ref": _TEMPLATE.format(name="Problem")}}
        }
    elif route.answer is None:
        binary = {"format": "binary"} if route.media == "application/octet-stream" else {}
        content = {route.media: {"schema": {"type": "string"} | binary}}
    else:
        content = {route.media: {"schema": by_type[repr(route.answer)]}}
    return {"description": meaning, "content": content}


def query_parameters(query: type[msgspec.Struct]) -> list[dict[str, Any]]:
    """The fields of a query as parameters."""
    schema = schema_of(query)
    required = schema.get("required", [])
    parameters = []
    for name, each in schema.get("properties", {}).items():
        without_meaning = dict(each)
        meaning = without_meaning.pop("description", "")
        parameters.append(
            {
                "name": name,
                "in": "query",
                "required": name in required,
                "description": meaning,
                "schema": without_meaning,
            }
        )
    return parameters


def schema_of(kind: Any) -> dict[str, Any]:
    """The schema of a type, inline."""
    schema = msgspec.json.schema(kind)
    if "$ref" in schema:
        return dict(schema["$defs"][schema["$ref"].rpartition("/")[2]])
    return schema


# --- The reference in Markdown

GROUPS = {
    "Schedule, find and change messages": ("/v1/messages", "/v1/timeline"),
    "Bulk operations": ("/v1/jobs",),
    "Dead letters": ("/v1/dead-letter",),
    "Rejected records": ("/v1/rejected",),
    "Shards and nodes": ("/v1/shards", "/v1/history", "/v1/nodes", "/v1/failover"),
    "Targets and rate limits": ("/v1/targets", "/v1/rates"),
    "Records of topics": ("/v1/topics",),
    "Tokens": ("/v1/whoami",),
    "The audit trail": ("/v1/audit",),
    "Audits of the archive": ("/v1/archive-audits",),
    "Backups": ("/v1/checkpoints",),
    "The registry": ("/v1/registry",),
    "The process": ("/livez", "/readyz", "/metrics", "/openapi.json"),
    "The console": ("/", "/ui/", "/static/"),
}
"""Calls of one subject, by the beginning of their paths."""

EXAMPLE_PLACES = {
    "id": "order-17-reminder",
    "position": "0:17",
    "job": "5f0c9a31b2d4",
    "shard": "2",
    "node": "chronos-1",
    "topic": "orders",
    "pattern": "billing-*",
    "namespace": "flags",
    "key": "dark-mode",
    "audit": "2030-01-31",
    "view": "messages/order-17-reminder",
    "file": "app.js",
}
"""The parameters of paths in the examples."""

EXAMPLE_QUERIES = {
    "schedule": "wait=5s",
    "list": "target=orders&due_to=2030-01-31T10:00:00Z&limit=20",
    "get": "payload=true",
    "outcome": "offset=17&wait=5s",
    "dead_letters": "reason=target-missing&target=orders",
    "audit": "action=cancel&since=2030-01-31T08:00:00Z&limit=20",
    "rejected": "reason=bad-value&limit=20",
    "timeline": "from=2030-01-31T00:00:00Z&to=2030-02-01T00:00:00Z&step=1h",
    "history": "minutes=1440",
    "targets": "find=order&order=late&limit=20",
    "transfer": "to=chronos-2",
    "records": "partition=0&offset=1200&limit=10",
    "routes": "topic=chronos.delay",
}
"""The queries of the examples, by the name of the route."""

EXAMPLE_BODIES: dict[str, Any] = {
    "schedule": {
        "target": {"topic": "orders", "key": "17"},
        "value": "remind me",
        "delay": "30m",
        "id": EXAMPLE_PLACES["id"],
    },
    "reschedule": {"deliver_at": "2030-01-31T09:00:00+01:00"},
    "pause": {"until": "2030-01-31T09:00:00+01:00"},
    "replay": {"reason": "target-missing", "target": "orders", "dry_run": True},
    "discard": {"id": EXAMPLE_PLACES["id"]},
    "start": {"action": "cancel", "filter": {"target": "orders", "due_to": "2030-01-31T10:00:00Z"}},
    "set-rate": {"rate": "200/s burst 400"},
    "set-value": {"value": "on"},
    "register": {
        "cluster": "chronos.delay",
        "instance": "cdcfac7bf47040e198ca34ef627f8535",
        "address": "http://chronos-1:7700",
        "version": "1.0.0",
        "state_version": 7,
        "shards": [],
    },
}
"""The bodies of the examples, by the name of the route."""


def example(route: Route) -> tuple[str, Any]:
    """The path with its query, and the body, of a request to a route; None: without a body."""
    path = route.path.format(**{name: quote(EXAMPLE_PLACES[name]) for name in route.parameters})
    query = EXAMPLE_QUERIES.get(route.name)
    return f"{path}?{query}" if query else path, EXAMPLE_BODIES.get(route.name)


def contents() -> str:
    """`docs/reference/http.md`: the rules of all calls, and a table of the calls."""
    return _HEAD.format(page="http", rest=_SHORT) + _calls(_grouped(), are_links=False)


def reference() -> str:
    """The page of the site: the same, then every call, format and type in full."""
    openapi = inline()
    groups = _grouped()
    parts = [_HEAD.format(page="http-full", rest=_LONG), _calls(groups, are_links=True)]
    for group, listed in groups.items():
        parts.append(f"\n## {group}\n")
        for route in listed:
            parts += _call(route, openapi["paths"][route.path][route.method.lower()])
    parts += [*_formats(), "\n## Types\n"]
    for name, schema in sorted(openapi["components"]["schemas"].items()):
        parts.append(f"\n### {name}\n\n{schema.get('description', '')}\n")
        parts.append("\n| field | type | | meaning |\n|---|---|---|---|\n")
        for field, each in schema.get("properties", {}).items():
            needed = "required" if field in schema.get("required", []) else _default(each)
            parts.append(
                f"| `{field}` | {_shape(each)} | {needed} | {each.get('description', '')} |\n"
            )
    return "".join(parts)


def _grouped() -> dict[str, list[Route]]:
    groups: dict[str, list[Route]] = {group: [] for group in GROUPS}
    for route in table(None):
        groups[_group(route.path)].append(route)
    return groups


def _calls(groups: dict[str, list[Route]], *, are_links: bool) -> str:
    """The tables of the calls, with their roles."""
    parts = ["\n## Calls\n"]
    for group, listed in groups.items():
        title = f"[{group}](#{_anchor(group)})" if are_links else group
        parts.append(f"\n**{title}**\n\n| call | role | meaning |\n|---|---|---|\n")
        for route in listed:
            name = f"{route.method} {route.path}"
            shown = f"[`{name}`](#{_anchor(name)})" if are_links else f"`{name}`"
            role = f"`{route.role}`" if route.role in ROLES else route.role
            parts.append(f"| {shown} | {role} | {_first_sentence(route.summary)} |\n")
    parts.append(_ROLES)
    return "".join(parts)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.;:])\s", text, maxsplit=1)[0].rstrip(".;:")


def _group(path: str) -> str:
    for group, beginnings in GROUPS.items():
        if any(path == each or (each != "/" and path.startswith(each)) for each in beginnings):
            return group
    raise LookupError(f"no group of the reference has {path}")


def _anchor(heading: str) -> str:
    """The anchor of a heading in Markdown."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _call(route: Route, operation: dict[str, Any]) -> list[str]:
    """The section of one call: meaning, example, parameters, body and answers."""
    path, body = example(route)
    url = f"http://127.0.0.1:7700{path}"
    words = ["curl -s", f"'{url}'" if re.search(r"[?&*]", url) else url]
    if route.method != ("GET" if body is None else "POST"):
        words.insert(1, f"-X {route.method}")
    if body is not None:
        text = msgspec.json.encode(body).decode().replace('":', '": ').replace(',"', ', "')
        words.append(f"-H 'Content-Type: application/json' \\\n     -d '{text}'")
    parts = [
        f"\n### {route.method} {route.path}\n\n{operation['summary']} {operation['description']}\n",
        f"\n```\n{' '.join(words)}\n```\n",
        *_parameters(operation),
    ]
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        parts.append(f"\nBody: {_shape(schema)}\n")
    parts.append("\n| status | answer | meaning |\n|---|---|---|\n")
    for status, response in operation["responses"].items():
        ((media, content),) = response.get("content", {"nothing": {}}).items()
        shape = _shape(content["schema"]) if "json" in media else media
        shape = "problem" if media == PROBLEM_JSON else shape
        parts.append(f"| {status} | {shape} | {response['description']} |\n")
    return parts


def _formats() -> list[str]:
    lines = ["\n## Formats\n\n| name | type | form |\n|---|---|---|\n"]
    for kind in FORMATS:
        schema = schema_of(kind)
        for each in schema.get("anyOf", [schema]) if "title" not in schema else [schema]:
            limits = _limits(each)
            form = each["description"] + (f" Pattern: `{_pattern(each)}`" if _pattern(each) else "")
            lines.append(
                f"| {each['title']} | {each['type']}{', ' if limits else ''}{limits} | {form} |\n"
            )
    return list(dict.fromkeys(lines))


def _pattern(schema: dict[str, Any]) -> str:
    """The pattern of a string, escaped for a table."""
    return str(schema.get("pattern", "")).replace("|", "\\|")


def _limits(schema: dict[str, Any]) -> str:
    """The bounds of a number, of a length or of the number of elements, in words."""
    unit = {"string": " characters", "array": " elements"}.get(str(schema.get("type")), "")
    for least, most in (
        ("minimum", "maximum"),
        ("minLength", "maxLength"),
        ("minItems", "maxItems"),
    ):
        if least in schema and most in schema:
            multiple = f", a multiple of {schema['multipleOf']}" if "multipleOf" in schema else ""
            return f"{schema[least]} to {schema[most]}{unit}{multiple}"
        if least in schema:
            return "not empty" if unit and schema[least] == 1 else f"at least {schema[least]}{unit}"
        if most in schema:
            return f"at most {schema[most]}{unit}"
    return ""


def _parameters(operation: dict[str, Any]) -> list[str]:
    if not operation.get("parameters"):
        return []
    lines = ["\n| parameter | in | type | | meaning |\n|---|---|---|---|---|\n"]
    for parameter in operation["parameters"]:
        schema = parameter["schema"]
        meaning = parameter.get("description") or schema.get("description", "")
        needed = "required" if parameter["required"] else _default(schema)
        lines.append(
            f"| `{parameter['name']}` | {parameter['in']} | {_shape(schema)} | {needed} | "
            f"{meaning} |\n"
        )
    return lines


def _default(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    return f"default `{default}`" if default is not None else ""


def _shape(schema: dict[str, Any]) -> str:
    """A schema in a few words, with its limits."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "title" in schema and schema.get("type") in ("string", "integer"):
        return str(schema["title"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_shape(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    kind = str(schema.get("type", "object"))
    limits = _limits(schema)
    if kind == "array":
        return f"array of {limits}{' ' if limits else ''}{_shape(schema['items'])}".replace(
            " elements", ""
        )
    return f"{kind}, {limits}" if limits else kind


_HEAD = """\
# HTTP reference

<!-- Made by `python -m chronos.admin {page}`; change `chronos/admin/http/openapi.py`, `routes.py` and `schemas.py` instead. -->

[HTTP with curl](../how-to/http.md) shows the interface at work. {rest}

## Requests

- Bodies are JSON in UTF-8 with `Content-Type: application/json`, without a `Content-Encoding` (status 415).
- **Times** are epoch milliseconds or RFC 3339 with an offset; **durations** are milliseconds, or numbers with units:
  `250ms`, `1.5s`, `90s`, `15m`, `1h30m`, `7d`, `2w`. Answers have RFC 3339 in UTC. A message has `deliver_at` or
  `delay`; every answer has `due_at`, the due time that follows from it.
- **Ids** in a path are percent-encoded UTF-8, a `/` included. Ids that are not UTF-8, that begin with `base64:` or
  that consist of dots are written as `base64:` and their bytes in base64. A message without an id gets
  `<shard>-<due in ms>-<offset>`, which can be used like any other id.
- **The Host header** names the node: an address, `localhost`, `node.id`, the name of the machine, the names in
  `admin.host` and `admin.advertised`, or one of `admin.allowed_hosts`. Otherwise the answer is status 421.
- **Web pages of other sites** cannot change or start anything: requests that a browser marks as cross-site are
  refused with status 403, except for links to the console.

## Errors

Errors are `application/problem+json` (RFC 9457). `type` names the kind of error, `detail` describes it and `hint` gives
the remedy. `errors` has the errors of all fields, in a batch with the index of the element: the first 100, and their
number in `errors_total` if there are more. A batch with an error writes nothing.

Limits that depend on the configuration are not in the schemas; a request beyond them gets status 422:
`limits.max_delay`, `topics.message_bytes_max`, `targets.allow` and `targets.deny`, topics of Chronos and of Kafka
itself, the number of shards, and the order of two times. Status 503 means that the log or another node does not answer
now, 507 that the disk is full: send the request again later.

## Pages

A page of a list has at most `limit` entries, and `after`: null on the last page, else a key for the next one. Repeat
the request with it as the parameter `after`. The key is sealed: it is valid for the same token and the same conditions.
Any other is refused with status 400; begin again without it.

## Waiting for a result

- **Messages** are answered with status 202 and `accepted` once the log has acknowledged them; with `wait=5s`, with
  status 200 and the result of each once its shard has applied it.
- **Actions** (cancel, reschedule, fire, pause, resume) are records in the log like messages, and wait up to 5 s. The
  results are `cancelled`, `rescheduled`, `fired`, `paused`, `resumed`; `too_late` if the message is not pending any
  more; `unknown` if no message has the id. Status 202 with `accepted` means that the action will be applied later: look
  the message up for its result.

## Retrying

A message with an id of your own is scheduled once, even if it is sent several times within the deduplication window. A
message without an id may have been written although its request timed out. A cancel may be repeated: for a
cancelled message the answer is `cancelled` again.

## Tokens

A service with `admin.tokens` needs the header `Authorization: Bearer TOKEN`, or a client certificate, and the entry of the
token needs the role of the request; see [secure](../how-to/secure.md). A service without tokens admits every request.
Payloads and headers are in an answer only for the role `payload`. A token with limits that names a target or an id
outside them gets status 403; anything else that is not its own is answered as if it did not exist.
"""  # noqa: E501

_ROLES = """
A call with the role *open* needs no token, one with *any* a token with any role; those of *node*
are for nodes of the cluster.
"""

_SHORT = """\
A running node serves the fields, parameters and answers of every
call at `/openapi.json` (OpenAPI 3.1); the [site](../index.md) that `./scripts/docs` builds has
them on this page."""

_LONG = "A running node serves the same description at `/openapi.json` (OpenAPI 3.1)."
