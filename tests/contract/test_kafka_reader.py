"""How a Kafka reader handles the client's errors, including those that a test cannot make a broker return."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, TopicPartition

from chronos.adapters.kafka.reader import KafkaReader
from chronos.errors import BatchUnreadable, ChronosError, LogMismatch, LogUnavailable


class Answer:
    """A message of the client: a record at an offset, or an error."""

    def __init__(self, offset: int, error: int | None = None) -> None:
        self._offset = offset
        self._error = error

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 2, 1_000 + self._offset

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes:
        return b"%d" % self._offset

    def headers(self) -> None:
        return None


class Client:
    """A consumer of a partition with records 0 to 9, which reports each error once, in front of its record."""

    def __init__(self, errors: dict[int, list[int]]) -> None:
        self.errors = errors
        self.at = 0

    def assign(self, partitions: list[TopicPartition]) -> None:
        (partition,) = partitions
        self.at = partition.offset

    def consume(self, count: int, timeout_s: float) -> list[Answer]:
        answers: list[Answer] = []
        while len(answers) < count and self.at < 10:
            errors = self.errors.get(self.at)
            if errors:
                answers.append(Answer(self.at, errors.pop(0)))
            else:
                answers.append(Answer(self.at))
                self.at += 1
        return answers


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (KafkaError._UNKNOWN_PARTITION, LogUnavailable),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, LogUnavailable),
        (KafkaError._AUTO_OFFSET_RESET, LogMismatch),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, LogUnavailable),
        (KafkaError._TRANSPORT, None),
        (KafkaError.NOT_LEADER_FOR_PARTITION, None),
        (KafkaError._BAD_COMPRESSION, BatchUnreadable),
        (KafkaError._BAD_MSG, BatchUnreadable),
        (KafkaError.INVALID_MSG, BatchUnreadable),
        (KafkaError.UNKNOWN, LogUnavailable),
        (KafkaError._FAIL, LogUnavailable),
    ],
)
@pytest.mark.parametrize("before", [[], [KafkaError._PARTITION_EOF]], ids=["", "eof"])
@pytest.mark.parametrize("at", [0, 1, 7])
def test_an_error_among_records_costs_none_of_them(
    at: int, before: list[int], code: int, raised: type[ChronosError] | None
) -> None:
    reader = KafkaReader(Client({at: [*before, code]}), "delay", 0, 0)  # type: ignore[arg-type]
    found: list[int] = []
    failed: list[type[ChronosError]] = []
    for _ in range(10):
        try:
            found += [record.offset for record in reader.read(4, 10**6)]
        except ChronosError as error:
            failed.append(type(error))
    assert found == list(range(10))
    assert failed == ([] if raised is None else [raised])
    assert reader.position == 10


def test_an_error_is_raised_once_the_records_before_it_were_returned() -> None:
    """Raised earlier, it would keep every record before it from being read for as long as it lasts."""
    reader = KafkaReader(Client({3: [KafkaError._BAD_COMPRESSION]}), "delay", 5, 0)  # type: ignore[arg-type]
    assert [record.offset for record in reader.read(10, 10**6)] == [0, 1, 2]
    with pytest.raises(BatchUnreadable, match=r"at offset 3 of delay/5 cannot be read") as raised:
        reader.read(10, 10**6)
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("delay", 5, 3)
    assert reader.position == 3
    assert [record.offset for record in reader.read(10, 10**6)] == [3, 4, 5, 6, 7, 8, 9]
