"""Spans for OpenTelemetry (`ports.Tracing`): one when a message was accepted, one when it was
delivered, expired or dead-lettered, each a trace of its own with a link to the message's
`traceparent`. Only messages whose `traceparent` the sampler chooses have spans, and at most
SPANS_PER_SECOND are made.

Packages of the extra `otel` are imported when the spans are opened, not before. A span is made
after the commit, from times that are known then, and put into a bounded queue; a thread of the SDK
exports it. So no step waits for an export, and tracing changes no message."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from chronos.core.message import ConditionalSchedule, Entry, Reason, entry_id
from chronos.core.shard.progress import Decision, Outcome
from chronos.core.shard.step import Parsed, Selection, Staged
from chronos.errors import ConfigurationError

log = structlog.get_logger("chronos.tracing")

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Link

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

QUEUE_MAX = 8_192
"""Spans that wait for their export; the oldest is dropped for each one beyond, and the SDK logs
that."""

SPANS_PER_SECOND = 200
"""Most spans that a node makes in a second. Each takes some 70 us of the interpreter's time
(measured), and finding the messages to choose 0.4 us for each message: without the bound a drain of
300,000 messages a second would lose a third. Jaeger's rate-limiting sampler does the same."""

BATCH_MAX = 512
"""Spans of one request."""

EXPORT_TIMEOUT_S = 5
"""Time for one request, its repetitions included."""

FLUSH_S = 3.0
"""Time for the export of the spans that are left at the end of the process."""

ODD_DIGITS = frozenset(b"%x" % digit for digit in range(1, 16, 2))
"""Last digits of the flags of a context that is sampled."""

OBSERVED = {
    Outcome.DELIVERED: Outcome.DELIVERED,
    Outcome.AGAIN: Outcome.DELIVERED,
    Outcome.EXPIRED: Outcome.EXPIRED,
    Outcome.DEAD: Outcome.DEAD,
}
"""Outcomes that have a span, and the one it names; after any other the message is pending."""

SAMPLER, ARGUMENT = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
"""Variables of OpenTelemetry's SDK that name the sampler and its argument."""

SHARES: Mapping[str, float | None] = {
    "parentbased_always_on": None,
    "parentbased_always_off": None,
    "parentbased_traceidratio": None,
    "always_on": 1.0,
    "always_off": 0.0,
}
"""Samplers without an argument that matters here -> the share of traces that they choose."""

_RATIO_BITS = 64
"""Bits at the end of a trace id by which a share of the traces is chosen, as the sampler
`traceidratio` of OpenTelemetry does."""


class Spans:
    """The spans of one node. Every shard's thread may call."""

    def __init__(
        self,
        processor: "SpanProcessor",
        *,
        delay_topic: str,
        node: str,
        version: str,
        share: float | None = None,
    ) -> None:
        """`share`: of the traces whose messages are chosen, see `sampled_share`."""
        from opentelemetry.context import Context
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create(
            {
                "service.name": "chronos",
                "service.version": version,
                "service.instance.id": node,
            }
        )
        # The messages are chosen here. The end of the process calls `close`, not the SDK.
        provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(processor)
        self._processor = processor
        self._tracer = provider.get_tracer("chronos", version)
        self._root = Context()
        self._kind = SpanKind.CLIENT
        self._error: Callable[[str], Status] = lambda why: Status(StatusCode.ERROR, why)
        self._propagator = TraceContextTextMapPropagator()
        self._delay_topic = delay_topic
        # The digits of a number are in the order of the numbers; "g" is after all of them.
        self._below = (
            b"g" if share is None or share >= 1 else b"%016x" % int(share * (1 << _RATIO_BITS))
        )
        self._follows_flag = share is None
        self._second = 0
        """The second in which spans were made last, of the commits' times."""
        self._left = SPANS_PER_SECOND
        """Spans that may be made in it. Threads of several shards change it without a lock: the
        bound is about the processor, and need not be exact."""
        self._failed = False

    def accepted(self, shard: int, committed_ms: int, parsed: Parsed, staged: Staged) -> None:
        """Make the spans of the messages that a committed step accepted."""
        self._observe(self._accepted, shard, committed_ms, parsed, staged)

    def settled(
        self, shard: int, committed_ms: int, selection: Selection, decisions: Sequence[Decision]
    ) -> None:
        """Make the spans of the messages that a committed step delivered, dead-lettered or
        expired."""
        self._observe(self._settled, shard, committed_ms, selection, decisions)

    def _observe(
        self, observe: Callable[..., None], shard: int, committed_ms: int, *step: object
    ) -> None:
        second = committed_ms // 1_000
        if second != self._second:
            self._second, self._left = second, SPANS_PER_SECOND
        # The step is committed: whatever fails here must not stop the shard.
        if self._left > 0 and not self._failed:
            try:
                observe(shard, committed_ms, *step)
            except Exception:
                self._failed = True
                log.exception("tracing failed: no spans until this node is started again")

    def _accepted(self, shard: int, committed_ms: int, parsed: Parsed, staged: Staged) -> None:
        entries = [
            command.entry if isinstance(command, ConditionalSchedule) else command
            for command in parsed.commands
        ]
        chosen = self._chosen([each if isinstance(each, Entry) else None for each in entries])
        refused = {offset for offset, _ in staged.letters.refused} if chosen else set()
        for at in chosen:
            offset, entry = parsed.records[at].offset, entries[at]
            assert isinstance(entry, Entry), "only messages are chosen"
            link = None if offset in refused else self._link(entry)
            if link is None:
                continue
            attributes = self._attributes(shard, offset, entry) | {
                "messaging.operation.name": "accept",
                "messaging.operation.type": "receive",
                "messaging.destination.name": self._delay_topic,
                "messaging.destination.partition.id": str(shard),
                "messaging.kafka.offset": offset,
                "chronos.target": entry.target,
            }
            self._span(f"accept {entry.target}", link, attributes, entry.timestamp_ms, committed_ms)

    def _settled(
        self, shard: int, committed_ms: int, selection: Selection, decisions: Sequence[Decision]
    ) -> None:
        chosen = self._chosen(selection.entries)
        decided = {decision.offset: decision for decision in decisions} if chosen else {}
        for at in chosen:
            entry, offset = selection.entries[at], selection.items[at][1]
            decision = decided.get(offset)
            outcome = Outcome.DELIVERED if decision is None else OBSERVED.get(decision.outcome)
            link = None if outcome is None else self._link(entry)
            if outcome is None or link is None:
                continue
            attributes = self._attributes(shard, offset, entry) | {
                "messaging.operation.name": "deliver",
                "messaging.operation.type": "send",
                "messaging.destination.name": entry.target,
                "chronos.lateness_ms": max(0, committed_ms - entry.due_ms),
                "chronos.outcome": outcome.name.lower(),
            }
            # A message that was due before it was sent could not be delivered before.
            began_ms = max(entry.due_ms, entry.timestamp_ms)
            error = None
            if outcome is not Outcome.DELIVERED:
                reason = 0 if decision is None else decision.reason
                error = Reason(reason).label if reason else outcome.name.lower()
            self._span(f"deliver {entry.target}", link, attributes, began_ms, committed_ms, error)

    def _span(
        self,
        name: str,
        link: "Link",
        attributes: dict[str, str | int],
        began_ms: int,
        committed_ms: int,
        error: str | None = None,
    ) -> None:
        span = self._tracer.start_span(
            name, self._root, self._kind, attributes, [link], began_ms * 1_000_000
        )
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(self._error(error))
        span.end(max(committed_ms, began_ms) * 1_000_000)

    def close(self) -> None:
        """Export what is left, for at most about FLUSH_S."""
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        if isinstance(self._processor, BatchSpanProcessor):
            self._processor._batch_processor.shutdown(int(FLUSH_S * 1_000))
        else:
            self._processor.shutdown()

    def _attributes(self, shard: int, offset: int, entry: Entry) -> dict[str, str | int]:
        attributes: dict[str, str | int] = {"messaging.system": "kafka", "chronos.shard": shard}
        # The first time of a series, and with it a generated id, may not be decided yet.
        if entry.occurrence:
            attributes["chronos.due_at"] = entry.due_ms
        if entry.occurrence or entry.id is not None:
            message_id = entry_id(entry, shard, offset)
            attributes["messaging.message.id"] = message_id.decode("utf-8", "backslashreplace")
        return attributes

    def _chosen(self, entries: Sequence[Entry | None]) -> list[int]:
        """Return the indices of the messages that are chosen, as many as may have a span in this
        second."""
        # Threads that chose at the same time may have left less than nothing.
        chosen = self._sampled(entries)[: max(0, self._left)]
        self._left -= len(chosen)
        return chosen

    def _sampled(self, entries: Sequence[Entry | None]) -> list[int]:
        """Return the indices of the messages that are sampled, by a `traceparent` that may be
        malformed. It is called with every message: bytes are compared, and nothing is parsed."""
        if self._follows_flag:
            return [
                at
                for at, entry in enumerate(entries)
                if entry is not None
                and (headers := entry.headers)
                and (value := _value(headers)) is not None
                and value[54:55] in ODD_DIGITS
            ]
        below = self._below
        return [
            at
            for at, entry in enumerate(entries)
            if entry is not None
            and (headers := entry.headers)
            and (value := headers.get(TRACEPARENT) if type(headers) is dict else _value(headers))
            is not None
            and value[19:35] < below
        ]

    def _link(self, entry: Entry) -> "Link | None":
        """Return the link to the message's context; None if it has no valid one."""
        from opentelemetry.trace import Link, get_current_span

        headers = dict(entry.headers)
        try:
            carrier = {
                name: value.decode("ascii")
                for name in (TRACEPARENT, TRACESTATE)
                if (value := headers.get(name)) is not None
            }
        except UnicodeDecodeError:
            return None
        extracted = self._propagator.extract(carrier, self._root)
        context = get_current_span(extracted).get_span_context()
        return Link(context) if context.is_valid else None


def _value(
    headers: dict[str, bytes | None] | list[tuple[str, bytes | None]],
) -> bytes | None:
    return dict(headers).get(TRACEPARENT)


def batched(exporter: "SpanExporter") -> "SpanProcessor":
    """Return the processor whose thread exports in batches from the bounded queue."""
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return BatchSpanProcessor(exporter, max_queue_size=QUEUE_MAX, max_export_batch_size=BATCH_MAX)


def open_spans(
    endpoint: str | None,
    *,
    delay_topic: str,
    node: str,
    version: str,
    environ: Mapping[str, str],
) -> Spans:
    """Return the spans that are sent to an OTLP receiver over HTTP. Raises ModuleNotFoundError if
    the extra `otel` is not installed, and ConfigurationError.

    `endpoint`: the URL of its traces; None: that of the variables of OpenTelemetry."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return Spans(
        batched(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)),
        delay_topic=delay_topic,
        node=node,
        version=version,
        share=sampled_share(environ),
    )


def sampled_share(environ: Mapping[str, str]) -> float | None:
    """Return the share of the traces whose messages have spans, by OpenTelemetry's variables; None:
    those whose `traceparent` has the flag `sampled`. Raises ConfigurationError.

    Each message has the context of its producer as parent. So the samplers `parentbased_...`, of
    which one is the default, follow the flag, and the others decide by the trace id alone."""
    name, argument = environ.get(SAMPLER, "parentbased_always_on"), environ.get(ARGUMENT, "1.0")
    if name in SHARES:
        return SHARES[name]
    with suppress(ValueError):
        if name == "traceidratio" and 0 <= float(argument) <= 1:
            return float(argument)
    raise ConfigurationError(
        [
            f"{SAMPLER} is {name!r:.80} and {ARGUMENT} {argument!r:.80}: use one of "
            f"{', '.join(SHARES)}, or traceidratio with an argument from 0 to 1"
        ]
    )
