"""The form of `/openapi.json` that generators of clients read: openapi-typescript,
openapi-generator, oapi-codegen and openapi-python-client.

- A union is a component with a name, and so is each of its arms: generators name their types after
  them. `schemas.UNIONS` has the names. A string in a union has no `format`: with `date-time` there,
  openapi-generator makes code that does not compile.
- A value that may be null has the types `[T, "null"]`; one that is a reference or a union, a second
  arm of the type null.
- A parameter that is a number or text is text, as it is in the address: the generated clients
  cannot write a union there.
- The default of a field is in its description: openapi-typescript requires fields that have a
  default.
- Every enumeration has a type. A number has the format `double`, and an integer whose maximum is
  missing or greater than 2^31 - 1 has the format `int64`.

`oneOf` is used for unions only. No keyword says which fields go together (`if`, `not`,
`dependentRequired`): the descriptions do, and the service checks it."""

from typing import Any

import msgspec

from chronos.admin.http.schemas import UNIONS

_Schema = dict[str, Any]

NULL = {"type": "null"}

INT32_MAX = 2**31 - 1


def for_generators(document: _Schema, ref_template: str) -> _Schema:
    """The description in that form. Every union must be in `schemas.UNIONS`."""
    made = _Form(ref_template)
    paths = made.of(document["paths"])
    components = document["components"]
    named = {name: made.of(each) for name, each in components["schemas"].items()}
    return document | {
        "paths": paths,
        "components": components | {"schemas": named | made.used},
    }


class _Form:
    """Schemas in that form, and the components of the unions in them."""

    def __init__(self, ref_template: str) -> None:
        self.used: _Schema = {}
        self._ref = ref_template
        self._names: dict[bytes, str] = {}
        kinds = [kind for kind, _ in UNIONS.values()]
        schemas, _ = msgspec.json.schema_components(kinds, ref_template=ref_template)
        for name, schema in zip(UNIONS, schemas, strict=True):
            self._names[_key(_arms(schema))] = name

    def of(self, node: Any) -> Any:
        """A part of the description in that form."""
        if isinstance(node, list):
            return [self.of(each) for each in node]
        if not isinstance(node, dict):
            return node
        if "in" in node and "anyOf" in node["schema"]:
            return node | {"schema": _text(node["schema"])}
        if isinstance(node.get("anyOf"), list):
            return self._union(node)
        made = {name: self.of(each) for name, each in node.items()}
        if node.get("type") == "object" and "properties" in node:
            made["properties"] = {
                name: _without_default(each) for name, each in made["properties"].items()
            }
        return _sized(made) if "type" in node or "enum" in node else made

    def _union(self, schema: _Schema) -> _Schema:
        """A union, or a value that may be null."""
        rest = {name: each for name, each in schema.items() if name != "anyOf"}
        arms = _arms(schema)
        if len(arms) > 1:
            one = self._named(self._names[_key(arms)], arms)
        else:
            one = self.of(arms[0])
        if NULL not in schema["anyOf"]:
            return one | rest
        if "$ref" in one:
            return {"anyOf": [one, NULL]} | rest
        nullable = one | rest | {"type": [one["type"], "null"]}
        if "enum" in one:
            nullable["enum"] = [*one["enum"], None]
        return nullable

    def _named(self, name: str, arms: list[_Schema]) -> _Schema:
        """A reference to the component of a union, which is made the first time."""
        if name not in self.used:
            _, names = UNIONS[name]
            plain = iter(names)
            refs = [each if "$ref" in each else self._arm(next(plain), each) for each in arms]
            assert next(plain, None) is None, name
            self.used[name] = {"title": name, "oneOf": refs}
        return {"$ref": self._ref.format(name=name)}

    def _arm(self, name: str, schema: _Schema) -> _Schema:
        made = self.of(schema) | {"title": name}
        if made["type"] == "string":
            made.pop("format", None)
        assert self.used.setdefault(name, made) == made, name
        return {"$ref": self._ref.format(name=name)}


def _arms(schema: _Schema) -> list[_Schema]:
    return [each for each in schema["anyOf"] if each != NULL]


def _without_default(schema: _Schema) -> _Schema:
    """The schema of a field, with its default in the description."""
    made = dict(schema)
    default = made.pop("default", None)
    if default is not None:
        text = f"Default: `{msgspec.json.encode(default).decode()}`."
        made["description"] = f"{made.get('description', '')} {text}".strip()
    return made


def _text(schema: _Schema) -> _Schema:
    """The schema of a parameter that is a number or text, as text."""
    number, text = _arms(schema)
    assert (number["type"], text["type"]) == ("integer", "string")
    rest = {name: each for name, each in schema.items() if name != "anyOf"}
    both = {
        "type": "string",
        "title": text["title"],
        "description": f"{number['description'].rstrip('.')}; or: {text['description']}",
        "pattern": f"^[0-9]+$|{text['pattern']}",
    }
    return both | rest


def _key(arms: list[_Schema]) -> bytes:
    return msgspec.json.encode(arms, order="deterministic")


def _sized(schema: _Schema) -> _Schema:
    """A schema with the type of its enumeration, or with the size of its number."""
    if "enum" in schema and "type" not in schema:
        assert all(isinstance(each, str) for each in schema["enum"])
        return schema | {"type": "string"}
    if schema.get("type") == "integer" and schema.get("maximum", INT32_MAX + 1) > INT32_MAX:
        return schema | {"format": "int64"}
    if schema.get("type") == "number":
        return schema | {"format": "double"}
    return schema
