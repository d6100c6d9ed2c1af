"""`/openapi.json` against the running service: every operation, with good and bad data made from the description."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig

from chronos.admin.openapi import document
from chronos.admin.routes import table
from chronos.admin.schemas import NoQuery
from tests.harness.service import Service

# What no single field can say (a due time beyond limits.max_delay, a topic that is Chronos's own, an id longer in
# bytes than in letters) is refused with 422 although the description allows it; 501 and 421 are answers, not faults.
# 403 is what anybody gets who asks for what only members of a cluster may have.
SEMANTIC = [200, 202, 403, 404, 409, 410, 422, 501]

# One node answers all of them.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("openapi")]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A node of its own: what is sent here is nonsense."""
    with Service(tmp_path_factory.mktemp("openapi") / "data", settings={"shards": 2}) as running:
        yield running.start()


@pytest.fixture(scope="module")
def description(service: Service) -> schemathesis.BaseSchema:
    """The service's own description of itself."""
    config = SchemathesisConfig.from_dict(
        {"checks": {"positive_data_acceptance": {"expected-statuses": [str(status) for status in SEMANTIC]}}}
    )
    return schemathesis.openapi.from_url(service.url + "/openapi.json", config=config)


OPERATIONS = [
    pytest.param(route.method, route.path, mode, id=f"{mode.value} {route.method} {route.path}")
    for route in table(None)
    for mode in GenerationMode
    # Where nothing is taken, or any text (the name of a node), nothing can be wrong.
    if mode is GenerationMode.POSITIVE
    or any(kind is not str for kind in route.parameters.values())
    or route.body is not None
    or route.query is not NoQuery
]
EXAMPLES_MAX = 25
"""Requests of each kind to each operation."""


@pytest.mark.parametrize(("method", "path", "mode"), OPERATIONS)
def test_every_operation_keeps_what_the_description_says(description, method, path, mode):
    """Status, content type and body of every answer, whatever is sent; no answer is a fault of the service."""
    operation = description[path][method]
    excluded = [not_a_server_error] if path.endswith(("/transfer", "/drain", "/undrain", "/checkpoints")) else []

    @settings(
        max_examples=EXAMPLES_MAX,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=[Phase.explicit, Phase.generate],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case) -> None:
        if case.query and "wait" in case.query and case.query["wait"] != "0s":
            case.query = {**case.query, "wait": "0s"}
        case.call_and_validate(excluded_checks=excluded)

    send()


def test_the_description_names_every_route_once():
    """Made from the table of routes, so nothing is forgotten and nothing is invented."""
    described = {(method.upper(), path) for path, operations in document()["paths"].items() for method in operations}
    assert described == {(route.method, route.path) for route in table(None)}
    names = [operation["operationId"] for found in document()["paths"].values() for operation in found.values()]
    assert len(names) == len(set(names))


def test_the_served_description_is_the_one_the_code_makes(service):
    """And is OpenAPI 3.1."""
    served = service.get("/openapi.json")
    assert served == document()
    assert served["openapi"].startswith("3.1.")
