"""The command line as a user meets it: real processes, a real service, what they print and how they end."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chronos.cli.reference import reference
from tests.harness.ports import free_port
from tests.harness.service import Service

ROOT = Path(__file__).parents[2]
START_UP_MAX_S = 0.35
"""How long a quick verb may take to start, in seconds of its own work."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One node for all tests."""
    with Service(tmp_path_factory.mktemp("cli") / "data", settings={"shards": 2}) as running:
        yield running.start()


class Done:
    """What a command printed and how it ended."""

    def __init__(self, process: subprocess.CompletedProcess[bytes]) -> None:
        self.code = process.returncode
        self.raw = process.stdout
        self.out = process.stdout.decode(errors="replace")
        self.err = process.stderr.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run(*arguments: object, server: str | None = None, stdin: bytes = b"", cwd: Path | None = None) -> Done:
    """A command, to its end."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CHRONOS_")}
    if server is not None:
        environ["CHRONOS_SERVER"] = server
    command = [sys.executable, "-m", "chronos", *map(str, arguments)]
    path = os.pathsep.join([str(ROOT), environ.get("PYTHONPATH", "")])
    return Done(
        subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            env={**environ, "PYTHONPATH": path},
            cwd=cwd,
            timeout=60,
            check=False,
        )
    )


@pytest.fixture
def chronos(service: Service):
    """Runs a verb against the service."""
    return lambda *arguments, stdin=b"": run(*arguments, server=service.url, stdin=stdin)


# --- Verbs


def test_a_message_that_is_sent_comes_out_of_its_topic(chronos):
    """send, then tail: the payload and nothing else on stdout."""
    sent = chronos("send", "--to", "cli", "--in", "200ms", "--id", "one", "--key", "k", "-H", "a=b=c", "hello")
    assert (sent.code, sent.out, sent.err) == (0, "one\n", "")
    tailed = chronos("tail", "cli", "--from", "beginning", "-n", 1)
    assert (tailed.code, tailed.out) == (0, "hello\n")
    shown = chronos("tail", "cli", "--from", "0", "-n", 1, "--headers")
    assert "key=k a=b=c chronos-id=one" in shown.out
    (record,) = map(json.loads, chronos("tail", "cli", "--from", "beginning", "-n", 1, "-o", "json").out.splitlines())
    assert (record["value"], record["headers"]["a"]) == ("hello", "b=c")


def test_stdin_is_one_payload_of_any_bytes(chronos):
    """`-` reads it whole; tail gives it back as it was."""
    raw = bytes(range(256)) * 3
    assert chronos("send", "--to", "bytes", "--in", "0ms", "-", stdin=raw).code == 0
    assert chronos("tail", "bytes", "--from", "beginning", "-n", 1).raw == raw + b"\n"
    assert chronos("tail", "bytes", "--from", "beginning", "-n", 1, "-o", "json").json["value_base64"]


def test_each_line_is_a_message(chronos):
    """Any number of them, in batches; the last one needs no end of line."""
    lines = b"".join(b"line %d\n" % at for at in range(2_500)) + b"last"
    sent = chronos("send", "--to", "lines", "--in", "1ms", "--lines", stdin=lines)
    assert (sent.code, sent.out) == (0, "sent 2,501 messages\n")
    tailed = chronos("tail", "lines", "--from", "beginning", "-n", 2_501)
    assert sorted(tailed.out.splitlines()) == sorted(lines.decode().splitlines())


def test_a_message_is_shown_listed_moved_and_cancelled(chronos):
    """get, list, reschedule, cancel; each in both forms."""
    sent = chronos("send", "--to", "managed", "--at", "2027-01-01T00:00:00Z", "--id", "m 1/ü", "x", "-o", "json")
    assert sent.json["due_at"] == "2027-01-01T00:00:00Z"
    shown = chronos("get", "m 1/ü")
    assert "pending" in shown.out
    assert "managed" in shown.out
    assert chronos("get", "m 1/ü", "-o", "json").json["target"] == {
        "topic": "managed", "key": None, "key_base64": None, "headers": {},
    }  # fmt: skip
    listed = chronos("list", "--to", "managed")
    assert "m 1/ü" in listed.out
    assert chronos("list", "--to", "managed", "-o", "json").json["messages"][0]["id"] == "m 1/ü"
    assert chronos("reschedule", "m 1/ü", "--in", "2h").out == "rescheduled\n"
    assert chronos("cancel", "m 1/ü", "-o", "json").json["result"] == "cancelled"
    assert chronos("list", "--to", "managed").err == "nothing is pending\n"


def test_how_a_verb_ended_is_its_exit_code(chronos):
    """4 for what nobody knows, 1 for what is too late, and the reason on stderr."""
    for verb in (("get", "nobody"), ("cancel", "nobody"), ("fire", "nobody"), ("reschedule", "nobody", "--in", "1h")):
        done = chronos(*verb)
        assert (done.code, done.out) == (4, ""), verb
        assert "nobody" in done.err
    chronos("send", "--to", "ended", "--in", "0ms", "--id", "past", "x")
    chronos("tail", "ended", "--from", "beginning", "-n", 1)
    for verb in ("cancel", "fire"):
        done = chronos(verb, "past")
        assert (done.code, done.err) == (1, "error: too late: past is pending no more\n")


def test_a_topic_that_is_not_there_yet_is_waited_for(service):
    """tail starts before the first message is sent."""
    command = [sys.executable, "-m", "chronos", "tail", "patience", "-n", "1", "--server", service.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as tail:
        assert tail.stderr is not None
        assert tail.stdout is not None
        assert b"waiting for its first record" in tail.stderr.readline()
        run("send", "--to", "patience", "--in", "0ms", "came", server=service.url)
        assert tail.stdout.read() == b"came\n"
        assert tail.wait(30) == 0


def test_ctrl_c_ends_a_tail_without_a_word(service):
    """Exit code 0: there was no failure."""
    run("send", "--to", "broken-off", "--in", "0ms", "x", server=service.url)
    command = [sys.executable, "-m", "chronos", "tail", "broken-off", "--from", "beginning", "--server", service.url]
    # A shell that runs the tests in the background has them ignore Ctrl-C, and whatever they start.
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, preexec_fn=heeding
    ) as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline() == b"x\n"
        tail.send_signal(signal.SIGINT)
        assert tail.wait(30) == 0
        assert tail.stderr is not None
        assert tail.stderr.read() == b""


def test_the_status_is_for_people_and_for_programs(chronos):
    """The same facts."""
    shown = chronos("status")
    assert shown.code == 0
    assert "ready" in shown.out
    assert "SHARD" in shown.out
    found = chronos("status", "-o", "json").json
    assert [shard["role"] for shard in found["shards"]] == ["master", "master"]


def test_a_standalone_node_has_nobody_to_hand_a_shard_to(chronos):
    """Exit code 1, and what to do instead."""
    for arguments in (("transfer", "1", "b"), ("transfer", "--drain", "b"), ("transfer", "--undrain", "b")):
        done = chronos(*arguments)
        assert done.code == 1
        assert "there is no other" in done.err
        assert "zookeeper" in done.err


def test_the_archive_wants_a_place_and_a_kafka_cluster(chronos, tmp_path):
    """Exit code 2, and what to write."""
    done = chronos("archive")
    assert done.code == 2
    assert "--location" in done.err
    done = chronos("archive", "--location", str(tmp_path / "archive"))
    assert done.code == 2
    assert "log.kind" in done.err
    assert not (tmp_path / "archive").exists()


# --- Wrong usage


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("explode",), ("send",), ("send", "x"), ("send", "--to", "t", "x"), ("send", "--to", "t", "--in", "1s"),
        ("send", "--to", "t", "--in", "1s", "--at", "5", "x"), ("send", "--to", "t", "--in", "soon", "x"),
        ("send", "--to", "t", "--at", "2030-01-01T00:00:00", "x"), ("send", "--to", "t", "--in", "1s", "-H", "a", "x"),
        ("send", "--to", "t", "--in", "1s", "--lines", "x"), ("send", "--to", "t", "--in", "1s", "--null", "x"),
        ("send", "--to", "t", "--in", "1s", "--dealy", "x"), ("reschedule", "x"), ("get",), ("get", "x", "-o", "yaml"),
        ("tail", "t", "--from", "middle"), ("list", "-n", "0"), ("list", "--from", "yesterday"), ("config", "burn"),
        ("transfer",), ("transfer", "1"), ("transfer", "1", "b", "--drain", "b"),
        ("serve", "--set", "shards"), ("config", "check", "--set", "shrads=4"), ("get", "x", "--server", "ftp://x"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_ends_with_2_and_says_why_on_stderr(arguments):
    """Nothing on stdout, no traceback."""
    done = run(*arguments)
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert done.err or done.out.startswith("Usage")


def test_what_the_service_refuses_is_wrong_usage_too(chronos):
    """With the service's reason."""
    done = chronos("send", "--to", "chronos.delay", "--in", "1s", "x")
    assert (done.code, done.out) == (2, "")
    assert "chronos.delay is a topic of Chronos" in done.err


def test_a_service_that_is_not_there_is_3():
    """And quick to say so."""
    started = time.monotonic()
    done = run("get", "x", server=f"http://127.0.0.1:{free_port()}")
    assert (done.code, done.out) == (3, "")
    assert "chronos serve" in done.err
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    "verb", ["serve", "send", "get", "list", "cancel", "reschedule", "fire", "tail", "status", "transfer", "archive",
             "audit", "backfill", "config", "doctor", "version"],
)  # fmt: skip
def test_every_verb_explains_itself(verb):
    """--help, on stdout."""
    done = run(verb, "--help")
    assert (done.code, done.err) == (0, "")
    assert "Usage: chronos" in done.out


# --- Settings


def test_the_settings_are_shown_and_checked(tmp_path):
    """As YAML that can be read back, and as JSON."""
    shown = run("config", "show", "--set", "shards=7")
    path = tmp_path / "chronos.yaml"
    path.write_text(shown.out)
    assert run("config", "check", "--config", path).out == "the configuration is good\n"
    assert run("config", "show", "-c", path, "-o", "json").json["shards"] == 7


def test_all_that_is_wrong_with_the_settings_is_listed(tmp_path):
    """Each with its place; exit code 2."""
    path = tmp_path / "chronos.yaml"
    path.write_text("shards: many\nlog:\n  kind: kafak\n")
    for arguments in (("config", "check"), ("serve",), ("doctor",)):
        done = run(*arguments, "--config", path, "--set", "nonsense=1")
        assert done.code == 2
        text = done.err + done.out
        assert "chronos.yaml:1" in text
        assert "kafka" in text
        assert "nonsense" in text
    assert len(run("config", "check", "--config", path, "-o", "json").json["problems"]) == 2


def test_the_version_is_told():
    """For people and for programs."""
    from chronos import __version__

    assert run("version").out.startswith(f"chronos {__version__}\n")
    assert run("version", "-o", "json").json["chronos"] == __version__


def test_the_quick_verbs_load_nothing_of_the_service(service):
    """`get` imports no store, no Kafka client, no settings; the work to start is short."""
    program = (
        "import sys, time; sys.argv = ['chronos', 'version', '-o', 'json']\n"
        "from chronos.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "import chronos.cli.verbs\n"
        "heavy = {'aiohttp', 'rocksdict', 'confluent_kafka', 'structlog', 'chronos.config'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "print(time.process_time())\n"
    )
    fastest = min(
        float(
            subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=ROOT).stdout.split()[
                -1
            ]
        )
        for _ in range(3)
    )
    assert fastest < START_UP_MAX_S


# --- The service


def test_a_second_service_on_the_same_directory_is_refused(service):
    """Exit code 1, and who holds it."""
    done = run("serve", "--set", f"node.data_dir={service.data_dir}", "--set", "admin.port=0")
    assert (done.code, done.out) == (1, "")
    assert f"process {service.pid}" in done.err


def test_a_port_that_is_taken_is_named(service, tmp_path):
    """And what to do; the node that had started is stopped again."""
    done = run("serve", "--set", f"node.data_dir={tmp_path / 'data'}", "--set", f"admin.port={service.port}",
               "--set", "limits.disk_reserve=0")  # fmt: skip
    assert done.code == 1
    assert f"cannot listen on 127.0.0.1:{service.port}" in done.err


def test_a_kafka_that_is_not_there_ends_the_start_with_3(tmp_path):
    """A dependency is unreachable."""
    done = run("serve", "--set", f"node.data_dir={tmp_path / 'data'}", "--set", "log.kind=kafka",
               "--set", "admin.port=0",
               "--set", f"log.kafka.bootstrap_servers=127.0.0.1:{free_port()}")  # fmt: skip
    assert done.code == 3, done.err
    assert "Traceback" not in done.err


def test_on_a_terminal_it_says_where_it_listens_and_what_to_try(tmp_path):
    """And Ctrl-C ends it in order."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "chronos", "serve", "--set", f"node.data_dir={tmp_path / 'data'}", "--set",
               "admin.port=0", "--set", "limits.disk_reserve=0"]  # fmt: skip
    environ = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=subprocess.PIPE, cwd=ROOT, env=environ
    ) as process:
        os.close(follower)
        shown = b""
        while b"Ctrl-C" not in shown:
            shown += os.read(leader, 1_000)
        assert b"listens on http://127.0.0.1:" in shown
        assert b"chronos send --server http://127.0.0.1:" in shown
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    os.close(leader)


def test_a_second_ctrl_c_ends_it_at_once(service):
    """Without waiting for anything: 1, unless the first one was through already."""
    with Service(service.data_dir.with_name("impatient"), settings={"shards": 1}) as running:
        running.start()
        done = run("send", "--to", "t", "--in", "0ms", "x", server=running.url)
        assert done.code == 0
        os.kill(running.pid, signal.SIGINT)
        os.kill(running.pid, signal.SIGINT)
        assert running.wait_exit() in (0, 1)


# --- The doctor


def examine(service: Service, *arguments: str) -> Done:
    """The doctor with the settings of a service."""
    settings = [part for path, value in service.settings.items() for part in ("--set", f"{path}={value}")]
    return run("doctor", *settings, *arguments)


def test_the_doctor_reads_every_store_of_a_stopped_service(tmp_path):
    """And finds nothing wrong."""
    with Service(tmp_path / "data", settings={"shards": 2}) as service:
        assert "is not there yet" in examine(service).out
        service.start()
        service.post("/v1/messages", [{"target": {"topic": "t"}, "value": "x", "delay": "1h"} for _ in range(100)])
        service.wait_until(lambda: service.pending() == 100, "take them in")
        asked = examine(service)
        assert asked.code == 0
        assert "only be read and verified while the service is stopped" in asked.out
        service.stop()
        done = examine(service)
        assert done.code == 0, done.out
        assert done.out.count("every checksum is right") == 3
        assert done.out.endswith("\nnothing is wrong\n")
        service.start()
        assert service.pending() == 100


def test_the_doctor_finds_a_damaged_store(tmp_path):
    """Exit code 5, naming the folder; the other store is read all the same."""
    with Service(tmp_path / "data", settings={"shards": 2}) as service:
        service.start()
        body = [{"target": {"topic": "t"}, "value": "x" * 500, "delay": "1h"} for _ in range(2_000)]
        service.post("/v1/messages", body)
        service.wait_until(lambda: service.pending() == 2_000, "take them in")
        service.stop()
        table = max((service.data_dir / "shards" / "0").glob("*.sst"), key=lambda path: path.stat().st_size)
        data = bytearray(table.read_bytes())
        middle = len(data) // 3
        data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
        table.write_bytes(data)
        done = examine(service)
        assert done.code == 5, done.out
        assert "PROBLEM  store of shard 0: damaged" in done.out
        assert str(service.data_dir / "shards" / "0") in done.out
        assert "ok       store of shard 1" in done.out
        found = examine(service, "-o", "json").json
        assert not found["ok"]
        assert [finding["exit_code"] for finding in found["findings"] if finding["exit_code"]] == [5]


def test_the_doctor_says_when_the_log_does_not_answer(tmp_path):
    """Exit code 3."""
    (tmp_path / "data").mkdir()
    done = run("doctor", "--set", f"node.data_dir={tmp_path / 'data'}", "--set", "log.kind=kafka",
               "--set", f"log.kafka.bootstrap_servers=127.0.0.1:{free_port()}")  # fmt: skip
    assert done.code == 3, done.out
    assert "PROBLEM  log" in done.out


def test_the_reference_page_is_the_one_the_code_makes():
    """`python -m chronos.cli`."""
    assert (ROOT / "docs" / "reference" / "cli.md").read_text() == reference()
