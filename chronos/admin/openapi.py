"""`/openapi.json` and `docs/reference/http.md`, both made from the route table and the types on the wire."""

from typing import Any

import msgspec

from chronos import __version__
from chronos.admin import schemas
from chronos.admin.problems import PROBLEM_JSON
from chronos.admin.routes import Route, table

_TEMPLATE = "#/components/schemas/{name}"

EVERYWHERE = {421: "This host name is not served here.", 422: "A parameter is not known."}
"""What any route may answer besides."""


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 description."""
    found = table(None)
    types = [kind for route in found for kind in (route.body, route.answer) if kind is not None]
    type_schemas, components = msgspec.json.schema_components([*types, schemas.Problem], ref_template=_TEMPLATE)
    for name in ("Message", "Move"):
        # What no single field can say.
        components[name]["oneOf"] = [{"required": ["deliver_at"]}, {"required": ["delay"]}]
    by_type = dict(zip(map(repr, types), type_schemas, strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for route in found:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Chronos",
            "version": __version__,
            "description": "Delivers messages later: exactly once, at their time, to a topic.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def text() -> str:
    """The description as JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(document())).decode() + "\n"


def _operation(route: Route, by_type: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": route.name, "summary": route.summary}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": schema_of(kind)}
        for name, kind in route.parameters.items()
    ]
    parameters += query_parameters(route.query)
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": by_type[repr(route.body)]}},
        }
    operation["responses"] = {
        str(status): _response(route, status, meaning, by_type)
        for status, meaning in sorted((EVERYWHERE | route.answers).items())
    }
    return operation


def _response(route: Route, status: int, meaning: str, by_type: dict[str, Any]) -> dict[str, Any]:
    if status >= 400:
        content: dict[str, Any] = {PROBLEM_JSON: {"schema": {"$ref": _TEMPLATE.format(name="Problem")}}}
    elif route.answer is None:
        content = {route.media: {"schema": {"type": "string"}}}
    else:
        content = {route.media: {"schema": by_type[repr(route.answer)]}}
    return {"description": meaning, "content": content}


def query_parameters(query: type[msgspec.Struct]) -> list[dict[str, Any]]:
    """The fields of a query as parameters."""
    schema = schema_of(query)
    required = schema.get("required", [])
    parameters = []
    for name, found in schema.get("properties", {}).items():
        described = dict(found)
        meaning = described.pop("description", "")
        parameters.append(
            {"name": name, "in": "query", "required": name in required, "description": meaning, "schema": described}
        )
    return parameters


def schema_of(kind: Any) -> dict[str, Any]:
    """The schema of a type, in place."""
    schema = msgspec.json.schema(kind)
    if "$ref" in schema:
        return dict(schema["$defs"][schema["$ref"].rpartition("/")[2]])
    return schema


# --- The same for people


def reference() -> str:
    """`docs/reference/http.md`."""
    described = document()
    parts = [_HEAD]
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            parts.append(f"\n## {method.upper()} {path}\n\n{operation['summary']}\n")
            parts += _parameters(operation)
            body = operation.get("requestBody")
            if body:
                parts.append(f"\nBody: {_shape(body['content']['application/json']['schema'])}\n")
            parts.append("\n| status | answer | meaning |\n|---|---|---|\n")
            for status, response in operation["responses"].items():
                ((media, content),) = response["content"].items()
                shape = "problem" if media == PROBLEM_JSON else _shape(content["schema"]) if "json" in media else media
                parts.append(f"| {status} | {shape} | {response['description']} |\n")
    parts.append("\n# Types\n")
    for name, schema in sorted(described["components"]["schemas"].items()):
        parts.append(f"\n## {name}\n\n{schema.get('description', '')}\n")
        parts.append("\n| field | type | | meaning |\n|---|---|---|---|\n")
        for field, found in schema.get("properties", {}).items():
            needed = "required" if field in schema.get("required", []) else _default(found)
            parts.append(f"| `{field}` | {_shape(found)} | {needed} | {found.get('description', '')} |\n")
    return "".join(parts)


def _parameters(operation: dict[str, Any]) -> list[str]:
    if not operation.get("parameters"):
        return []
    lines = ["\n| parameter | in | type | | meaning |\n|---|---|---|---|---|\n"]
    for parameter in operation["parameters"]:
        schema = parameter["schema"]
        meaning = parameter.get("description") or schema.get("description", "")
        needed = "required" if parameter["required"] else _default(schema)
        lines.append(f"| `{parameter['name']}` | {parameter['in']} | {_shape(schema)} | {needed} | {meaning} |\n")
    return lines


def _default(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    return f"default `{default}`" if default is not None else ""


def _shape(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_shape(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    if "not" in schema:
        return "nothing"
    kind = str(schema.get("type", "object"))
    if kind == "array":
        return f"array of {_shape(schema['items'])}"
    if kind == "string" and schema.get("format") == "date-time":
        return "RFC 3339"
    return kind


_HEAD = """\
# HTTP reference

<!-- Made by `python -m chronos.admin http`; change `chronos/admin/routes.py` and `wire.py` instead. -->

Bodies are JSON in UTF-8. A running node describes itself at `/openapi.json` (OpenAPI 3.1), from which this
page is made.

```
curl -s http://127.0.0.1:7700/v1/messages -H 'Content-Type: application/json' \\
     -d '{"target": {"topic": "orders"}, "value": "hello", "delay": "10s"}'
{"id":"2-1893456000123-17","shard":2,"offset":17,"due_at":"2030-01-01T00:00:00.123Z"}
```

- **Times** are epoch milliseconds or RFC 3339 with an offset; **durations** are milliseconds, or one number
  and a unit: `250ms`, `1.5s`, `90s`, `15m`, `2h`, `7d`. Answers give times in RFC 3339, in UTC.
- **Ids** in a path are percent-encoded UTF-8, a `/` in them included; an id of other bytes is written
  `base64:` and its bytes in base64, as is one that begins with `base64:` itself, and one that is only dots.
- **A message without an id** gets one that is its address, `<shard>-<due in ms>-<offset>`, and can be found,
  cancelled and moved by it like any other.
- **Errors** are `application/problem+json` (RFC 9457): `type` says which in a word, `detail` what happened,
  `hint` what to do, `errors` which field, and in a batch which element. A batch with one wrong element writes
  nothing.
- **Actions** (cancel, reschedule, fire) are records in the log like messages. The answer says what became of
  them once they are applied: `cancelled`, `rescheduled`, `fired`; `too_late` when the message is pending no
  more; `unknown` when no message has the id. When that takes longer than 5 s, status 202 and `accepted`: it
  will be done, ask for the message to see. A cancel of what is cancelled already answers `cancelled`, so it
  may be repeated.
- **Retrying**: with an id of your own a message is scheduled once however often it is sent (within the
  deduplication window). Without one, a request that timed out may have been written.
- **Web pages** of other sites cannot change anything: bodies need `Content-Type: application/json`, and what
  a browser marks as cross-site is refused. On a loopback address only `localhost` and literal addresses are
  served. There is no password: whoever reaches the port may do everything.
"""
