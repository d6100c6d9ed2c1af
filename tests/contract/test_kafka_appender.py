"""The producer for records outside transactions, after a fatal error. Needs no Java: librdkafka's
mock broker answers as it is told, which says nothing about Kafka, and all about what the client
does with the answer."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, cimpl

from chronos.adapters.kafka.appender import KafkaAppender
from chronos.adapters.kafka.connection import Connection
from chronos.errors import LogUnavailable
from chronos.ports import Outgoing
from tests.harness.waiting import wait_until

TIMEOUT_S = 30.0
RECORD: Outgoing = ("t", None, b"v", [], 0)

PRODUCER_TYPE = 0
"""`RD_KAFKA_PRODUCER`."""

INIT_PRODUCER_ID = 22
"""Kafka's number of the request for a producer id."""


class MockBroker:
    """One mock broker of librdkafka, with the topic of RECORD."""

    def __init__(self) -> None:
        self._client = ctypes.CDLL(cimpl.__file__)  # its symbols include those of librdkafka
        handle, number = ctypes.c_void_p, ctypes.c_int
        new_settings = self._function("conf_new", handle)
        set_ = self._function("conf_set", number, handle, *[ctypes.c_char_p] * 3, ctypes.c_size_t)
        new = self._function("new", handle, number, handle, ctypes.c_char_p, ctypes.c_size_t)
        settings = new_settings()
        set_(settings, b"log_level", b"0", None, 0)
        self._owner = new(PRODUCER_TYPE, settings, None, 0)
        self._cluster = self._function("mock_cluster_new", handle, handle, number)(self._owner, 1)
        create = self._function(
            "mock_topic_create", number, handle, ctypes.c_char_p, number, number
        )
        assert create(self._cluster, RECORD[0].encode(), 1, 1) == 0
        self.bootstrap = self._function("mock_cluster_bootstraps", ctypes.c_char_p, handle)(
            self._cluster
        ).decode()

    def _function(self, name: str, result: object, *arguments: object) -> ctypes._NamedFuncPointer:
        function = getattr(self._client, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
        return function  # type: ignore[no-any-return]

    def answer_once(self, request: int, code: int) -> None:
        """Answer the next request of this kind with an error."""
        push = self._function(
            "mock_push_request_errors_array",
            None,
            ctypes.c_void_p,
            ctypes.c_int16,
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_int),
        )
        push(self._cluster, request, 1, (ctypes.c_int * 1)(code))

    def stop(self) -> None:
        """End it."""
        self._function("mock_cluster_destroy", None, ctypes.c_void_p)(self._cluster)
        self._function("destroy", None, ctypes.c_void_p)(self._owner)


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    made = MockBroker()
    yield made
    made.stop()


def test_records_are_appended_again_once_the_cause_of_a_fatal_error_has_gone(
    broker: MockBroker,
) -> None:
    """An operator adds an ACL, for one. The record that met the error fails before its time."""
    broker.answer_once(INIT_PRODUCER_ID, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    appender = KafkaAppender(Connection(broker.bootstrap, {}))
    with pytest.raises(LogUnavailable, match="the client has discarded the record"):
        appender.append([RECORD], TIMEOUT_S)
    wait_until(lambda: appender._producer is None, timeout_s=TIMEOUT_S)
    assert [appender.append([RECORD], TIMEOUT_S)[0].offset for _ in range(2)] == [0, 1]
    appender.close()
