"""Brokers that refuse a connection or a permission: every error passes on the client's own reason
and names the address."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AclPermissionType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from msgspec import Struct

from chronos.adapters.kafka.batches import batch_header
from chronos.adapters.kafka.log import KafkaLog
from chronos.errors import ConfigurationError, LogUnavailable
from chronos.ports import TopicSpec
from tests.harness.broker import Broker
from tests.harness.ports import free_port
from tests.harness.service import Service
from tests.harness.waiting import wait_until
from tests.integration.foreign import Sent, Topics, examine, produce, rule

TOPICS = [TopicSpec(name="progress", partitions=1, settings={})]
ANSWER_S = 60.0


class Doors(Struct):
    """The addresses of a broker that asks for a password at one, and shows a self-signed
    certificate at the other."""

    broker: Broker
    login: str
    tls: str
    certificate: Path

    def refused(self) -> dict[str, tuple[str, dict[str, str], str]]:
        """By what is wrong: the address, the client's properties, a part of the reason."""
        return {
            "password": (
                self.login,
                password("wrong"),
                "Authentication failed: Invalid username or password",
            ),
            "certificate": (self.tls, {"security.protocol": "SSL"}, "certificate verify failed"),
        }


def password(text: str) -> dict[str, str]:
    """The client's properties with this password."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "chronos",
        "sasl.password": text,
    }


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """One broker for all tests; the certificate is made by the JDK that runs it."""
    store = tmp_path_factory.mktemp("tls") / "broker.p12"
    pair = [
        "-genkeypair",
        "-alias",
        "broker",
        "-keyalg",
        "EC",
        "-dname",
        "CN=127.0.0.1",
        "-ext",
        "SAN=IP:127.0.0.1",
    ]
    into = ["-keystore", str(store), "-storetype", "PKCS12", "-storepass", "secret1"]
    subprocess.run(["keytool", *pair, *into], check=True, capture_output=True, timeout=60)
    certificate = store.with_suffix(".pem")
    export = ["-exportcert", "-rfc", "-alias", "broker", "-file", str(certificate)]
    subprocess.run(["keytool", *export, *into], check=True, capture_output=True, timeout=60)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
    settings = {
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT"
        ),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": True,
        "super.users": "User:ANONYMOUS",
        "listener.name.login.plain.sasl.jaas.config": f'{module} required user_chronos="right";',
        "listener.name.login.scram-sha-512.sasl.jaas.config": f"{scram} required;",
        "listener.name.tls.ssl.keystore.location": store,
        "listener.name.tls.ssl.keystore.password": "secret1",
        "listener.name.tls.ssl.keystore.type": "PKCS12",
    }
    login, tls = free_port(), free_port()
    with Broker(settings, doors={"LOGIN": (login, login), "TLS": (tls, tls)}) as broker:
        yield Doors(broker, f"127.0.0.1:{login}", f"127.0.0.1:{tls}", certificate)


def log_at(address: str, properties: dict[str, str], request_timeout_s: float = 2.0) -> KafkaLog:
    """A log, not connected yet."""
    return KafkaLog(
        bootstrap_servers=address,
        properties=properties,
        progress_topic="progress",
        transaction_timeout_s=1.0,
        request_timeout_s=request_timeout_s,
    )


def wait_refused(log: KafkaLog, reason: str) -> None:
    """Wait until errors name the reason: on a loaded machine the first time-out may be over before
    the handshake is."""

    def is_named() -> bool:
        with pytest.raises(LogUnavailable) as raised:
            log.names()
        return reason in str(raised.value)

    wait_until(is_named, lambda: reason, timeout_s=ANSWER_S)


@pytest.mark.kafka
def test_every_error_of_a_refused_connection_names_the_reason_and_the_address(
    doors: Doors, tmp_path: Path
) -> None:
    """A wrong password and an untrusted certificate: all requests at once, because each waits for
    its own time-out."""
    wrong: dict[str, object] = {
        f"log.kafka.properties.{name}": value for name, value in password("wrong").items()
    }
    service = Service(
        tmp_path / "data",
        bootstrap=doors.login,
        settings={**wrong, "log.kafka.request_timeout": "10s"},
    )
    service.launch()
    log = log_at(doors.login, password("right"))
    assert (
        log.prepare(TOPICS, create=True)["progress"].partitions == 1
    )  # the password is what is wrong below
    log.close()
    cases = doors.refused()
    logs = {what: log_at(address, properties) for what, (address, properties, _) in cases.items()}

    def requests(log: KafkaLog) -> dict[str, Any]:
        return {
            "prepare": lambda: log.prepare(TOPICS, create=True),
            "names": log.names,
            "stable_end": lambda: log.stable_end("progress", 0),
            "trim": lambda: log.trim("progress", 0, 1),
            "committed": lambda: log.committed("g", "progress", 0),
            "append": lambda: log.append([("progress", None, b"v", [], 0)], 2.0),
            "writer": lambda: log.writer(0),
        }

    for what, refused in logs.items():
        wait_refused(refused, cases[what][2])
    with ThreadPoolExecutor(2 * 7) as pool:
        asked = {
            (what, name): pool.submit(request)
            for what, log in logs.items()
            for name, request in requests(log).items()
        }
        errors = {each: future.exception(ANSWER_S) for each, future in asked.items()}
    for log in logs.values():
        log.close()
    for (what, name), error in errors.items():
        address, _, reason = cases[what]
        assert type(error) is LogUnavailable, (what, name, error)
        assert reason in str(error), (what, name, str(error))
        assert address in str(error), (what, name, str(error))
    assert service.wait_exit() == 3
    assert "Invalid username or password" in service.tail()


@pytest.mark.kafka
def test_the_header_of_a_batch_is_read_with_a_login_and_over_tls(doors: Doors) -> None:
    """The request that the client does not make itself logs in and checks certificates as the
    client does."""
    topic = doors.broker.create_topic("headers")
    places = produce(
        doors.broker.bootstrap,
        topic,
        [Sent(b"%d" % at, partition=0) for at in range(3)],
        linger_ms=1_000,
    )
    assert [offset for _, offset in places] == [0, 1, 2]
    mechanism = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    user = UserScramCredentialUpsertion("chronos", mechanism, b"right")
    admin = doors.broker.admin()
    admin.alter_user_scram_credentials([user])["chronos"].result(30)
    tls, mechanism_name = {"security.protocol": "SSL"}, {"sasl.mechanism": "SCRAM-SHA-512"}
    for address, properties in (
        (doors.login, password("right")),
        (doors.login, password("right") | mechanism_name),
        (doors.tls, tls | {"ssl.ca.location": str(doors.certificate)}),
        (doors.tls, tls | {"enable.ssl.certificate.verification": "false"}),
    ):
        log = KafkaLog(
            bootstrap_servers=address,
            properties=properties,
            progress_topic="progress",
            transaction_timeout_s=1.0,
        )
        assert log.batch_bounds(topic, 0, 1) == (0, 2), properties
        log.close()
    host, port = doors.login.split(":")
    _, tls_port = doors.tls.split(":")
    for at, properties, reason in (
        (port, password("wrong"), "Invalid username or password"),
        (port, password("wrong") | mechanism_name, "authentication failed"),
        (tls_port, tls, "its certificate is not trusted: "),
    ):
        with pytest.raises(LogUnavailable, match=reason):
            batch_header((host, int(at)), properties, topic, 0, 1, ANSWER_S)


def deny(doors: Doors, topic: str, operation: AclOperation) -> None:
    """Allow the user all but this operation on a topic."""
    for each, verdict in (
        (operation, AclPermissionType.DENY),
        (AclOperation.ALL, AclPermissionType.ALLOW),
    ):
        rule(doors.broker, topic, each, verdict, "chronos")


@pytest.mark.kafka
def test_a_topic_that_may_not_be_seen_is_not_taken_for_missing(doors: Doors) -> None:
    """It cannot be created, because it is there: the error says so."""
    topic = doors.broker.create_topic("hidden")
    deny(doors, topic, AclOperation.DESCRIBE)
    hidden = [TopicSpec(name=topic, partitions=1, settings={})]
    error = f"{topic} exists, but Kafka does not let Chronos describe it"
    with (
        closing(log_at(doors.login, password("right"), ANSWER_S)) as log,
        pytest.raises(ConfigurationError, match=error),
    ):
        log.prepare(hidden, create=True)


@pytest.mark.kafka
def test_the_doctor_names_a_topic_that_may_not_be_written(doors: Doors, tmp_path: Path) -> None:
    """The operation that an ACL denies, for each of Chronos's own topics."""
    topics = Topics.of("acl")
    for topic in topics:
        doors.broker.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
    deny(doors, topics.dead_letter, AclOperation.WRITE)
    properties = {
        f"log.kafka.properties.{name}": value for name, value in password("right").items()
    }
    service = Service(
        tmp_path / "data", bootstrap=doors.login, settings={**topics.settings(), **properties}
    )
    code, found = examine(service)
    assert code == 2, found
    assert [text.partition(": add ACLs")[0] for text in found["problem"]] == [
        f"topics: {topics.dead_letter}: the brokers do not let this client Write"
    ]
