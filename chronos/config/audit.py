"""The section `audit`: where it is written down who did what over HTTP."""

from typing import Literal

from chronos.config.section import Section, key
from chronos.config.values import Text, Topic


class AuditConfig(Section):
    """The audit trail: one entry for each request over HTTP that changes something, or that shows payloads."""

    to: Literal["log", "file", "topic"] = key(
        "log",
        "Where the entries go. `log`: lines of the logger `chronos.audit`, for requests with a token. `file`: JSON lines in `path`. "
        "`topic`: records of `topic`. A file and a topic also have the requests to a service without tokens.",
    )
    path: Text | None = key(
        None,
        "File that entries are appended to, each durable once it is written. A file that was renamed, as by logrotate, is followed "
        "by a new one. Required with `to: file`.",
    )
    topic: Topic = key(
        "chronos.audit",
        "Topic that entries are written to with `to: topic`. It is created like the other topics of Chronos, with one "
        "partition, and its records are kept for ever unless an operator changes that.",
    )
    required: bool = key(
        False,
        "Refuse requests that cannot be written down, with status 503: a first entry, the intent, is durable before a request "
        "changes or shows anything. It needs `to: file` or `to: topic`, and costs each request one write there. Off: entries that "
        "cannot be written are counted as lost.",
    )
