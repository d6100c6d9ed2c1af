"""Spans: their links and attributes, the messages that have none, and a service that sends them to
an OTLP receiver."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id

from chronos.adapters.tracing import SPANS_PER_SECOND, Spans, sampled_share
from chronos.core.message import Entry, Reason, Record
from chronos.core.shard.progress import Decision, Outcome
from chronos.core.shard.step import Parsed, Staged, selection_of
from chronos.errors import ConfigurationError
from tests.harness.service import Service
from tests.harness.serving import serving

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01".encode()


def message(headers: dict[str, bytes | None] | list[tuple[str, bytes | None]]) -> Entry:
    """A message that is due 3 s after it was sent."""
    return Entry(
        id=b"order-17",
        due_ms=4_000,
        target="reminders",
        key=None,
        headers=headers,
        value=b"x",
        timestamp_ms=1_000,
    )


class Traced:
    """Spans in memory."""

    def __init__(self, share: float | None = 1.0) -> None:
        self.exporter = InMemorySpanExporter()
        self.spans = Spans(
            SimpleSpanProcessor(self.exporter),
            delay_topic="chronos.delay",
            node="n",
            version="1",
            share=share,
        )

    def of(self, entry: Entry, outcome: Outcome = Outcome.DELIVERED, reason: int = 0):
        record = Record(offset=5, timestamp_ms=1_000, key=None, value=b"x", headers=None)
        parsed = Parsed(
            records=[record],
            commands=[entry],
            places=[None],
            known={},
            named_ids=set(),
            action_ids=frozenset(),
        )
        self.spans.accepted(2, 1_010, parsed, Staged(pull_offset=6, watermark_ms=1_000))
        selection = selection_of([(4_000, 5, b"")], [entry], (4_000, 5), complete=True)
        decision = Decision(due_ms=4_000, offset=5, outcome=outcome, reason=reason)
        decisions = [] if outcome is Outcome.DELIVERED else [decision]
        self.spans.settled(2, 4_007, selection, decisions)
        return self.exporter.get_finished_spans()


def test_both_spans_are_roots_that_link_to_the_context_of_the_message():
    accept, deliver = Traced().of(message({"traceparent": TRACEPARENT, "tracestate": b"a=b"}))
    for span in (accept, deliver):
        assert span.parent is None
        (link,) = span.links
        assert format_trace_id(link.context.trace_id) == TRACE
        assert format_span_id(link.context.span_id) == PARENT
        assert link.context.trace_state.to_header() == "a=b"
    assert len({accept.context.trace_id, deliver.context.trace_id, int(TRACE, 16)}) == 3
    assert (accept.name, accept.start_time, accept.end_time) == (
        "accept reminders",
        1_000 * 10**6,
        1_010 * 10**6,
    )
    assert (deliver.name, deliver.start_time, deliver.end_time) == (
        "deliver reminders",
        4_000 * 10**6,
        4_007 * 10**6,
    )
    both = {
        "messaging.system": "kafka",
        "messaging.message.id": "order-17",
        "chronos.shard": 2,
        "chronos.due_at": 4_000,
    }
    assert accept.attributes == both | {
        "messaging.operation.name": "accept",
        "messaging.operation.type": "receive",
        "messaging.destination.name": "chronos.delay",
        "messaging.destination.partition.id": "2",
        "messaging.kafka.offset": 5,
        "chronos.target": "reminders",
    }
    assert deliver.attributes == both | {
        "messaging.operation.name": "deliver",
        "messaging.operation.type": "send",
        "messaging.destination.name": "reminders",
        "chronos.lateness_ms": 7,
        "chronos.outcome": "delivered",
    }


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"traceparent": None},
        {"traceparent": b""},
        {"traceparent": b"\xff" * 55},
        {"traceparent": TRACEPARENT[:-1]},
        {"traceparent": b"ff" + TRACEPARENT[2:]},
        {"traceparent": b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01"},
        {"Other": TRACEPARENT},
    ],
)
def test_a_message_without_a_valid_traceparent_has_no_span(headers):
    assert Traced().of(message(headers)) == ()


def test_a_share_is_chosen_by_the_trace_id_and_has_both_spans():
    low = f"00-{'1' * 16}{'0' * 15}1-{PARENT}-00".encode()
    high = f"00-{'1' * 16}{'f' * 16}-{PARENT}-00".encode()
    assert len(Traced(0.01).of(message({"traceparent": low}))) == 2
    assert Traced(0.01).of(message({"traceparent": high})) == ()
    assert len(Traced().of(message([("a", b""), ("a", b""), ("traceparent", high)]))) == 2


def test_the_spans_of_a_second_are_bounded_over_all_steps():
    traced = Traced()
    entries = [message({"traceparent": TRACEPARENT})] * (SPANS_PER_SECOND - 1)

    def made_after(committed_ms: int) -> int:
        items = [(4_000, at, b"") for at in range(len(entries))]
        selection = selection_of(items, entries, (4_000, len(entries)), complete=True)
        traced.spans.settled(0, committed_ms, selection, [])
        return len(traced.exporter.get_finished_spans())

    assert made_after(4_007) == SPANS_PER_SECOND - 1
    assert made_after(4_990) == SPANS_PER_SECOND
    assert made_after(4_999) == SPANS_PER_SECOND
    assert made_after(5_000) == 2 * SPANS_PER_SECOND - 1


def test_what_fails_in_the_spans_does_not_fail_the_step():
    traced = Traced()
    nothing: Any = None
    traced.spans.settled(0, 4_007, nothing, [])
    assert traced.of(message({"traceparent": TRACEPARENT})) == ()


def test_the_sampled_flag_decides_where_it_is_followed():
    followed = Traced(None)
    assert len(followed.of(message({"traceparent": TRACEPARENT}))) == 2
    unsampled = TRACEPARENT[:-1] + b"0"
    assert Traced(None).of(message({"traceparent": unsampled})) == ()


def test_the_variables_of_opentelemetry_choose_the_messages():
    for name, argument, share in (
        (None, None, None),
        ("parentbased_traceidratio", "0.5", None),
        ("always_on", None, 1.0),
        ("always_off", None, 0.0),
        ("traceidratio", None, 1.0),
        ("traceidratio", "0.25", 0.25),
    ):
        given = {"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": argument}
        environ = {key: value for key, value in given.items() if value is not None}
        assert sampled_share(environ) == share, environ
    assert Traced(0.0).of(message({"traceparent": TRACEPARENT})) == ()
    for name, argument in (("jaeger_remote", "1"), ("traceidratio", "2"), ("traceidratio", "all")):
        with pytest.raises(ConfigurationError, match=f"OTEL_TRACES_SAMPLER is '{name}'"):
            sampled_share({"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": argument})


def test_a_dead_letter_is_an_error_with_its_reason():
    _, deliver = Traced().of(
        message({"traceparent": TRACEPARENT}), Outcome.DEAD, Reason.TARGET_MISSING
    )
    assert deliver.status.status_code is StatusCode.ERROR
    assert deliver.attributes["error.type"] == "target-missing"
    assert deliver.attributes["chronos.outcome"] == "dead"


class Receiver:
    """An OTLP receiver over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.answers = threading.Event()
        """Cleared, it takes requests and does not answer them."""
        self.answers.set()
        self.asked = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                receiver.asked.set()
                receiver.answers.wait()
                request = ExportTraceServiceRequest.FromString(body)
                receiver.spans += [
                    span
                    for resource in request.resource_spans
                    for scope in resource.scope_spans
                    for span in scope.spans
                ]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    with serving(receiver.server):
        yield receiver
        receiver.answers.set()


@pytest.mark.process
def test_a_service_sends_two_linked_spans_and_leaves_the_header_as_it_is(tmp_path, receiver):
    settings = {
        "tracing.enabled": "true",
        "tracing.endpoint": receiver.url,
    }
    with Service(tmp_path / "data", settings=settings) as service:
        service.start()
        entry = {
            "id": "order-17",
            "target": {"topic": "reminders", "headers": {"traceparent": TRACEPARENT.decode()}},
            "value": "x",
            "delay": 1_000,
        }
        untraced = {"target": {"topic": "reminders"}, "value": "y", "delay": 0}
        service.post("/v1/messages", [entry, untraced])

        def records() -> list:
            status, answer = service.ask("GET", "/v1/topics/reminders/records?limit=10")
            return answer["records"] if status == 200 else []

        service.wait_until(lambda: len(records()) == 2, "both are delivered")
        assert TRACEPARENT.decode() in str(records())
        # The spans that are left are sent at the end.
        service.stop()
    accept, deliver = sorted(receiver.spans, key=lambda span: span.start_time_unix_nano)
    assert [accept.name, deliver.name] == ["accept reminders", "deliver reminders"]
    assert deliver.start_time_unix_nano - accept.start_time_unix_nano >= 900 * 10**6
    for span in (accept, deliver):
        assert span.parent_span_id == b""
        (link,) = span.links
        assert (link.trace_id.hex(), link.span_id.hex()) == (TRACE, PARENT)
    assert accept.trace_id != deliver.trace_id


@pytest.mark.process
def test_a_receiver_that_does_not_answer_delays_no_message_and_no_stop(tmp_path, receiver):
    """Spans are sent by a thread of their own, and what is left at the end is given up in time."""
    receiver.answers.clear()
    settings = {
        "tracing.enabled": "true",
        "tracing.endpoint": receiver.url,
    }
    with Service(tmp_path / "data", settings=settings) as service:
        service.start()
        target = {"topic": "reminders", "headers": {"traceparent": TRACEPARENT.decode()}}
        entry = {"target": target, "value": "x", "delay": 0}
        service.post("/v1/messages", [entry] * 600)
        assert receiver.asked.wait(60)
        service.post("/v1/messages", [entry] * 600)
        service.wait_until(
            lambda: service.delivered() == 1_200,
            "all are delivered",
        )
        assert not receiver.spans
        assert service.stop() == 0


def test_a_message_that_waits_on_has_no_deliver_span():
    (accept,) = Traced().of(message({"traceparent": TRACEPARENT}), Outcome.RETRY)
    assert accept.name == "accept reminders"


def test_a_missing_package_is_named_with_its_extra(monkeypatch, capsys):
    from chronos import cli
    from chronos.adapters.tracing import open_spans

    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ModuleNotFoundError) as missing:
        open_spans(None, delay_topic="d", node="n", version="1", environ={})
    with pytest.raises(SystemExit):
        cli._explain(missing.value)
    assert "pip install 'kafka-chronos[otel]'" in capsys.readouterr().err
