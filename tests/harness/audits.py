"""Results of audits of the archive, as `chronos audit -o json` prints them."""

from __future__ import annotations

import json

LATE = {"count": 11, "p50_ms": 4, "p99_ms": 20, "p999_ms": 20, "max_ms": 31}
COUNTS = {"delivered": 11, "missing": 1}


def result(target: str = "orders", **changes: object) -> str:
    """The result for 12 messages of a target, one of which is missing."""
    found: dict[str, object] = {
        "cluster": "chronos",
        "from": "2030-01-30T00:00:00Z",
        "to": "2030-01-31T00:00:00Z",
        "archived": "2030-01-31T00:05:00Z",
        "judged_until": "2030-01-31T00:04:00Z",
        "clean": False,
        "not_proved": [],
        "counts": COUNTS,
        "lateness": LATE,
        "reasons": [{"outcome": "delivered", "reason": None, "count": 11}],
        "targets": [{"target": target, "counts": COUNTS, "lateness": LATE}],
        "hours": [],
        "worst": [{"at": "2030-01-30T08:00:00Z", "counts": {"missing": 1}, "lateness": LATE}],
        "samples": [
            {
                "outcome": "missing",
                "shard": 0,
                "offset": 4711,
                "target": target,
                "due_minute": "2030-01-30T08:00:00Z",
            }
        ],
        "shards": [],
        "archived_targets": [],
        "details": None,
    }
    return json.dumps(found | changes)
