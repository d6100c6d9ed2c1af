"""A real Kafka for tests and benchmarks: brokers that can be started, killed, frozen and restarted.

Each broker is one JVM (KRaft, broker and controller in one) on free ports of the loopback
interface, with a temporary data directory. The two console programs that come with Kafka serve as
clients independent of Chronos.

This is not a fixture (those are in `conftest.py`; this module does not use pytest), and never a
reason to skip a test: where Java or Kafka is missing, `start()` raises an error that says what to
install.

    with Broker() as broker:
        broker.create_topic("orders", partitions=4)
        broker.console_producer("orders", [ConsoleRecord("hello", headers=[("a", "1")])])
        broker.kill()
        broker.start()  # the same port, the same data
        assert broker.console_consumer("orders", max_messages=1)[0].value == "hello"

    with cluster(3) as kafka:  # replicated topics; kafka[0].freeze(), kafka[1].kill() and so on
        ...

A broker does not outlive the process that started it, even if that is killed: a watchdog process
kills the broker and removes its directory when the pipe from that process closes."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from tests.harness.java import ROOT, compiled, jars, java, shared_classes
from tests.harness.ports import free_port
from tests.harness.process import Startable, Watchdog, freeze
from tests.harness.waiting import NotInTime, is_in_time

START_TIMEOUT_S = 90.0
"""From `start()` to a broker that answers. Usually 4 s; the bound is for a loaded machine."""

STOP_TIMEOUT_S = 15.0
"""A controlled shutdown takes 1 s; the broker is killed after this time."""

TOOL_TIMEOUT_S = 120.0
"""A console program takes 2 s; the bound is for a broker that does not answer."""

POLL_INTERVAL_S = 0.05
"""Between two checks of a condition that is waited for."""

SHORT_SESSION = {"broker.session.timeout.ms": 4_000, "broker.heartbeat.interval.ms": 1_000}
"""For a single broker: after a `kill()` the controller refuses its registration until the session
of the killed process has ended, and with Kafka's 9 s every such test would wait 11 s. A cluster
keeps Kafka's values, because there they are the time of a failover, which is tested."""

FORGETFUL = {
    "transactional.id.expiration.ms": 3_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
    "producer.id.expiration.ms": 2_000,
}
"""Settings with which a broker forgets a transactional id after seconds, not after 7 days."""

FORGET_S = 60.0
"""How long it may take until it has forgotten all of them."""

LOG_TAIL_LINES = 60
"""Lines of a broker's log that an error quotes."""

JAVA_OPTIONS = ("-XX:+UseSerialGC", "-Xshare:auto", "-Djava.awt.headless=true")
QUICK_START = "-XX:TieredStopAtLevel=1"
"""The quick compiler only: a broker that runs for a minute does not earn back what the other one
costs."""

TOOL_OPTIONS = (*JAVA_OPTIONS, "-Xmx256m", QUICK_START, "-Dchronos.log.level=WARN")

SYSTEM_TIME = ROOT / "tests/harness/SystemTime.java"
"""Kafka's clock with an offset and a drift."""

BOOTSTRAP_FILE = "bootstrap.checkpoint"
"""File of a formatted data directory, the same in all of them."""

# Tests do not use these characters in texts, so they can separate the fields that the console
# consumer prints.
FIELD_END = "\x1f"
RECORD_END = "\x1e"
NULL = "\x1anull"


class BrokerError(Exception):
    """Kafka could not be started or reached, or a console program failed; the message gives the
    reason."""


class BrokerNotInTime(BrokerError, NotInTime):
    """A broker, or what is kept by brokers, was not ready before its deadline."""


@dataclass(frozen=True)
class ConsoleRecord:
    """A record as the console programs read and write it: text only."""

    value: str | None
    key: str | None = None
    headers: Sequence[tuple[str, str | None]] = ()
    partition: int | None = None
    """Set when reading, like the fields below; ignored when writing."""
    offset: int | None = None
    timestamp_ms: int | None = None
    timestamp_type: str | None = None
    """`CreateTime` or `LogAppendTime`."""


# ------------------------------------------------------------------------- Java and the Kafka files


def java_command(
    options: Iterable[str], main_class: str, *arguments: str, first: Path | None = None
) -> list[str]:
    """The command line to run a class of Kafka. `first`: a directory of classes that are loaded
    instead of Kafka's own."""
    return [
        java(),
        *options,
        f"-Dlog4j2.configurationFile={ROOT / 'scripts/kafka/log4j2.properties'}",
        "-cp",
        f"{jars('kafka')}/*" if first is None else f"{first}:{jars('kafka')}/*",
        main_class,
        *arguments,
    ]


@dataclass(frozen=True)
class BrokerClock:
    """The clock of a broker that differs from the machine's."""

    ahead_ms: int
    """At the start of the broker."""
    drift_ppm: int = 0
    """How much it gains (microseconds in a second)."""

    def options(self) -> tuple[str, str]:
        """Java's options for `SystemTime.java`."""
        return (
            f"-Dchronos.clock.ahead_ms={self.ahead_ms}",
            f"-Dchronos.clock.drift_ppm={self.drift_ppm}",
        )


# ------------------------------------------------------------------------------- Clients of a Kafka


class Clients:
    """Operations on a broker or a cluster, through clients. Needs `bootstrap` and `brokers_max`."""

    bootstrap: str
    """`host:port` of every broker, separated by commas."""

    brokers_max: int
    """Number of brokers when all of them run."""

    def answering(self) -> list[str]:
        """`host:port` of each broker that is not stopped or frozen."""
        return self.bootstrap.split(",")

    def admin(self, **settings: str | int | float) -> AdminClient:
        """An admin client that does not log about brokers that are down on purpose.

        Keep a reference until its futures have their results: when it is deleted they fail with
        `_DESTROY`."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2, **settings})

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication: int | None = None,
        config: Mapping[str, object] | None = None,
        timeout_s: float = 30.0,
    ) -> str:
        """Create a topic, wait until every broker that answers lists it with its leaders, and
        return its name."""
        deadline = time.monotonic() + timeout_s
        admin = self.admin()
        topic = NewTopic(
            name,
            partitions,
            min(self.brokers_max, 3) if replication is None else replication,
            config={key: _setting(value) for key, value in (config or {}).items()},
        )
        admin.create_topics([topic], request_timeout=timeout_s)[name].result(timeout_s)

        def is_listed(admin: AdminClient) -> bool:
            seen = admin.list_topics(name, timeout=max(0.1, deadline - time.monotonic())).topics[
                name
            ]
            return len(seen.partitions) == partitions and all(
                p.leader >= 0 for p in seen.partitions.values()
            )

        if not is_in_time(
            lambda: all(map(is_listed, self.admins())), deadline_s=deadline, every_s=POLL_INTERVAL_S
        ):
            raise BrokerNotInTime(
                f"topic {name} is not listed with all leaders by every broker after "
                f"{timeout_s:.0f} s"
            )
        return name

    def admins(self) -> list[AdminClient]:
        """A client for each broker that answers: a new client asks the only broker that it knows,
        and each broker learns of a change by itself."""
        return [self.admin(**{"bootstrap.servers": address}) for address in self.answering()]

    def wait_in_sync(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every partition has a leader and all its replicas are in sync.

        A restarted broker is not in sync at once: wait here before the next one is killed.
        """
        admin = self.admin()

        def is_in_sync() -> bool:
            try:
                topics = admin.list_topics(timeout=5).topics.values()
            except KafkaException:
                return False
            partitions = [partition for topic in topics for partition in topic.partitions.values()]
            return all(p.leader >= 0 and len(p.isrs) == len(p.replicas) for p in partitions)

        if not is_in_time(
            is_in_sync, deadline_s=time.monotonic() + timeout_s, every_s=POLL_INTERVAL_S
        ):
            raise BrokerNotInTime(f"not all replicas are in sync after {timeout_s:.0f} s")

    def transactional_ids(self) -> set[str]:
        """The transactional ids that the brokers remember, by Kafka's own tool."""
        command = java_command(
            TOOL_OPTIONS,
            "org.apache.kafka.tools.TransactionsCommand",
            "--bootstrap-server",
            self.bootstrap,
            "list",
        )
        shown, _ = _run_tool(command, stdin="", timeout_s=TOOL_TIMEOUT_S)
        # The first line has the titles of the columns.
        return {line.split()[0] for line in shown.splitlines()[1:] if line.strip()}

    def limit_producers(self, client_id: str, bytes_per_second: int) -> None:
        """Set the quota of the producers with this client id, by Kafka's own tool."""
        command = java_command(
            TOOL_OPTIONS,
            "kafka.admin.ConfigCommand",
            *("--bootstrap-server", self.bootstrap),
            *("--alter", "--add-config", f"producer_byte_rate={bytes_per_second}"),
            *("--entity-type", "clients", "--entity-name", client_id),
        )
        _run_tool(command, stdin="", timeout_s=TOOL_TIMEOUT_S)

    def wait_forgotten(self) -> None:
        """Wait until the brokers remember no transactional id."""
        if not is_in_time(
            lambda: not self.transactional_ids(),
            deadline_s=time.monotonic() + FORGET_S,
            every_s=POLL_INTERVAL_S,
        ):
            raise BrokerNotInTime(f"transactional ids are remembered: {self.transactional_ids()}")

    def open_transactions(self, topic: str) -> int:
        """Number of partitions of a topic that end in an open transaction, which `read_committed`
        consumers do not see.

        One whose commit is acknowledged is among them until its coordinator has written the markers
        to the partitions."""
        admin = self.admin()
        partitions = admin.list_topics(topic, timeout=10).topics[topic].partitions
        ends = []
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            asked = {
                TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions
            }  # type: ignore[no-untyped-call]
            found = admin.list_offsets(asked, isolation_level=level)
            ends.append(
                {part.partition: future.result(10).offset for part, future in found.items()}
            )
        return sum(ends[0][partition] < ends[1][partition] for partition in partitions)

    def console_producer(
        self,
        topic: str,
        records: Iterable[ConsoleRecord],
        *,
        properties: Mapping[str, object] | None = None,
        timeout_s: float = TOOL_TIMEOUT_S,
    ) -> None:
        """Write records with Kafka's console producer; `properties` are those of a Java
        producer."""
        command = java_command(
            TOOL_OPTIONS,
            "org.apache.kafka.tools.ConsoleProducer",
            *("--bootstrap-server", self.bootstrap),
            *("--topic", topic),
            *_options(
                "--property", {"parse.headers": True, "parse.key": True, "null.marker": NULL}
            ),
            *_options("--producer-property", properties or {}),
        )
        lines = "".join(_console_line(record) + "\n" for record in records)
        _, errors = _run_tool(command, stdin=lines, timeout_s=timeout_s)
        # The program exits with 0 even if it could not send: it only logs that.
        if " ERROR " in errors:
            raise BrokerError(f"the console producer could not write to {topic}\n{errors.strip()}")

    def console_consumer(
        self,
        topic: str,
        *,
        max_messages: int | None = None,
        timeout_ms: int = 10_000,
        partition: int | None = None,
        from_offset: int | None = None,
        isolation: str = "read_committed",
        properties: Mapping[str, object] | None = None,
        timeout_s: float = TOOL_TIMEOUT_S,
    ) -> list[ConsoleRecord]:
        """Read with Kafka's console consumer, from the beginning or from an offset of one
        partition.

        Ends after `max_messages`, or when no record has come for `timeout_ms`; returns the records
        read so far."""
        start: tuple[str, ...] = ("--from-beginning",)
        if partition is not None:
            offset = "earliest" if from_offset is None else str(from_offset)
            start = ("--partition", str(partition), "--offset", offset)
        limit = () if max_messages is None else ("--max-messages", str(max_messages))
        printed = ("timestamp", "partition", "offset", "headers", "key", "value")
        command = java_command(
            TOOL_OPTIONS,
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", self.bootstrap),
            *("--topic", topic),
            *start,
            *limit,
            *("--timeout-ms", str(timeout_ms)),
            *("--isolation-level", isolation),
            *_options("--property", {f"print.{name}": True for name in printed}),
            *_options("--property", {"key.separator": FIELD_END, "line.separator": RECORD_END}),
            *_options("--property", {"null.literal": NULL}),
            *_options("--consumer-property", properties or {}),
        )
        output, errors = _run_tool(command, stdin="", timeout_s=timeout_s)
        if " ERROR " in errors and "TimeoutException" not in errors:
            raise BrokerError(f"the console consumer could not read {topic}\n{errors.strip()}")
        return [_parse_record(text) for text in output.split(RECORD_END) if text]


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _options(name: str, properties: Mapping[str, object]) -> list[str]:
    return [
        word for key, value in properties.items() for word in (name, f"{key}={_setting(value)}")
    ]


def _console_line(record: ConsoleRecord) -> str:
    headers = ",".join(
        f"{name}:{NULL if value is None else value}" for name, value in record.headers
    )
    fields = (headers or NULL, NULL if record.key is None else record.key)
    line = "\t".join((*fields, NULL if record.value is None else record.value))
    if "\n" in line or any("," in (value or "") for _, value in record.headers):
        raise ValueError("the console producer takes no line breaks, and no commas in headers")
    return line


def _parse_record(text: str) -> ConsoleRecord:
    timestamp, partition, offset, headers, key, value = text.split(FIELD_END, 5)
    timestamp_type, _, timestamp_ms = timestamp.partition(":")
    pairs = [] if headers == "NO_HEADERS" else [pair.partition(":") for pair in headers.split(",")]
    return ConsoleRecord(
        value=None if value == NULL else value,
        key=None if key == NULL else key,
        headers=tuple((name, None if text == NULL else text) for name, _, text in pairs),
        partition=int(partition.removeprefix("Partition:")),
        offset=int(offset.removeprefix("Offset:")),
        timestamp_ms=int(timestamp_ms) if timestamp_ms else None,
        timestamp_type=timestamp_type,
    )


def _run_tool(command: list[str], *, stdin: str, timeout_s: float) -> tuple[str, str]:
    """The standard output and the standard error of a console program."""
    try:
        ran = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise BrokerError(
            f"{_tool_name(command)} did not end within {timeout_s:.0f} s"
        ) from expired
    if ran.returncode != 0:
        raise BrokerError(
            f"{_tool_name(command)} failed with {ran.returncode}\n{ran.stderr.strip()}"
        )
    return ran.stdout, ran.stderr


def _tool_name(command: list[str]) -> str:
    return next(word for word in command if word.startswith(("org.apache.kafka.", "kafka.")))


# ------------------------------------------------------------------------------------------- Broker


class Broker(Clients, Startable):
    """One broker. `start()` after `stop()` or `kill()` restarts it with the same port and data.

    `settings` override its `server.properties`; without `auto.create.topics.enable` topics are not
    created automatically. `quorum` maps the node ids of several controllers to their ports. `doors`
    are further listeners by name, each with the port it listens on and the port it advertises: that
    of a proxy in front of it."""

    brokers_max = 1

    _bootstrap: ClassVar[bytes | None] = None
    """BOOTSTRAP_FILE of the first broker that was formatted."""

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        heap_mb: int = 512,
        node_id: int = 1,
        cluster_id: str | None = None,
        quorum: Mapping[int, int] | None = None,
        doors: Mapping[str, tuple[int, int]] | None = None,
        for_load: bool = False,
        class_options: Sequence[str] | None = None,
        clock: BrokerClock | None = None,
    ) -> None:
        """`for_load`: with all of Java's compilers, for measurements. `class_options`: other ones
        than `broker_classes`. `clock`: instead of the machine's."""
        self.node_id = node_id
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._heap_mb, self._for_load, self._class_options = heap_mb, for_load, class_options
        self._clock = clock
        self._cluster_id = cluster_id or new_cluster_id()
        self._quorum = dict(quorum) if quorum else {node_id: free_port()}
        self._settings = {**self._default_settings(doors or {}), **(settings or {})}
        self._watchdog: Watchdog | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._formatted = False
        self.frozen = False

    def _default_settings(self, doors: Mapping[str, tuple[int, int]]) -> dict[str, object]:
        replicas = min(len(self._quorum), 3)
        in_sync = max(1, replicas - 1)
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in self._quorum.items())
        listens = {"PLAINTEXT": self.port, **{name: port for name, (port, _) in doors.items()}}
        advertised = {"PLAINTEXT": self.port, **{name: port for name, (_, port) in doors.items()}}
        return {
            "process.roles": "broker,controller",
            "node.id": self.node_id,
            "listeners": _listeners({**listens, "CONTROLLER": self._quorum[self.node_id]}),
            "advertised.listeners": _listeners(advertised),
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in (*advertised, "CONTROLLER")
            ),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
            # A typo in a test must not look like an empty topic.
            "auto.create.topics.enable": False,
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            # Few, because each partition costs files to create and to load; four are still spread
            # over the brokers.
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
            "group.initial.rebalance.delay.ms": 0,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000,
            # No records in the metadata log of an idle cluster: with one each 500 ms, idle brokers
            # cost a third more.
            "metadata.max.idle.interval.ms": 0,
            # The default buffer of 128 MB is a quarter of the heap.
            "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
            "num.network.threads": 2,
            "num.io.threads": 4,
            **(SHORT_SESSION if len(self._quorum) == 1 else {}),
        }

    # Life

    def start(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the broker and wait until it answers; raises `BrokerError` with the end of its log
        if it does not."""
        deadline = time.monotonic() + timeout_s
        self.launch()
        self.wait_ready(deadline=deadline)

    def launch(self) -> None:
        """Start the process without waiting: the brokers of a cluster need each other to become
        ready."""
        if self._process is not None:
            raise BrokerError(f"broker {self.node_id} is already running")
        directory = self._directory()
        config = directory / "server.properties"
        settings = {**self._settings, "log.dirs": directory / "data"}
        config.write_text("".join(f"{key}={_setting(value)}\n" for key, value in settings.items()))
        if not self._formatted:
            self._format(config)
            self._formatted = True
        heap = (
            f"-Xms{min(256, self._heap_mb)}m",
            f"-Xmx{self._heap_mb}m",
            "-XX:+ExitOnOutOfMemoryError",
        )
        first, classes = None, self._class_options
        if self._clock is not None:
            # Java's archive is for the class path without this directory.
            first, classes = compiled(SYSTEM_TIME, str(jars("kafka"))), self._clock.options()
        elif classes is None:
            classes = broker_classes()
        options = (*JAVA_OPTIONS, *heap, *(() if self._for_load else (QUICK_START,)), *classes)
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                java_command(options, "kafka.Kafka", str(config), first=first),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C must reach only the tests, which then end the broker.
                start_new_session=True,
            )
        self._watch(self._process.pid)

    def wait_ready(self, *, deadline: float) -> None:
        """Wait until the cluster lists this broker; otherwise kill it and raise `BrokerError`."""
        admin = self.admin()

        def is_listed() -> bool:
            if self._process is None or self._process.poll() is not None:
                return True
            if not _accepts_connections(self.port):
                return False
            try:
                seen = admin.describe_cluster(request_timeout=2).result(5)
            except (KafkaException, TimeoutError):
                return False
            return seen.controller is not None and self.node_id in {node.id for node in seen.nodes}

        in_time = is_in_time(is_listed, deadline_s=deadline, every_s=POLL_INTERVAL_S)
        if in_time and self.running:
            return
        reason = "exited" if in_time else "did not become ready in time"
        tail = self.log_tail()
        self.kill()
        error = BrokerError if in_time else BrokerNotInTime
        raise error(f"broker {self.node_id} {reason}; the end of its log:\n{tail}")

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """A controlled shutdown, or a kill after `timeout_s`; the data is kept. Does nothing if the
        broker is not running."""
        if self._process is None:
            return
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._gone()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._running().pid

    def kill(self) -> None:
        """Kill the process, as a power cut that spares the page cache would; the data is kept."""
        if self._process is None:
            return
        self._process.kill()
        self._gone()

    def freeze(self) -> None:
        """Stop the process with SIGSTOP; its connections stay open, as on a host that hangs."""
        freeze(self._running().pid)
        self.frozen = True

    def thaw(self) -> None:
        """Continue a frozen broker. Does nothing if it is not frozen."""
        if self.frozen:
            self._running().send_signal(signal.SIGCONT)
            self.frozen = False

    def close(self) -> None:
        """Kill the broker and remove its data and its log."""
        self.kill()
        if self._watchdog is not None:
            self._watchdog.close()
        self._watchdog = None
        self._formatted = False

    def _format(self, config: Path) -> None:
        """Format the data directory. Kafka's tool does it for the first broker, which takes it
        seconds."""
        if Broker._bootstrap is not None:
            self.data.mkdir()
            directory_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            meta = {
                "version": 1,
                "cluster.id": self._cluster_id,
                "node.id": self.node_id,
                "directory.id": directory_id,
            }
            (self.data / "meta.properties").write_text(
                "".join(f"{key}={value}\n" for key, value in meta.items())
            )
            (self.data / BOOTSTRAP_FILE).write_bytes(Broker._bootstrap)
            return
        format_data = ("format", "--cluster-id", self._cluster_id, "--config", str(config))
        _run_tool(
            java_command(TOOL_OPTIONS, "kafka.tools.StorageTool", *format_data),
            stdin="",
            timeout_s=TOOL_TIMEOUT_S,
        )
        # Newer versions of Kafka than the pinned one make no such file.
        if (self.data / BOOTSTRAP_FILE).exists():
            Broker._bootstrap = (self.data / BOOTSTRAP_FILE).read_bytes()

    # Looks

    @property
    def running(self) -> bool:
        """True if the process exists, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def log_path(self) -> Path:
        """The log file of the broker, over all its starts."""
        return self._directory() / "broker.log"

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines that the broker has logged since its last start."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    # Within

    @property
    def data(self) -> Path:
        """The directory with a folder for each partition, `<topic>-<partition>`."""
        return self._directory() / "data"

    def _directory(self) -> Path:
        if self._watchdog is None:
            self._watchdog = Watchdog("chronos-kafka-")
        return self._watchdog.directory

    def _watch(self, pid: int | None) -> None:
        assert self._watchdog is not None
        self._watchdog.watch(pid)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or not self.running:
            raise BrokerError(f"broker {self.node_id} is not running")
        return self._process

    def _gone(self) -> None:
        assert self._process is not None
        self._process.wait(STOP_TIMEOUT_S)
        self._process = None
        self.frozen = False
        self._watch(None)


@cache
def broker_classes() -> tuple[str, ...]:
    """Java's options to start a broker with the classes that one before it has loaded."""

    def run_broker(options: Sequence[str]) -> None:
        with Broker(class_options=options) as broker:
            topic = broker.create_topic("classes")
            producer = Producer(
                {"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "log_level": 2}
            )
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce(topic, b"")
            producer.commit_transaction()
            broker.stop(timeout_s=TOOL_TIMEOUT_S)

    return shared_classes("broker", str(jars("kafka")), run_broker)


def _listeners(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())


def _accepts_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def new_cluster_id() -> str:
    """A cluster id in Kafka's format: 16 random bytes in URL-safe base64 without padding."""
    # The program that formats the data would take a leading dash for an option.
    return "c" + urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


# ------------------------------------------------------------------------------------------ Cluster


class Cluster(Clients, Startable):
    """A cluster of brokers; each is also a controller, so a majority of them must run."""

    def __init__(
        self,
        count: int,
        settings: Mapping[str, object] | None = None,
        *,
        heap_mb: int = 384,
        doors: Mapping[int, Mapping[str, tuple[int, int]]] | None = None,
        clocks: Mapping[int, BrokerClock] | None = None,
    ) -> None:
        """`doors` are the further listeners of each broker, by node id, and `clocks` those that
        differ from the machine's."""
        quorum = {node_id: free_port() for node_id in range(1, count + 1)}
        cluster_id = new_cluster_id()
        self.brokers = [
            Broker(
                settings,
                heap_mb=heap_mb,
                node_id=node_id,
                cluster_id=cluster_id,
                quorum=quorum,
                doors=(doors or {}).get(node_id),
                clock=(clocks or {}).get(node_id),
            )
            for node_id in quorum
        ]
        self.brokers_max = count
        self.bootstrap = ",".join(broker.bootstrap for broker in self.brokers)

    def __getitem__(self, index: int) -> Broker:
        return self.brokers[index]

    def node(self, node_id: int) -> Broker:
        """The broker with this node id, as metadata names leaders."""
        return self.brokers[node_id - 1]

    def answering(self) -> list[str]:
        return [broker.bootstrap for broker in self.brokers if broker.running and not broker.frozen]

    def start(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the brokers that are not running, and wait until all know each other and are in
        sync."""
        deadline = time.monotonic() + timeout_s
        down = [broker for broker in self.brokers if not broker.running]
        with ThreadPoolExecutor(self.brokers_max) as pool:
            list(pool.map(Broker.launch, down))
        for broker in down:
            broker.wait_ready(deadline=deadline)

        admins = [broker.admin() for broker in self.brokers]

        def is_complete() -> bool:
            try:
                # Not `describe_cluster`: of a broker that is just starting it was seen to abort the
                # process, by an assertion in librdkafka.
                seen = [admin.list_topics(timeout=5) for admin in admins]
            except KafkaException:
                return False
            return all(len(view.brokers) == self.brokers_max for view in seen)

        if not is_in_time(is_complete, deadline_s=deadline, every_s=POLL_INTERVAL_S):
            raise BrokerNotInTime(
                f"the {self.brokers_max} brokers did not find each other within {timeout_s:.0f} s"
            )
        self.wait_in_sync(timeout_s=max(1.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """A controlled shutdown while a majority of controllers runs; the remaining brokers are
        killed. Data is kept."""
        for left in range(self.brokers_max, 0, -1):
            broker = self.brokers[left - 1]
            if left > self.brokers_max // 2:
                broker.stop()
            else:
                broker.kill()

    def close(self) -> None:
        """Kill the brokers and remove their data and logs."""
        for broker in self.brokers:
            broker.close()


def cluster(
    count: int,
    settings: Mapping[str, object] | None = None,
    *,
    heap_mb: int = 384,
    clocks: Mapping[int, BrokerClock] | None = None,
) -> Cluster:
    """A cluster of `count` brokers, for a `with` statement, or `start()` and `close()`."""
    return Cluster(count, settings, heap_mb=heap_mb, clocks=clocks)
