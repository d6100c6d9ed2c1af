"""Print `docs/reference/http.md`, with `metrics` `docs/reference/metrics.md`, with `openapi` the OpenAPI document."""

import sys

from chronos.admin import metrics, openapi

MAKERS = {
    "http": openapi.reference,
    "metrics": metrics.reference,
    "openapi": openapi.text,
}

sys.stdout.write(MAKERS[sys.argv[1] if len(sys.argv) > 1 else "http"]())
