"""Requests that are made from the description of the HTTP interface: every parameter and every
field of a body, with many values."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from chronos.admin.http.openapi import document
from chronos.admin.http.routes import Route


class Example(Protocol):
    """A request that a route permits."""

    @property
    def path(self) -> str:
        """With the query."""

    @property
    def body(self) -> Any:
        """JSON; None without a body."""


class Names(NamedTuple):
    """Names for a request; those of both kinds have the same lengths."""

    tenant: str
    generated: str
    own: str
    """An id that is the token's own, of a message for a target that is not."""
    job: str
    after: str

    @property
    def texts(self) -> list[str]:
        """What is given for a parameter that is text."""
        more = [
            f"{self.tenant}.*",
            f"{self.tenant}-dead",
            f"y=mark-{self.tenant}",
            f"{self.tenant}-",
            "0",
        ]
        return [
            self.tenant,
            f"{self.tenant}-1",
            self.generated,
            self.own,
            self.job,
            self.after,
            *more,
        ]


class Request(NamedTuple):
    """A request that has a foreign name in one place."""

    place: str
    path: str
    body: Any


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that a reference names."""
    while "$ref" in schema:
        schema = document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def alternatives(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema and those of which one must be valid."""
    schema = resolved(schema)
    yield schema
    for key in ("anyOf", "oneOf", "allOf"):
        for one in schema.get(key, ()):
            yield from alternatives(one)


def candidates(schema: dict[str, Any], names: Names) -> list[Any]:
    """Values of every type that the schema has."""
    schema = resolved(schema)
    if "enum" in schema:
        return list(schema["enum"])
    found: list[Any] = []
    for one in alternatives(schema):
        kind = one.get("type")
        for each in kind if isinstance(kind, list) else [kind]:
            match each:
                case "string":
                    found += names.texts
                case "integer":
                    found += [one.get("minimum", 0), 1]
                case "boolean":
                    found += [True, False]
                case "array":
                    found += [candidates(one["items"], names)]
    return found


def fields(
    schema: dict[str, Any], names: Names, within: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every field of a body with every value, by its path."""
    for one in alternatives(resolved(schema)):
        for name, field in one.get("properties", {}).items():
            yield from ((*((*within, name),), value) for value in candidates(field, names))
            if len(within) < 1:
                yield from fields(field, names, (*within, name))


def changed(body: Any, path: tuple[str, ...], value: Any) -> Any:
    """The body with another value of one field."""
    first, *rest = path
    inner = dict(body) if isinstance(body, dict) else {}
    return inner | {first: changed(inner.get(first), tuple(rest), value) if rest else value}


def requests(route: Route, names: Names, example: Example) -> Iterator[Request]:
    """The example of a route with each parameter and field changed to each value; `{target}` in it
    stands for a topic of the sender."""
    path = example.path.replace("{target}", "mine")
    body = (
        None
        if example.body is None
        else json.loads(json.dumps(example.body).replace("{target}", "mine"))
    )
    yield Request("", path, body)
    described = document()["paths"][route.path][route.method.lower()]
    bare, _, query = path.partition("?")
    for parameter in described.get("parameters", []):
        name = parameter["name"]
        for value in candidates(parameter["schema"], names):
            for text in value if isinstance(value, list) else [value]:
                given = quote(str(text).lower() if isinstance(text, bool) else str(text), safe="")
                if parameter["in"] == "path":
                    yield Request(name, route.path.replace(f"{{{name}}}", given), body)
                else:
                    rest = [
                        each
                        for each in query.split("&")
                        if each and not each.startswith(f"{name}=")
                    ]
                    yield Request(name, f"{bare}?{'&'.join([*rest, f'{name}={given}'])}", body)
    if body is not None:
        schema = described["requestBody"]["content"]["application/json"]["schema"]
        for field, value in fields(schema, names):
            yield Request(".".join(field), path, changed(body, field, value))
            if field == ("id",) and isinstance(body, dict) and "all" in body:
                yield Request(
                    "id alone", path, {"id": value, "dry_run": body.get("dry_run", False)}
                )
            if field[0] == "id" and route.name == "schedule":
                yield Request(
                    "replaced", path, changed(body, field, value) | {"on_conflict": "replace"}
                )
