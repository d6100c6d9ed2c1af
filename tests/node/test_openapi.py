"""`/openapi.json` against the running service: every operation, with good and bad data made from
the description.

The description keeps within what generators of clients take, so it has some rules in words only.
`exact()` has them as JSON Schema: good data is made from it, and the service must agree with it.
Bad data is made from the description itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema_rs import Draft202012Validator

from chronos.admin.http.openapi import (
    EXAMPLE_BODIES,
    EXAMPLE_QUERIES,
    document,
    example,
    inline,
    reference,
)
from chronos.admin.http.routes import table
from chronos.admin.http.schemas import (
    TOPIC_PATTERN,
    AnyQuery,
    ArchiveAuditName,
    ConfigName,
    FileName,
    NodeName,
    NoQuery,
    ViewPath,
)
from tests.harness.service import Service

# Its import takes half a second, and only slow tests use it.
if TYPE_CHECKING:
    import schemathesis

# Limits that depend on the configuration or on several fields (limits.max_delay, topics of Chronos
# itself, the number of shards, the order of two times) and the length of an id in bytes are not in
# the description; beyond them the answer is 422. 501 is the answer of a standalone node, 403 that
# of a request which only nodes of the cluster may send.
SEMANTIC = [200, 202, 403, 404, 409, 410, 422, 501]

IN_WORDS: dict[str, dict[str, Any]] = {
    "Target": {
        "not": {"required": ["key", "key_base64"], "properties": {"key": {"type": "string"}}}
    },
    "Message": {
        "oneOf": [
            {"required": ["deliver_at"]},
            {"required": ["delay"]},
            {
                "required": ["repeat"],
                "properties": {
                    "repeat": {"type": "string", "pattern": "^cron "},
                    "deliver_at": False,
                    "delay": False,
                },
            },
        ],
        "anyOf": [{"required": ["value"]}, {"required": ["value_base64"]}],
        "not": {"required": ["value", "value_base64"], "properties": {"value": {"type": "string"}}},
        "dependentRequired": {
            "on_conflict": ["id"],
            "repeat_times": ["repeat"],
            "repeat_until": ["repeat"],
            "time_zone": ["repeat"],
            "late_policy": ["repeat"],
        },
    },
    "Reschedule": {"oneOf": [{"required": ["deliver_at"]}, {"required": ["delay"]}]},
    "DeadLetterSelection": {
        "properties": {"all": {"const": True}},
        "anyOf": [
            {"required": [name]}
            for name in ("id", "positions", "all", "target", "reason", "since", "until")
        ],
        "not": {
            "anyOf": [
                {"required": [one, other]}
                for one, other in (("id", "all"), ("id", "positions"), ("all", "positions"))
            ]
            + [
                {"required": [one, name]}
                for one in ("id", "positions", "all")
                for name in ("target", "reason", "since", "until")
            ]
        },
    },
    "JobRequest": {
        "if": {"properties": {"action": {"const": "reschedule"}}},
        "then": {"oneOf": [{"required": ["deliver_at"]}, {"required": ["delay"]}]},
        "else": {"not": {"anyOf": [{"required": ["deliver_at"]}, {"required": ["delay"]}]}},
    },
}
"""What the description says in words: the fields of a component that go together."""

_Q, _ONE, _TWO = "[A-Za-z0-9+/]{4}", "[A-Za-z0-9+/]{2}==", "[A-Za-z0-9+/]{3}="

ID_IN_WORDS: dict[str, Any] = {
    "anyOf": [
        {"maxLength": 1024, "not": {"pattern": "^base64:"}},
        {"pattern": f"^base64:(({_Q}){{0,340}}({_Q}|{_ONE}|{_TWO})|({_Q}){{341}}{_ONE})$"},
    ]
}
"""1 to 1,024 bytes; the characters of text are at most as many."""

DELAY_IN_WORDS: dict[str, dict[str, Any]] = {
    "ms": {"not": {"minimum": 1, "maximum": 999}},
    "duration": {"not": {"pattern": "^0*[1-9][0-9]{0,2}$"}},
}
"""A number below 1,000 needs a unit in a delay, by the title of the arm."""


@cache
def exact() -> dict[str, Any]:
    """The description with the rules that it has in words, and with the unions of parameters."""
    made = inline()
    components = made["components"]["schemas"]

    def add(node: Any, is_delay: bool = False) -> None:
        if isinstance(node, dict):
            if node.get("title") == "id" and node.get("type") == "string":
                node |= ID_IN_WORDS
            for key, each in node.items():
                add(each, is_delay or key in ("delay", "spread"))
            if is_delay and isinstance(node.get("title"), str):
                node |= DELAY_IN_WORDS.get(node["title"], {})
        elif isinstance(node, list):
            for each in node:
                add(each, is_delay)

    add(made)
    for name, rules in IN_WORDS.items():
        components[name] |= {"allOf": [rules]}
    return made


# One node answers all of them.


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A node of its own, because random requests are sent to it."""
    folder = tmp_path_factory.mktemp("openapi")
    settings: dict[str, object] = {
        "shards": 2,
        "audit.path": folder / "audit.jsonl",
        "admin.archive_audits": folder,
    }
    with Service(folder / "data", settings=settings) as running:
        yield running.start()


@pytest.fixture(scope="module")
def descriptions(service: Service) -> dict[str, schemathesis.BaseSchema]:
    """The description that the service serves, for bad data, and the exact one, for good data."""
    import schemathesis

    config = schemathesis.Config.from_dict(
        {
            "checks": {
                "positive_data_acceptance": {
                    "expected-statuses": [str(status) for status in SEMANTIC]
                }
            }
        }
    )
    good = schemathesis.openapi.from_dict(exact(), config=config)
    good.config.update(base_url=service.url)
    return {
        "negative": schemathesis.openapi.from_url(service.url + "/openapi.json", config=config),
        "positive": good,
    }


ANY_TEXT = (ArchiveAuditName, NodeName, ConfigName, ViewPath, FileName)
"""Parameters for which every text is valid."""

OPERATIONS = [
    pytest.param(route.method, route.path, mode, id=f"{mode} {route.method} {route.path}")
    for route in table(None)
    for mode in ("positive", "negative")
    # An operation without parameters, or with any text as its parameters (the name of a node), has
    # no invalid request.
    if mode == "positive"
    or any(kind not in ANY_TEXT for kind in route.parameters.values())
    or route.body is not None
    or route.query not in (NoQuery, AnyQuery)
]
EXAMPLES_MAX = 15
"""Requests of each kind to each operation."""


@pytest.mark.parametrize(("method", "path", "mode"), OPERATIONS)
def test_every_operation_answers_as_described(descriptions, method, path, mode):
    """Status, content type and body of every answer, for valid and invalid requests; no answer is a
    server error."""
    from schemathesis import GenerationMode
    from schemathesis.checks import CheckFunction, not_a_server_error

    operation = descriptions[mode][path][method]
    expects_failure = path.endswith(
        ("/transfer", "/drain", "/undrain", "/forget", "/arm", "/checkpoints")
    )
    excluded: list[CheckFunction] = [not_a_server_error] if expects_failure else []

    @settings(
        max_examples=EXAMPLES_MAX,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=[Phase.explicit, Phase.generate],
    )
    @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)))
    def send(case: schemathesis.Case) -> None:
        # A look at an outcome waits unless it is told not to.
        if (case.query and "wait" in case.query) or path.endswith("/outcome"):
            case.query = {**(case.query or {}), "wait": "0s"}
        # A page key that was not made by the service is refused, whatever it looks like.
        if case.query and "after" in case.query:
            case.query = {name: value for name, value in case.query.items() if name != "after"}
        if isinstance(case.body, dict) and mode == "positive":
            case.body = {name: value for name, value in case.body.items() if name != "after"}
        case.call_and_validate(excluded_checks=excluded)

    send()


QUADS = "QUJD"
"""Three bytes in base64."""

BODIES = [
    ({}, False),
    ({"target": {}}, False),
    ({"id": "x" * 1024}, True),
    ({"id": "x" * 1025}, False),
    ({"id": ""}, False),
    ({"id": "base64:" + QUADS * 341 + "QQ=="}, True),
    ({"id": "base64:" + QUADS * 341 + "QUI="}, False),
    ({"id": "base64:" + QUADS * 342}, False),
    ({"id": "base64:"}, False),
    ({"id": "base64:?"}, False),
    ({"target": {"topic": "x" * 249}}, True),
    ({"target": {"topic": "x" * 250}}, False),
    ({"target": {"topic": ".."}}, False),
    ({"target": {"topic": "..."}}, True),
    ({"target": {"topic": "t", "headers": {"chronos-x": "y"}}}, False),
    ({"target": {"topic": "t", "headers": {"chronos-id": "y"}}}, True),
    ({"target": {"topic": "t", "headers": {"x" * 1000: "y"}}}, True),
    ({"target": {"topic": "t", "headers": {"x" * 1001: "y"}}}, False),
    ({"target": {"topic": "t", "key": "k", "key_base64": "QQ=="}}, False),
    ({"value": "v", "value_base64": "QQ=="}, False),
    ({"value": None, "value_base64": "QQ=="}, True),
    ({"on_conflict": "ignore"}, False),
    ({"on_conflict": "ignore", "id": "limits"}, True),
    ({"delay": 5000.0}, True),
    ({"delay": 0}, True),
    ({"delay": 999}, False),
    ({"delay": "999"}, False),
    ({"delay": "0"}, True),
    ({"delay": "1000"}, True),
    ({"spread": 5}, False),
    ({"delay": 5.5}, False),
    ({"delay": -1}, False),
    ({"delay": 10**15}, False),
    ({"deliver_at": "1969-12-31T00:00:00Z", "delay": None}, False),
    ({"deliver_at": "1969-12-31T00:00:00Z"}, False),
    ({"unknown": 1}, False),
    ({"repeat": "every 5s"}, True),
    ({"repeat": "every 5s", "repeat_times": 0}, False),
    ({"spread": "1m"}, True),
    ({"attempts": 0}, False),
]
"""Changes of a valid message at the limits of its fields, and whether the result is valid."""


@pytest.mark.parametrize(
    ("change", "is_valid"), BODIES, ids=[str(change)[:50] for change, _ in BODIES]
)
def test_the_description_and_the_service_agree_on_the_limits_of_a_message(
    service, change, is_valid
):
    """With the rules in words, a validator of JSON Schema accepts exactly the bodies at these
    limits that the service accepts. Without them it refuses none that the service accepts."""
    body: dict[str, object] = {"target": {"topic": "limits"}} | change if change else {}
    if body and "value_base64" not in body:
        body = {"value": "v"} | body
    if body and not {"deliver_at", "delay"} & body.keys():
        body["delay"] = "1h"
    for described in (exact(), document()):
        schema = {"$ref": "#/components/schemas/Message", "components": described["components"]}
        found = Draft202012Validator(schema, validate_formats=True).is_valid(body)
        assert found == is_valid or (found and described == document())
    status, problem = service.ask("POST", "/v1/messages", body)
    assert status == (202 if is_valid else 422), problem


@pytest.mark.parametrize(
    ("count", "is_valid"), [(0, False), (1, True), (10_000, True), (10_001, False)]
)
def test_the_description_and_the_service_agree_on_the_size_of_a_batch(service, count, is_valid):
    """1 to 10,000 messages."""
    batch = [{"target": {"topic": "sizes"}, "value": "v", "delay": "1h"}] * count
    described = document()["components"]["schemas"]["Batch"]
    assert (described["minItems"] <= count <= described["maxItems"]) == is_valid
    assert service.ask("POST", "/v1/messages", batch)[0] == (202 if is_valid else 422)


@pytest.mark.parametrize(
    ("path", "name", "value", "is_valid"),
    [
        ("/v1/timeline", "step", 60_000, True),
        ("/v1/timeline", "step", 60_001, False),
        ("/v1/timeline", "step", 0, False),
        ("/v1/messages", "limit", 1_000, True),
        ("/v1/messages", "limit", 1_001, False),
        ("/v1/messages", "due_from", 10**15 - 1, True),
        ("/v1/messages", "due_from", "1969-12-31T00:00:00Z", False),
        ("/v1/messages", "after", "x" * 24_001, False),
        ("/v1/topics/{topic}/records", "wait", 60_001, False),
        ("/v1/topics/{topic}/records", "partition", 1_024, False),
    ],
)
def test_the_description_and_the_service_agree_on_the_limits_of_parameters(
    service, path, name, value, is_valid
):
    """Bounds of numbers, times and page keys."""
    (parameter,) = (
        each for each in exact()["paths"][path]["get"]["parameters"] if each["name"] == name
    )
    assert (
        Draft202012Validator(parameter["schema"], validate_formats=True).is_valid(value) == is_valid
    )
    status, problem = service.ask("GET", f"{path.format(topic='chronos.delay')}?{name}={value}")
    assert status == (200 if is_valid else 422), problem


def test_every_counter_of_the_totals_has_a_description():
    """In the description, and so in the reference."""
    counters = document()["components"]["schemas"]["Counters"]["properties"]
    assert [name for name, each in counters.items() if not each.get("description")] == []


def test_the_reference_shows_the_limits_of_the_description():
    """Bounds of numbers, numbers of elements and patterns."""
    page = reference()
    for limit in (
        "integer, 1 to 1000",
        "array of 1 to 10000 [Message]",
        TOPIC_PATTERN,
        "a multiple of 60000",
    ):
        assert limit in page


def test_the_examples_of_the_reference_are_requests_that_their_routes_take():
    """Query and body of each have the fields and the types of the route."""
    listed = table(None)
    names = {route.name for route in listed}
    assert set(EXAMPLE_QUERIES) | set(EXAMPLE_BODIES) <= names
    for route in listed:
        path, body = example(route)
        assert (body is None) == (route.body is None), route.name
        if route.body is not None:
            msgspec.convert(body, route.body)
        query = dict(parse_qsl(urlsplit(path).query))
        msgspec.convert(query, route.query, strict=False)
        assert set(query) <= set(route.query.__struct_encode_fields__), route.name


def test_the_description_names_every_route_once():
    """It is made from the table of routes: no route is missing and none is invented."""
    described = {
        (method.upper(), path)
        for path, operations in document()["paths"].items()
        for method in operations
    }
    assert described == {(route.method, route.path) for route in table(None)}
    names = [
        operation["operationId"]
        for found in document()["paths"].values()
        for operation in found.values()
    ]
    assert len(names) == len(set(names))


def test_the_served_description_is_the_generated_one(service):
    """In OpenAPI 3.1."""
    served = service.get("/openapi.json")
    assert served == document()
    assert served["openapi"].startswith("3.1.")


KEYWORDS = {"if", "then", "else", "not", "allOf", "const", "dependentRequired", "dependentSchemas"}
"""What at least one of the generators does not take, or makes nothing of."""


def schemas_of(node: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of the description with its place."""
    if isinstance(node, dict):
        yield place, node
        for name, each in node.items():
            yield from schemas_of(each, f"{place}/{name}")
    elif isinstance(node, list):
        for number, each in enumerate(node):
            yield from schemas_of(each, f"{place}/{number}")


def test_the_description_has_only_what_generators_of_clients_take():
    """openapi-typescript, openapi-generator, oapi-codegen and openapi-python-client: no boolean as
    a schema, no keyword that combines fields, a name for each union and for each of its arms, a
    type for each enumeration, 64 bits for a number that needs them, no default that makes a field
    required, no required field that is not defined."""
    faults = []
    for place, node in schemas_of(document()):
        is_map = place.endswith(("/properties", "/components/schemas"))
        if is_map:
            faults += [
                f"{place}/{name}: boolean" for name, each in node.items() if each in (True, False)
            ]
            continue
        faults += [f"{place}: {word}" for word in KEYWORDS & node.keys()]
        if isinstance(node.get("items"), bool):
            faults.append(f"{place}: boolean")
        if "enum" in node and "type" not in node:
            faults.append(f"{place}: an enumeration without a type")
        if "required" in node and isinstance(node["required"], list):
            unknown = set(node["required"]) - node.get("properties", {}).keys()
            faults += [f"{place}: {name} is required and not defined" for name in unknown]
        if node.get("type") == "integer" and node.get("maximum", 2**31) >= 2**31:
            faults += [f"{place}: 32 bits"] if node.get("format") != "int64" else []
        if "default" in node and "/properties/" in place:
            faults.append(f"{place}: a default")
        arms = [each for key in ("anyOf", "oneOf") for each in node.get(key, ())]
        named = [each for each in arms if "$ref" in each]
        if len(named) < len([each for each in arms if each != {"type": "null"}]):
            faults.append(f"{place}: an arm without a name")
        if len(named) > 1 and place.rpartition("/")[0] != "/components/schemas":
            faults.append(f"{place}: a union without a name")
    assert faults == []


def test_no_title_of_the_description_stands_for_two_things():
    """Generators call types by the titles."""
    found: dict[str, set[bytes]] = {}
    for place, node in schemas_of(document()):
        if "type" in node and isinstance(node.get("title"), str) and "/parameters/" not in place:
            same = {name: node[name] for name in ("type", "enum", "properties") if name in node}
            if isinstance(same["type"], list):
                same["type"] = next(each for each in same["type"] if each != "null")
            found.setdefault(node["title"], set()).add(msgspec.json.encode(same))
    assert [title for title, each in found.items() if len(each) > 1] == []
    names = Counter(name.lower() for name in document()["components"]["schemas"])
    assert [name for name, count in names.items() if count > 1] == []


def test_the_address_of_the_service_is_relative_to_that_of_its_description():
    """So that clients are right behind the path of a proxy."""
    assert [each["url"] for each in document()["servers"]] == ["."]
