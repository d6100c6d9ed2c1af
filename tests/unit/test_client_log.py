"""The lines of the Kafka client in the log of the service."""

from __future__ import annotations

from structlog.testing import capture_logs

from chronos.adapters.kafka.client_log import ClientLog


def test_what_is_tried_again_is_for_debugging_and_other_lines_warn_at_most() -> None:
    """A broker that is gone is named by what cannot be done without it, and not by each client and
    thread."""
    client = ClientLog()
    with capture_logs() as logs:
        client.log(
            40,
            (
                "FAIL [chronos#producer-1] [thrd:b:9092/1]: b:9092/1: Connect to b:9092 failed: "
                "Connection refused"
            ),
        )
        client.log(
            40,
            (
                "CONFWARN [chronos#producer-1] [thrd:app]: Configuration property %s is a "
                "consumer property"
            ),
            "fetch.min.bytes",
        )
        client.log(
            30,
            (
                "GETPID [p] [thrd:main]: Failed to acquire transactional PID: Coordinator load in "
                "progress: retrying"
            ),
        )
    assert [line["log_level"] for line in logs] == ["debug", "warning", "debug"]


def test_the_same_line_of_many_clients_is_logged_once() -> None:
    """They differ in their numbers."""
    client = ClientLog()
    with capture_logs() as logs:
        for number in range(3):
            client.log(
                30,
                (
                    f"GETPID [chronos#producer-{number}] [thrd:main]: Failed to acquire PID after "
                    f"{number} ms"
                ),
            )
    assert len(logs) == 1
