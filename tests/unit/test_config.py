"""Settings: the sources, and the exact texts of the errors."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chronos.adapters.kafka.connection import PRODUCER
from chronos.config import Config, example, load, reference, show
from chronos.config.catalogue import MASK, PROPERTIES, Key, children, is_secret, keys, split
from chronos.config.reading import OF_THE_COMMAND_LINE
from chronos.config.values import duration_ms, size_bytes, size_text
from chronos.core.timefmt import format_duration
from chronos.errors import ConfigurationError
from tests.harness.table import table
from tests.unit.settings import examples

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File names in messages are then as short as a user sees them."""
    monkeypatch.chdir(tmp_path)


def from_file(text: str, **environ: str) -> Config:
    Path("c.yaml").write_text(text, encoding="utf-8")
    return load("c.yaml", environ, [])


def problems(
    text: str | None = None, environ: dict[str, str] | None = None, *overrides: str
) -> list[str]:
    if text is not None:
        Path("c.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load(None if text is None else "c.yaml", environ or {}, overrides)
    return caught.value.problems


# --- What is read ---------------------------------------------------------------------------------


def test_without_any_setting_everything_has_its_default() -> None:
    config = load(None, {}, [])
    assert config == Config()
    assert (config.cluster, config.shards, config.log.kind, config.admin.port) == (
        "chronos",
        4,
        "embedded",
        7700,
    )


def test_durations_are_milliseconds_and_sizes_are_bytes() -> None:
    config = load(None, {}, [])
    assert config.limits.max_delay == 3650 * 86_400_000
    assert config.delivery.transaction_timeout == 10_000
    assert config.limits.disk_reserve == 256 * 1024 * 1024


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file() -> None:
    Path("c.yaml").write_text("shards: 1\nadmin: {port: 1}\ncluster: file\n")
    environ = {"CHRONOS_SHARDS": "2", "CHRONOS_ADMIN__PORT": "2"}
    config = load("c.yaml", environ, ["shards=3", "shards=5"])
    assert (config.shards, config.admin.port, config.cluster) == (5, 2, "file")


def test_a_variable_may_hold_a_section_and_a_more_specific_one_wins() -> None:
    environ = {
        "CHRONOS_LOG__KIND": "embedded",
        "CHRONOS_LOG": "{kind: kafka, kafka: {bootstrap_servers: a}}",
    }
    config = load(None, environ, [])
    assert (config.log.kind, config.log.kafka.bootstrap_servers) == ("embedded", "a")


def test_variables_of_the_command_line_and_of_other_programs_are_ignored() -> None:
    environ = dict.fromkeys(OF_THE_COMMAND_LINE, "x")
    assert load(None, environ | {"PATH": "z", "CHRONOSX": "1"}, []) == Config()


def test_every_variable_that_the_command_line_reads_is_known() -> None:
    """Otherwise a shell that has it set could start no service: it would be an unknown key."""
    sources = [
        path.read_text()
        for folder in ("cli", "client")
        for path in sorted((ROOT / "chronos" / folder).rglob("*.py"))
    ]
    read = {name for text in sources for name in re.findall(r'"(CHRONOS_[A-Z_]+)"', text)}
    assert {"CHRONOS_ARCHIVE", "CHRONOS_SERVER", "CHRONOS_TOKEN"} <= read
    assert read <= OF_THE_COMMAND_LINE


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "---\n", "log:\nworkers:\n  # pull: off\n", "\ufeffshards: 4\n"]
)
def test_a_file_in_which_everything_is_commented_out_changes_nothing(text: str) -> None:
    assert from_file(text) == Config()


@pytest.mark.parametrize("word", ["on", "yes", "true", "On", "TRUE"])
def test_a_switch_takes_every_word_that_yaml_reads_as_on(word: str) -> None:
    assert from_file(f"delivery: {{create_topics: {word}}}").delivery.create_topics is True
    assert load(None, {"CHRONOS_DELIVERY__CREATE_TOPICS": word}, []).delivery.create_topics is True


def test_a_text_stays_as_it_was_written() -> None:
    """To YAML `007` is an octal number, and `on` is true."""
    assert from_file("node: {id: 007}\ncluster: on").node.id == "007"
    assert from_file("node: {id: 007}\ncluster: on").cluster == "on"
    assert load(None, {"CHRONOS_NODE__ID": "007"}, ["cluster=1.0"]).cluster == "1.0"


def test_null_and_an_empty_variable_mean_not_set_if_that_is_allowed() -> None:
    text = "topics: {min_insync_replicas: 2}\nlog: {kafka: {bootstrap_servers: a}}\n"
    config = from_file(
        text, CHRONOS_TOPICS__MIN_INSYNC_REPLICAS="", CHRONOS_LOG__KAFKA__BOOTSTRAP_SERVERS="null"
    )
    assert (config.topics.min_insync_replicas, config.log.kafka.bootstrap_servers) == (None, None)


@pytest.mark.parametrize(
    "override", ["targets.allow=a-*,b", 'targets.allow=["a-*", b]', "targets.allow= a-* , b"]
)
def test_a_list_on_one_line_needs_no_yaml(override: str) -> None:
    assert load(None, {}, [override]).targets.allow == ("a-*", "b")


def test_a_property_name_keeps_its_dots_wherever_it_is_given() -> None:
    text = "log: {kafka: {properties: {client.id: file, linger.ms: 1, compression.type: lz4}}}"
    Path("c.yaml").write_text(text)
    environ = {
        "CHRONOS_LOG__KAFKA__PROPERTIES": "{linger.ms: 2, security.protocol: SASL_SSL}",
        "CHRONOS_LOG__KAFKA__PROPERTIES__SASL_USERNAME": "me",
    }
    config = load("c.yaml", environ, ["log.kafka.properties.queue.buffering.max.ms=5"])
    assert config.log.kafka.properties == {
        "client.id": "file",
        "linger.ms": "2",
        "compression.type": "lz4",
        "security.protocol": "SASL_SSL",
        "sasl.username": "me",
        "queue.buffering.max.ms": "5",
    }


def test_a_switch_among_the_properties_becomes_true_or_false() -> None:
    text = "log: {kafka: {properties: {enable.ssl.certificate.verification: off, client.id: 'on'}}}"
    properties = from_file(text).log.kafka.properties
    assert properties == {"enable.ssl.certificate.verification": "false", "client.id": "on"}


@pytest.mark.parametrize("password", ["on", "0123", "*&{[%@", "a: b", " x ", "#5", "a=b=c", "'"])
def test_a_password_in_a_variable_or_a_flag_is_taken_byte_for_byte(password: str) -> None:
    by_flag = load(None, {}, [f"log.kafka.properties.sasl.password={password}"])
    by_variable = load(None, {"CHRONOS_LOG__KAFKA__PROPERTIES__SASL_PASSWORD": password}, [])
    assert (
        by_flag.log.kafka.properties
        == by_variable.log.kafka.properties
        == {"sasl.password": password}
    )


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load(None, {}, []).shards = 5


# --- Durations and sizes --------------------------------------------------------------------------

DURATIONS = [
    ("250ms", 250),
    ("1.5s", 1_500),
    ("90s", 90_000),
    ("PT1M30S", 90_000),
    ("100us", 1),
    ("15m", 900_000),
    ("2h", 7_200_000),
    ("7d", 604_800_000),
    ("2w", 1_209_600_000),
    ("1h30m", 5_400_000),
]
SIZES = [
    ("65536", 65_536),
    ("8MB", 8_000_000),
    ("8mb", 8_000_000),
    ("64MiB", 67_108_864),
    ("64mib", 67_108_864),
    ("1.5KiB", 1_536),
    ("1kB", 1_000),
    ("512B", 512),
    ("1GiB", 1 << 30),
    ("1TB", 10**12),
]


@table(("text", "ms"), DURATIONS)
def test_a_duration_is_a_number_and_a_unit_or_several_of_them(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@table(("text", "size"), SIZES)
def test_a_size_is_bytes_or_a_number_and_a_unit(text: str, size: int) -> None:
    assert size_bytes(text) == size


@given(st.integers(0, 10**15 - 1))
def test_a_written_duration_or_size_reads_back(number: int) -> None:
    assert duration_ms(format_duration(number)) == number
    assert size_bytes(size_text(number)) == number


WRONG_DURATIONS = {
    "90": "it has no unit; did you mean 90s, or 90ms?",
    "400 days": "did you mean 400d?",
    "5 min": "did you mean 5m?",
    "90 s": "did you mean 90s?",
    "1.5 Hours": "did you mean 1.5h?",
    "2 months": "write 250ms, 1.5s, 90s, 15m, 2h, 1h30m, 7d, 2w or PT1M30S",
    "30m1h": "write 250ms, 1.5s, 90s, 15m, 2h, 1h30m, 7d, 2w or PT1M30S",
    "-1s": "it has a minus sign, and a duration is 0 or more; write 90s or PT1M30S",
    "P1M": "years and months differ in length; write days, as P30D or 30d",
    "1h 30m": "write it without spaces, as 1h30m",
    "٣s": "write 250ms, 1.5s, 90s, 15m, 2h, 1h30m, 7d, 2w or PT1M30S",
}


@table(("text", "hint"), WRONG_DURATIONS.items())
def test_the_error_for_an_invalid_duration_says_what_to_write(text: str, hint: str) -> None:
    line = f'--set: limits.max_delay: "{text}" is not a duration; {hint}'
    assert problems(None, None, f"limits.max_delay={text}") == [line]


WRONG_SIZES = {
    "8M": '"8M" is not a size; did you mean 8MiB, or 8MB?',
    "8k": '"8k" is not a size; did you mean 8KiB, or 8kB?',
    "8 MB": '"8 MB" is not a size; did you mean 8MB?',
    "lots": (
        '"lots" is not a size; write bytes, or one number and a unit: 65536, 64KiB, 8MB or 1GiB'
    ),
    "0.5": '"0.5" is not a whole number of bytes',
    "-1": '"-1" is not a size; write bytes, or one number and a unit: 65536, 64KiB, 8MB or 1GiB',
}


@pytest.mark.parametrize(("text", "words"), WRONG_SIZES.items())
def test_the_error_for_an_invalid_size_says_what_to_write(text: str, words: str) -> None:
    assert problems(None, None, f"store.block_cache={text}") == [
        f"--set: store.block_cache: {words}"
    ]


# --- What is wrong: one setting -------------------------------------------------------------------

TOP_LEVEL = (
    "there are cluster, shards, node, log, topics, coordinator, failover, replication, workers, "
    "limits, delivery, delivery_faults, targets, checkpoints, retention, store, admin, audit, "
    "tracing, logging"
)
WRONG_VALUES = {
    "shards=0": "shards: 0 is not within 1 to 1024",
    "shards=1025": "shards: 1025 is not within 1 to 1024",
    "shards=1_025.0": "shards: 1025 is not within 1 to 1024",
    "shards=four": 'shards: "four" is not a whole number, for example 4',
    "shards=4.5": 'shards: "4.5" is not a whole number, for example 4',
    "shards=": "shards: has no value; leave the key out for its default, 4",
    "workers.pull=null": "workers.pull: has no value; leave the key out for its default, on",
    "workers.pull=maybe": 'workers.pull: "maybe" is neither on nor off',
    "log.kind=kafca": 'log.kind: "kafca" is not one of embedded, kafka; did you mean kafka?',
    "log.kind=pulsar": 'log.kind: "pulsar" is not one of embedded, kafka',
    "logging.level=INFO": (
        'logging.level: "INFO" is not one of debug, info, warning, error; did you mean info?'
    ),
    "store.flush_every=2h": "store.flush_every: 2h is not within 100ms to 1h",
    "delivery.attempts_max=0": "delivery.attempts_max: 0 is not within 1 to 1000",
    "store.block_cache=8TiB": "store.block_cache: 8TiB is not within 1MiB to 1TiB",
    "retention.deduplication=0s": "retention.deduplication: 0ms is not within 1ms to 3650d",
    "retention.delivered=0ms": "retention.delivered: 0ms is not within 1ms to 3650d",
    "admin.advertised=node-1:7700": (
        'admin.advertised: "node-1:7700" is no address; write http://host:port'
    ),
    "admin.advertised=http://node-1:7700": None,
    "coordinator.zookeeper.session_timeout=3s": (
        "coordinator.zookeeper.session_timeout: 3s is not within 4s to 30s"
    ),
    "coordinator.replication=1": "coordinator.replication: 1 is not within 2 to 100",
    "admin.port=65536": "admin.port: 65536 is not within 0 to 65535",
    "topics.replication_factor=0": (
        "topics.replication_factor: 0 replicas hold nothing; use -1 for the broker's default, or "
        "1 or more"
    ),
    "topics.replication_factor=-2": "topics.replication_factor: -2 is not within -1 to 100",
    "topics.min_insync_replicas=0": "topics.min_insync_replicas: 0 is not within 1 to 100",
    "topics.message_bytes_max=512MiB": (
        "topics.message_bytes_max: 512MiB is not within 1KiB to 255MiB"
    ),
    "topics.delay=a b": 'topics.delay: "a b" is no name for a topic; '
    "Kafka takes up to 249 letters, digits, '.', '_' and '-'",
    "topics.delay=__x": "topics.delay: \"__x\" starts with '__', which Kafka keeps for itself",
    "cluster=a/b": "cluster: \"a/b\" is no name; use up to 200 letters, digits, '.', '_' and '-'",
    "node.data_dir='": None,
    "node.data_dir= ": "node.data_dir: is empty",
    "node.data_dir=a\0b": (
        "node.data_dir: holds a character that cannot be printed: U+0000, at position 2"
    ),
    "coordinator.zookeeper.password=se\x1bcret": (
        "coordinator.zookeeper.password: holds a character that cannot be printed: U+001B, at "
        "position 3"
    ),
    "admin.advertised=http://user:sec\x07ret@node-1:7700/path": (
        'admin.advertised: "http://node-1:7700/path" is no address; write http://host:port'
    ),
    "admin.allowed_hosts=https://a:1": (
        'admin.allowed_hosts: "https://a:1" is no host name; write it without http:// and without '
        "a port"
    ),
    "targets.allow=a,,b": "targets.allow: holds an empty pattern",
    "targets.allow=[[a]]": 'targets.allow: must be a flat list, such as ["orders-*", audit]',
    "targets.allow=[*]": (
        "targets.allow: is not YAML: expected alphabetic or numeric character, but found ']'; "
        'quote a value that starts with *, as in "*"'
    ),
    "targets.allow=*": None,
    "log.kafka.bootstrap_servers=a:9092,b:port": (
        'log.kafka.bootstrap_servers: "b:port" is no address; write host:port, several with commas'
    ),
    "log.kafka.bootstrap_servers=a:99999": (
        'log.kafka.bootstrap_servers: "a:99999" is no address; write host:port, several with commas'
    ),
    "coordinator.zookeeper.hosts=zk:2181/apps/delay": (
        'coordinator.zookeeper.hosts: "zk:2181/apps/delay" has a path; write "zk:2181" here, and '
        '"/apps/delay" in coordinator.zookeeper.path'
    ),
    "log.kafka.bootstrap_servers=SASL_SSL://a:9092, [::1]:9092,c": None,
    "coordinator.raft.peers=[a=host-a:7701, b=10.0.0.2:7701, 'c=[fe80::1]:7701', d=host_d.x:1]": None,  # noqa: E501
    "coordinator.raft.peers=[host-a:7701]": (
        'coordinator.raft.peers: "host-a:7701" is no voter; write the id of its node and its '
        "address, as node=host:port"
    ),
    "coordinator.raft.peers=[a=host-a]": (
        'coordinator.raft.peers: "a=host-a" is no voter; write the id of its node and its '
        "address, as node=host:port"
    ),
    "coordinator.raft.peers=[a=host-a:70000]": (
        'coordinator.raft.peers: "a=host-a:70000": "70000" is no port; use 1 to 65535'
    ),
    "coordinator.raft.peers=[a=host-a:0]": (
        'coordinator.raft.peers: "a=host-a:0": "0" is no port; use 1 to 65535'
    ),
    "coordinator.raft.peers=[a=http://host-a:7701]": (
        'coordinator.raft.peers: "a=http://host-a:7701": "http://host-a" is no host; '
        "write a name or an IP address, that of IPv6 in brackets"
    ),
    "coordinator.raft.peers=[a=10.0.0.256:7701]": (
        'coordinator.raft.peers: "a=10.0.0.256:7701": "10.0.0.256" is no host; '
        "write a name or an IP address, that of IPv6 in brackets"
    ),
    "coordinator.raft.peers=['a=[fe80::z]:7701']": (
        'coordinator.raft.peers: "a=[fe80::z]:7701": "[fe80::z]" is no host; write a name or an '
        "IP address, that of IPv6 in brackets"
    ),
    "coordinator.raft.peers=[a=h:1, a=i:1]": "coordinator.raft.peers: names a node twice: a",
    "coordinator.raft.peers=[a=h:1, b=H:1]": "coordinator.raft.peers: names an address twice: h:1",
    "log=kafka": "log: is a section, not one value; log has kind, kafka, embedded",
    "log.kafka.properties=a=b": (
        "log.kafka.properties: is a section, not one value; write it as {name: value}"
    ),
    "log.kafka.properties.linger.ms=": (
        "log.kafka.properties.linger.ms: has no value; leave it out for librdkafka's default"
    ),
    "log.kafka.properties={sasl: {password: x}}": (
        "log.kafka.properties.sasl: must be one value, not a mapping; "
        "write the whole name, as in sasl.username: a"
    ),
    "log.kafka.properties.sasl.password=********": (
        "log.kafka.properties.sasl.password: is the mask that `chronos config show` prints; "
        "give the value itself"
    ),
    "shards": "shards: has no value; write path=value, for example shards=4",
    "=4": f"unknown key; {TOP_LEVEL}",
}


@table(("override", "words"), WRONG_VALUES.items())
def test_the_error_for_a_wrong_flag_says_what_is_wrong_and_what_to_write(
    override: str, words: str | None
) -> None:
    if words is None:
        load(None, {}, [override])
    else:
        assert problems(None, None, override) == [f"--set: {words}"]


UNKNOWN_PATHS = {
    "log.knd": "did you mean log.kind?",
    "logg.kind": "did you mean log.kind?",
    "shard": "did you mean shards?",
    "Shards": "did you mean shards?",
    "kind": "did you mean log.kind or coordinator.kind?",
    "bootstrap_servers": "did you mean log.kafka.bootstrap_servers?",
    "log.kafka.bootstrapServers": "did you mean log.kafka.bootstrap_servers?",
    "log.bootstrap-servers": "did you mean log.kafka.bootstrap_servers?",
    "log.kafka.property.linger.ms": "did you mean log.kafka.properties?",
    "workers.zzz": "workers has pull, push, delete",
    "shards.count": "shards has no keys of its own",
}


@table(("path", "hint"), UNKNOWN_PATHS.items())
def test_the_error_for_an_unknown_key_names_similar_keys(path: str, hint: str) -> None:
    assert problems(None, None, f"{path}=1") == [f"--set: {path}: unknown key; {hint}"]


KUBERNETES = (
    "unknown key; Kubernetes sets such variables for a service of that name: set "
    "enableServiceLinks: false in the pod, or rename the service"
)
UNKNOWN_VARIABLES = {
    "CHRONOS_LOG_KIND": ("kafka", "unknown key; did you mean CHRONOS_LOG__KIND?"),
    "CHRONOS_ADMIN_PORT": ("80", "unknown key; did you mean CHRONOS_ADMIN__PORT?"),
    "CHRONOS_KIND": (
        "kafka",
        "unknown key; did you mean CHRONOS_LOG__KIND or CHRONOS_COORDINATOR__KIND?",
    ),
    "CHRONOS_ZZZ": (
        "1",
        "unknown key; variables are named like CHRONOS_LOG__KIND, with '__' between levels",
    ),
    "CHRONOS_PORT": ("tcp://10.0.0.1:7700", KUBERNETES),
    "CHRONOS_ADMIN_PORT_7700_TCP_ADDR": ("10.0.0.1", KUBERNETES),
    "CHRONOS_SERVICE_HOST": ("10.0.0.1", KUBERNETES),
}


@pytest.mark.parametrize(
    ("name", "value", "words"), [(name, *rest) for name, rest in UNKNOWN_VARIABLES.items()]
)
def test_the_error_for_an_unknown_variable_names_a_similar_variable(
    name: str, value: str, words: str
) -> None:
    assert problems(None, {name: value}) == [f"{name}: {words}"]


def test_the_error_for_a_wrong_variable_names_its_key() -> None:
    assert problems(None, {"CHRONOS_LOG__KIND": "kafca"}) == [
        'CHRONOS_LOG__KIND: log.kind: "kafca" is not one of embedded, kafka; did you mean kafka?'
    ]


WRONG_FILES = {
    "shards: 0": ["c.yaml:1: shards: 0 is not within 1 to 1024"],
    "- a": ["c.yaml:1: must hold keys and values, not a list"],
    "a": ["c.yaml:1: must hold keys and values, not one value"],
    "log.kind: kafka": ["c.yaml:1: log.kind: unknown key; in a file, write one level per line"],
    "log: kafka": ["c.yaml:1: log: is a section, not one value; log has kind, kafka, embedded"],
    "log: [kafka]": ["c.yaml:1: log: is a section, not a list; log has kind, kafka, embedded"],
    "log:\n  kind: [kafka]": ["c.yaml:2: log.kind: must be one value, not a list"],
    "log:\n  kind: {a: b}": ["c.yaml:2: log.kind: must be one value, not a mapping"],
    "log:\n  kind:": [
        "c.yaml:2: log.kind: has no value; leave the key out for its default, embedded"
    ],
    "shards: 4\nshards: 4": ["c.yaml:2: shards: was given on line 1 already; keep one of them"],
    "{shards: 4, shards: 5}": ["c.yaml:1: shards: was given on line 1 already; keep one of them"],
    "? [a]\n: b": ["c.yaml:1: holds a list where a key must be"],
    "shards: 4\n\tlog: x": [
        "c.yaml:2: is not YAML: found character '\\t' that cannot start any token; "
        "indent with spaces, not tabs"
    ],
    "targets:\n  allow: [*]": [
        "c.yaml:2: is not YAML: expected alphabetic or numeric character, but found ']'; "
        'quote a value that starts with *, as in "*"'
    ],
    "shards: 4\n---\nshards: 5": ["c.yaml:2: is not YAML: but found another document"],
    "a: &x {b: *x}": [f"c.yaml:1: a: unknown key; {TOP_LEVEL}"],
    '"a\\nb": 1': [f"c.yaml:1: a b: unknown key; {TOP_LEVEL}"],
    "[" * 1000: ["c.yaml: is not YAML: it is nested too deep"],
    "a: \x00": [
        "c.yaml: is not YAML: unacceptable character #x0000: special characters are not allowed"
    ],
}


@table(("text", "lines"), WRONG_FILES.items())
def test_the_error_for_a_wrong_file_names_the_line(text: str, lines: list[str]) -> None:
    assert problems(text) == lines


def test_a_file_that_cannot_be_read_is_a_problem_like_any_other() -> None:
    Path("latin.yaml").write_bytes(b"cluster: caf\xe9\n")
    found = []
    for path in ("missing.yaml", ".", "latin.yaml"):
        with pytest.raises(ConfigurationError) as caught:
            load(path, {}, ["shards=0"])
        found.append(caught.value.problems)
    rest = "--set: shards: 0 is not within 1 to 1024"
    assert found == [
        ["missing.yaml: cannot be read: No such file or directory", rest],
        [".: cannot be read: Is a directory", rest],
        ["latin.yaml: is not UTF-8 text, at byte 12", rest],
    ]


# --- What is wrong: settings that do not go together ----------------------------------------------

ON_KAFKA = ("log.kind=kafka", "log.kafka.bootstrap_servers=a:9092")
CONFLICTS: dict[tuple[str, ...], str | None] = {
    ("log.kind=kafka",): "log.kafka.bootstrap_servers: is missing, and log.kind is kafka; "
    "name its brokers, for example localhost:9092",
    ("log.kind=kafka", "log.kafka.bootstrap_servers=a:9092"): None,
    (
        *ON_KAFKA,
        "coordinator.kind=raft",
        "coordinator.secret=0123456789abcdef",
        "coordinator.raft.peers=[a=h:1]",
    ): None,
    (
        *ON_KAFKA,
        "coordinator.kind=raft",
        "coordinator.secret=0123456789abcdef",
    ): (
        "coordinator.raft.peers: is missing, and coordinator.kind is raft; name the nodes that "
        "vote, for example [a=host-a:7701, b=host-b:7701, c=host-c:7701]"
    ),
    (
        *ON_KAFKA,
        "coordinator.kind=raft",
        "coordinator.raft.peers=[a=h:1]",
    ): (
        "coordinator.secret: is missing, and coordinator.kind is raft; give all nodes the same "
        "one of at least 16 characters"
    ),
    (
        *ON_KAFKA,
        "coordinator.kind=raft",
        "coordinator.raft.peers=[a=h:1]",
        "coordinator.secret=short",
    ): (
        "coordinator.secret: is too short, and coordinator.kind is raft; give all nodes the same "
        "one of at least 16 characters"
    ),
    (
        *ON_KAFKA,
        "coordinator.kind=raft",
        "coordinator.secret=0123456789abcdef",
        "coordinator.raft.peers=[a=h:7700]",
        "node.id=a",
    ): (
        "coordinator.raft.peers: the port of this node, 7700, is also admin.port; a voter needs a "
        "port of its own"
    ),
    (*ON_KAFKA, "coordinator.kind=zookeeper", "coordinator.zookeeper.hosts=a:2181"): None,
    (*ON_KAFKA, "coordinator.kind=kafka"): None,
    ("coordinator.kind=kafka",): (
        "coordinator.kind: kafka is for several nodes, and log.kind is embedded, which is inside "
        "one; use log.kind: kafka, or coordinator.kind: standalone"
    ),
    ("replication.mode=sync",): (
        "replication.mode: sync needs followers, and a standalone node has none; use "
        "coordinator.kind: kafka, zookeeper or raft, or replication.mode: async"
    ),
    ("replication.mode=sync", *ON_KAFKA, "coordinator.kind=kafka"): None,
    (
        "replication.mode=sync",
        "replication.min_in_sync=2",
        "coordinator.replication=2",
        *ON_KAFKA,
        "coordinator.kind=kafka",
    ): (
        "replication.min_in_sync: 2 followers and a master are more than the 2 nodes that hold a "
        "shard (coordinator.replication); lower the one or raise the other"
    ),
    (
        "replication.mode=sync",
        "replication.min_in_sync=2",
        "coordinator.replication=3",
        *ON_KAFKA,
        "coordinator.kind=kafka",
    ): None,
    (
        "replication.min_in_sync=2",
        "coordinator.replication=2",
        *ON_KAFKA,
        "coordinator.kind=kafka",
    ): None,
    ("topics.rejected=chronos.cluster",): (
        "topics.cluster: chronos.cluster is the topic of topics.rejected too, as Kafka reads "
        "names ('.' and '_' are one); give each its own"
    ),
    (
        *ON_KAFKA,
        "coordinator.kind=zookeeper",
    ): "coordinator.zookeeper.hosts: is missing, and coordinator.kind is zookeeper; "
    "name its servers, for example localhost:2181",
    (
        "coordinator.kind=zookeeper",
        "coordinator.zookeeper.hosts=a:2181",
    ): (
        "coordinator.kind: zookeeper is for several nodes, and log.kind is embedded, which is "
        "inside one; use log.kind: kafka, or coordinator.kind: standalone"
    ),
    (
        "coordinator.zookeeper.path=chronos",
    ): "coordinator.zookeeper.path: chronos is not a path; write it like /chronos",
    (
        "coordinator.zookeeper.authentication=digest",
        "coordinator.zookeeper.username=me",
    ): (
        "coordinator.zookeeper.password: is missing, and coordinator.zookeeper.authentication is "
        "digest"
    ),
    (
        "coordinator.zookeeper.acl=creator",
    ): "coordinator.zookeeper.acl: creator gives access only to those who authenticate, and "
    "coordinator.zookeeper.authentication is none; use digest or sasl, or acl: open",
    ("coordinator.zookeeper.certfile=node.pem",): (
        "coordinator.zookeeper.keyfile: is missing, and coordinator.zookeeper.certfile is given; "
        "they belong together"
    ),
    (
        "topics.rejected=chronos_delay",
    ): "topics.rejected: chronos_delay is the topic of topics.delay too, as Kafka reads names "
    "('.' and '_' are one); give each its own",
    (
        "topics.replication_factor=1",
        "topics.min_insync_replicas=2",
    ): (
        "topics.min_insync_replicas: 2 is more than topics.replication_factor (1), so nothing "
        "could be written; use at most 1"
    ),
    ("topics.min_insync_replicas=2",): None,
    ("log.kafka.properties.message.max.bytes=1048576",): None,
    (
        "topics.message_bytes_max=16MiB",
        "log.kafka.properties.queue.buffering.max.kbytes=10000",
    ): (
        "log.kafka.properties.queue.buffering.max.kbytes: 10000 does not go with "
        "topics.message_bytes_max; use at least 16384"
    ),
    (
        "topics.message_bytes_max=128MiB",
        "log.kafka.properties.receive.message.max.bytes=100000000",
    ): (
        "log.kafka.properties.receive.message.max.bytes: 100000000 does not go with "
        "topics.message_bytes_max; use at least 135266304"
    ),
    ("topics.message_bytes_max=128MiB",): None,
    ("delivery.retry_base=10m",): "delivery.retry_base: 10m is more than delivery.retry_cap (5m); "
    "the first wait cannot exceed the longest",
    (
        "targets.allow=[]",
    ): "targets.allow: leaves no topic to deliver to, so that every message would be rejected; "
    "to deliver nothing for a while, set workers.push: off",
    (
        "targets.deny=*",
    ): "targets.deny: leaves no topic to deliver to, so that every message would be rejected; "
    "to deliver nothing for a while, set workers.push: off",
    (
        "checkpoints.location=chronos-data/c",
    ): "checkpoints.location: lies inside node.data_dir (chronos-data) and would be lost with it; "
    "name a folder on another disk, or a URL",
    (
        "node.data_dir=/d",
        "checkpoints.location=file:///d/../d",
    ): "checkpoints.location: lies inside node.data_dir (/d) and would be lost with it; "
    "name a folder on another disk, or a URL",
    ("node.data_dir=/d", "checkpoints.location=/data"): None,
    ("node.data_dir=d", "checkpoints.location=s3://d/e"): None,
    ("log.kafka.properties.isolation.level=read_uncommitted",): (
        "log.kafka.properties.isolation.level: is set by Chronos: exactly-once delivery depends "
        "on it"
    ),
    (
        "log.kafka.properties.bootstrap.servers=a",
    ): "log.kafka.properties.bootstrap.servers: is given by log.kafka.bootstrap_servers",
    (
        "log.kafka.properties.message.max.bytes=1000",
    ): "log.kafka.properties.message.max.bytes: 1000 does not go with topics.message_bytes_max; "
    "use at least 1048576",
    ("log.kafka.properties.queue.buffering.max.messages=100",): (
        "log.kafka.properties.queue.buffering.max.messages: 100 does not go with "
        "the messages of one step; use at least 5000"
    ),
    ("log.kafka.properties.message.timeout.ms=20000",): (
        "log.kafka.properties.message.timeout.ms: 20000 does not go with "
        "delivery.transaction_timeout; use at most 10000"
    ),
    ("log.kafka.properties.socket.timeout.ms=60000",): (
        "log.kafka.properties.socket.timeout.ms: 60000 does not go with "
        "delivery.transaction_timeout; use at most 10100"
    ),
    ("log.kafka.properties.socket.timeout.ms=10100",): None,
}


@table(("overrides", "words"), CONFLICTS.items())
def test_conflicting_settings_are_refused(overrides: tuple[str, ...], words: str | None) -> None:
    if words is None:
        load(None, {}, overrides)
    else:
        assert problems(None, None, *overrides) == [f"--set: {words}"]


@pytest.mark.parametrize("name", ["acks", "request.required.acks", "enable.idempotence"])
def test_no_setting_weakens_what_a_write_waits_for(name: str) -> None:
    """RH-01, RH-03: of an idempotent producer it is every replica in sync of the brokers."""
    assert PRODUCER["enable.idempotence"] is True
    assert problems(None, None, f"log.kafka.properties.{name}=0") == [
        f"--set: log.kafka.properties.{name}: is set by Chronos: exactly-once delivery depends on "
        "it"
    ]


def test_a_checkpoint_folder_linked_into_the_data_directory_is_refused() -> None:
    Path("data").mkdir()
    Path("link").symlink_to("data")
    lines = problems(None, None, "node.data_dir=data", "checkpoints.location=link/c")
    assert lines == [
        "--set: checkpoints.location: lies inside node.data_dir (data) and would be lost with it; "
        "name a folder on another disk, or a URL"
    ]


def test_all_problems_are_reported_together_in_the_order_of_the_settings() -> None:
    text = """\
log:
  kind: kafka
  kafka:
    bootstrap_server: localhost:9092
limits: {max_delay: 400}
delivery:
  retry_base: 10m
targets:
  allow: [orders-*, ""]
logging:
  level: INFO
  levle: info
"""
    environ = {"CHRONOS_SHARDS": "0", "CHRONOS_LOG_KIND": "kafka"}
    assert problems(text, environ, "topics.creat=off", "admin.port=http") == [
        "c.yaml:2: log.kafka.bootstrap_servers: is missing, and log.kind is kafka; "
        "name its brokers, for example localhost:9092",
        (
            "c.yaml:4: log.kafka.bootstrap_server: unknown key; did you mean "
            "log.kafka.bootstrap_servers?"
        ),
        (
            'c.yaml:5: limits.max_delay: "400" is not a duration; it has no unit; did you mean '
            "400s, or 400ms?"
        ),
        "c.yaml:7: delivery.retry_base: 10m is more than delivery.retry_cap (5m); the first wait "
        "cannot exceed the longest",
        "c.yaml:9: targets.allow: holds an empty pattern",
        (
            'c.yaml:11: logging.level: "INFO" is not one of debug, info, warning, error; did you '
            "mean info?"
        ),
        "c.yaml:12: logging.levle: unknown key; did you mean logging.level?",
        "CHRONOS_LOG_KIND: unknown key; did you mean CHRONOS_LOG__KIND?",
        "CHRONOS_SHARDS: shards: 0 is not within 1 to 1024",
        "--set: topics.creat: unknown key; did you mean topics.create?",
        '--set: admin.port: "http" is not a whole number, for example 7700',
    ]


def test_a_constraint_is_not_checked_with_a_value_that_is_wrong_itself() -> None:
    assert problems(None, None, "log.kind=kafka", "log.kafka.bootstrap_servers=a b") == [
        '--set: log.kafka.bootstrap_servers: "a b" is no address; write host:port, several with '
        "commas"
    ]


def test_the_text_of_the_error_is_its_problems_one_per_line() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(None, {}, ["shards=0", "admin.port=-1"])
    assert str(caught.value).splitlines() == caught.value.problems
    assert caught.value.exit_code == 2


def test_no_problem_names_the_value_of_a_password() -> None:
    lines = problems("log: {kafka: {properties: {sasl.password: [hunter2]}}}")
    lines += problems(None, None, "log.kafka.properties={sasl.password: {hunter2: 1}}")
    assert lines
    assert not any("hunter2" in line for line in lines)


def test_a_host_name_that_cannot_be_a_node_id_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "my host")
    words = "node.id: \"my host\" is no name; use up to 200 letters, digits, '.', '_' and '-'"
    assert problems() == [words]
    assert load(None, {}, ["node.id=a"]).node.id == "a"


# --- What is shown --------------------------------------------------------------------------------


NAMES = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=20)
PATTERNS = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=8).filter(
    # A `targets.deny` of everything is refused, and so is what stands for a hidden value.
    lambda pattern: pattern not in ("*", MASK)
)
# Ranges within which the relations between keys hold, whatever is drawn.
NARROWED: dict[str, tuple[Any, Any]] = {
    "topics.message_bytes_max": ("5MiB", "8MB"),
    "delivery.retry_base": ("1ms", "5m"),
    "delivery.retry_cap": ("5m", "7d"),
    "topics.replication_factor": (3, 100),
    "topics.min_insync_replicas": (1, 3),
}
NUMBERS: dict[str, tuple[Callable[[Any], int], Callable[[int], Any]]] = {
    "duration": (duration_ms, format_duration),
    "size": (size_bytes, size_text),
    "number": (int, int),
}


def _value(found: Key) -> st.SearchStrategy[Any]:
    """Values of a key as they may be written in YAML."""
    if found.kind in NUMBERS:
        read, written = NUMBERS[found.kind]
        least, most = (read(bound) for bound in NARROWED.get(found.path, found.bounds))
        return st.integers(least, most).map(written)
    return {
        "switch": st.booleans(),
        "choice": st.sampled_from(found.choices or ("",)),
        "list": st.lists(PATTERNS, min_size=1),
        "map": st.dictionaries(
            NAMES.map(lambda name: f"x.{name}"), MAP_VALUES.get(found.path, st.nothing())
        ),
        "text": NAMES.map(lambda text: f"{found.name}{text}"),
    }[found.kind]


MAP_VALUES = {
    "log.kafka.properties": st.text(string.printable),
    "delivery.rates": st.sampled_from(["5/s", "200/s burst 1000", "unlimited"]),
}

# One goes with `log.kind: kafka`, the other with large batches.
REQUIRED = ("log.kafka.bootstrap_servers", "topics.message_bytes_max")
# What goes with other keys only: a kind of coordinator, and ways to authenticate.
LEFT_OUT = (
    "coordinator.kind",
    "coordinator.secret",
    "coordinator.raft.peers",
    "replication.mode",
    *(
        f"coordinator.zookeeper.{name}"
        for name in ("path", "authentication", "acl", "password", "certfile", "keyfile")
    ),
    "admin.advertised",
    "admin.allowed_hosts",
    "admin.host",
    "audit.required",
    *(f"admin.tls.{name}" for name in ("certificate", "key", "client_ca")),
    *(f"admin.jwt.{name}" for name in ("issuer", "audience", "jwks")),
)
LEAVES = {found.path: _value(found) for found in keys().values() if not found.model}
SETTINGS = st.fixed_dictionaries(
    {path: LEAVES[path] for path in REQUIRED},
    optional={path: LEAVES[path] for path in LEAVES if path not in REQUIRED + LEFT_OUT},
)


@examples(200)
@given(SETTINGS)
def test_a_shown_configuration_reads_back_as_the_same_one(
    tmp_path_factory: Any, settings: dict[str, Any]
) -> None:
    tree: dict[str, Any] = {}
    for path, value in settings.items():
        level = tree
        for name in path.split(".")[:-1]:
            level = level.setdefault(name, {})
        level[path.split(".")[-1]] = value
    file = tmp_path_factory.getbasetemp() / "round-trip.yaml"
    file.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    config = load(str(file), {}, [])
    shown = show(config)
    if not any(is_secret(name) for name in config.log.kafka.properties):
        file.write_text(shown, encoding="utf-8")
        assert load(str(file), {}, []) == config
    assert show(config) == shown


def test_a_shown_configuration_has_every_key_and_no_secret() -> None:
    secrets = ["sasl.password", "ssl.key.pem", "ssl.key.password", "sasl.oauthbearer.client.secret"]
    overrides = [f"log.kafka.properties.{name}=hunter2" for name in secrets]
    overrides += [
        "log.kafka.properties.sasl.username=me",
        "checkpoints.location=s3://me:hunter2@bucket/c",
    ]
    overrides += [
        "coordinator.zookeeper.password=hunter2",
        "admin.advertised=http://me:hunter2@node",
    ]
    config = load(None, {}, overrides)
    shown = yaml.safe_load(show(config))
    assert "hunter2" not in show(config)
    assert "hunter2" not in repr(config)
    assert "hunter2" not in str(config)
    assert shown["log"]["kafka"]["properties"] == dict.fromkeys(secrets, "********") | {
        "sasl.username": "me"
    }
    assert shown["coordinator"]["zookeeper"]["password"] == "********"
    assert shown["checkpoints"]["location"] == "s3://********@bucket/c"
    assert _paths(shown, "") == {found.path for found in keys().values()}


def _paths(tree: dict[str, Any], prefix: str) -> set[str]:
    found = set()
    for name, value in tree.items():
        found.add(prefix + name)
        if isinstance(value, dict) and prefix + name != PROPERTIES:
            found |= _paths(value, f"{prefix}{name}.")
    return found


# --- What is written about it ---------------------------------------------------------------------


def test_the_reference_is_made_from_the_code() -> None:
    """On failure: `python -m chronos.config > docs/reference/configuration.md`."""
    assert (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8") == reference()


def test_the_example_file_is_made_from_the_code() -> None:
    """On failure: `python -m chronos.config example > config/chronos.yaml`."""
    assert (ROOT / "config/chronos.yaml").read_text(encoding="utf-8") == example()


def test_the_example_file_holds_every_key_at_its_default() -> None:
    assert from_file(example()) == Config()
    assert _paths(yaml.safe_load(example()), "") == {found.path for found in keys().values()} - {
        "node.id"
    }


def test_every_key_has_a_meaning() -> None:
    for found in keys().values():
        assert found.meaning.endswith("."), found.path
        assert "|" not in found.meaning, f"{found.path}: a table would break"


def test_every_key_is_found_by_its_path() -> None:
    for found in keys().values():
        assert found in children(found.parent)
        assert ".".join(split(found.path)) == found.path


def test_rates_are_given_for_patterns_of_topics_and_each_wrong_one_is_named(tmp_path: Path) -> None:
    """Also one whose topic's name looks like that of a secret."""
    file = tmp_path / "rates.yaml"
    file.write_text('delivery:\n  rates: {"orders.*": 200/s, token: 50/s burst 100}\n')
    config = load(str(file), {}, ["delivery.rates.mail.eu=1/s"])
    assert dict(config.delivery.rates) == {
        "orders.*": "200/s",
        "token": "50/s burst 100",
        "mail.eu": "1/s",
    }
    assert "50/s burst 100" in show(config)
    assert load(None, {"CHRONOS_DELIVERY__RATES": '{"a.b": "2/s"}'}, []).delivery.rates == {
        "a.b": "2/s"
    }
    # The name of a topic has its case; a variable in capitals is one as most are written.
    for name, topic in (("Billing_Eu", "Billing_Eu"), ("BILLING_EU", "billing_eu")):
        found = load(None, {f"CHRONOS_DELIVERY__RATES__{name}": "5/s"}, []).delivery.rates
        assert found == {topic: "5/s"}
    with pytest.raises(ConfigurationError) as caught:
        load(
            None,
            {},
            ["delivery.rates.a=fast", "delivery.rates.b/c=1/s", "delivery.rates.d=1/s", "shards=x"],
        )
    text = str(caught.value)
    assert "delivery.rates.a: 'fast' is not a rate" in text
    assert "delivery.rates.b/c: 'b/c' is not the name of a topic" in text
    assert "shards" in text
    assert "delivery.rates.d" not in text
