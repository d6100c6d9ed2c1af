"""The printing of a generated page: `http` (docs/reference/http.md), `http-full` (its long form on
the documentation's site), `metrics` (docs/reference/metrics.md) or `openapi` (the document)."""

import sys

from chronos.admin.cluster import metrics
from chronos.admin.http import openapi

MAKERS = {
    "http": openapi.contents,
    "http-full": openapi.reference,
    "metrics": metrics.reference,
    "openapi": openapi.text,
}

sys.stdout.write(MAKERS[sys.argv[1] if len(sys.argv) > 1 else "http"]())
