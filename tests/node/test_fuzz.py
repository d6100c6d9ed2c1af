"""A short campaign of requests that are almost HTTP; `scripts/fuzz` has longer ones."""

import asyncio

from structlog.testing import capture_logs

from tests.fuzz.hostile import Goal, almost_http
from tests.harness.inside import Inside

SECONDS = 2.0


def test_no_request_that_is_almost_http_is_an_error_of_the_service(tmp_path):
    """Whatever was changed in it; afterwards the service is ready."""
    with Inside(tmp_path) as service, capture_logs() as logs:
        statuses = asyncio.run(almost_http(Goal(service.port), SECONDS, seed=1))
        assert service.ask("GET", "/readyz").status == 200
    assert sum(statuses.values()) > 0
    assert statuses["500"] == 0, [
        line for line in logs if line["event"] in ("request failed", "request not read")
    ]
    assert [line for line in logs if line["event"] == "request failed"] == []
