"""Counts of the dead letters, or of the rejected records, of one step, and their log line."""

from collections import Counter
from collections.abc import Iterable

import structlog
from msgspec import Struct, field

from chronos.core.message import TARGET_TOPIC, Reason, Record, Rejection

log = structlog.get_logger("chronos.shard")

IDS_SHOWN = 5
"""Ids in one log line."""

ID_BYTES_SHOWN = 100
"""Bytes of one of them."""

CASES_SHOWN = 10
"""Pairs of reason and target in one log line; the others are counted together."""

CASES_MAX = 1_000
"""Pairs of reason and target that are counted apart: refused records may name any target."""

OTHER = "other"
"""Stands for all further targets."""


class LetterCounts(Struct):
    """Dead letters, or rejected records, of one step."""

    cases: Counter[tuple[Reason, str]] = field(default_factory=Counter)
    """Number by reason and target; an empty target: none is named."""
    ids: list[bytes] = field(default_factory=list)
    """The first ids."""

    def add(self, reason: Reason, target: str, message_id: bytes) -> None:
        """Count one."""
        self.count(reason, target, 1)
        if len(self.ids) < IDS_SHOWN:
            self.ids.append(message_id)

    def count(self, reason: Reason, target: str, number: int) -> None:
        """Count so many, without their ids."""
        case = (reason, target)
        self.cases[case if case in self.cases or len(self.cases) < CASES_MAX else (reason, OTHER)] += number

    def write(self, event: str, shard: int) -> None:
        """Write the log line."""
        shown = self.cases.most_common(CASES_SHOWN)
        by = {f"{reason.label} {target}".rstrip(): count for (reason, target), count in shown}
        rest = self.cases.total() - sum(by.values())
        if rest:
            by[OTHER] = rest
        ids = [message_id[:ID_BYTES_SHOWN].decode("utf-8", "backslashreplace") for message_id in self.ids]
        log.warning(event, shard=shard, count=self.cases.total(), by=by, ids=ids)


def count_rejected(rejections: Iterable[tuple[Record, Rejection]], shard: int) -> LetterCounts:
    """Return the counts of the rejected records of a step. A record without a key is named by shard and offset."""
    counts = LetterCounts()
    for record, rejection in rejections:
        target = next((value for name, value in record.headers or () if name == TARGET_TOPIC), None) or b""
        named = record.key if record.key is not None else b"%d/%d" % (shard, record.offset)
        counts.add(rejection.reason, target[:ID_BYTES_SHOWN].decode("utf-8", "backslashreplace"), named)
    return counts
