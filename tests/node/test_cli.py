"""The command line as a user meets it: real processes, a real service, their output and their exit
codes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from chronos.cli.__main__ import contents
from tests.harness.command import run
from tests.harness.ports import free_port
from tests.harness.service import Service

ROOT = Path(__file__).parents[2]
MODULES_MAX = 500
"""Modules that a verb of the client loads: a third of a second of processor time on two cores of
2020."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One node for all tests."""
    with Service(tmp_path_factory.mktemp("cli") / "data", settings={"shards": 2}) as running:
        yield running.start()


@pytest.fixture
def chronos(service: Service):
    """Runs a verb against the service."""
    return partial(run, server=service.url)


# --- Verbs


@pytest.mark.smoke
def test_a_message_that_is_sent_comes_out_of_its_topic(chronos):
    """send, then tail: the payload and nothing else on stdout."""
    sent = chronos(
        "send", "--to", "cli", "--in", "200ms", "--id", "one", "--key", "k", "-H", "a=b=c", "hello"
    )
    assert (sent.code, sent.out, sent.err) == (0, "one\n", "")
    tailed = chronos("tail", "cli", "--from", "beginning", "-n", 1)
    assert (tailed.code, tailed.out) == (0, "hello\n")
    shown = chronos("tail", "cli", "--from", "0", "-n", 1, "--headers")
    assert "key=k a=b=c chronos-id=one" in shown.out
    (record,) = map(
        json.loads,
        chronos("tail", "cli", "--from", "beginning", "-n", 1, "-o", "json").out.splitlines(),
    )
    assert (record["value"], record["headers"]["a"]) == ("hello", "b=c")


def test_stdin_is_one_payload_of_any_bytes(chronos):
    """`-` reads all of it; tail prints it unchanged."""
    raw = bytes(range(256)) * 3
    assert chronos("send", "--to", "bytes", "--in", "0ms", "-", stdin=raw).code == 0
    assert chronos("tail", "bytes", "--from", "beginning", "-n", 1).raw == raw + b"\n"
    assert chronos("tail", "bytes", "--from", "beginning", "-n", 1, "-o", "json").json[
        "value_base64"
    ]


def test_each_line_of_stdin_is_a_message(chronos):
    """Any number of them, in batches; the last one needs no line end."""
    lines = b"".join(b"line %d\n" % at for at in range(2_500)) + b"last"
    sent = chronos("send", "--to", "lines", "--in", "1ms", "--lines", stdin=lines)
    assert (sent.code, sent.out) == (0, "sent 2,501 messages\n")
    tailed = chronos("tail", "lines", "--from", "beginning", "-n", 2_501)
    assert sorted(tailed.out.splitlines()) == sorted(lines.decode().splitlines())


def test_a_message_is_shown_listed_moved_and_cancelled(chronos):
    """get, list, reschedule, cancel; each in both forms."""
    sent = chronos(
        "send",
        "--to",
        "managed",
        "--at",
        "2031-01-01T00:00:00Z",
        "--id",
        "m 1/ü",
        "x",
        "-o",
        "json",
    )
    assert sent.json["due_at"] == "2031-01-01T00:00:00.000Z"
    shown = chronos("get", "m 1/ü")
    assert "state     pending\n" in shown.out
    assert " \n" not in shown.out
    assert "managed" in shown.out
    assert chronos("get", "m 1/ü", "-o", "json").json["target"] == {"topic": "managed"}
    listed = chronos("list", "--to", "managed")
    assert "m 1/ü" in listed.out
    assert chronos("list", "--to", "managed", "-o", "json").json["messages"][0]["id"] == "m 1/ü"
    assert chronos("reschedule", "m 1/ü", "--in", "2h").out == "rescheduled\n"
    assert chronos("cancel", "m 1/ü", "-o", "json").json["result"] == "cancelled"
    assert chronos("list", "--to", "managed").err == "nothing is pending\n"


def test_the_exit_code_says_how_a_verb_ended(chronos):
    """4 for an unknown id, 1 if it is too late, and the reason on stderr."""
    for command in (
        ("get", "nobody"),
        ("cancel", "nobody"),
        ("fire", "nobody"),
        ("reschedule", "nobody", "--in", "1h"),
    ):
        done = chronos(*command)
        assert (done.code, done.out) == (4, ""), command
        assert "nobody" in done.err
    chronos("send", "--to", "ended", "--in", "0ms", "--id", "past", "x")
    chronos("tail", "ended", "--from", "beginning", "-n", 1)
    for verb in ("cancel", "fire"):
        done = chronos(verb, "past")
        assert (done.code, done.err) == (1, "error: too late: past is no longer pending\n")


def test_tail_waits_for_a_topic_that_does_not_exist_yet(service):
    """tail starts before the first message is sent."""
    command = [
        sys.executable,
        "-m",
        "chronos",
        "tail",
        "patience",
        "-n",
        "1",
        "--server",
        service.url,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as tail:
        assert tail.stderr is not None
        assert tail.stdout is not None
        assert b"waiting for its first record" in tail.stderr.readline()
        run("send", "--to", "patience", "--in", "0ms", "came", server=service.url)
        assert tail.stdout.read() == b"came\n"
        assert tail.wait(30) == 0


def test_ctrl_c_ends_a_tail_silently(service):
    """Exit code 0, because nothing failed."""
    run("send", "--to", "broken-off", "--in", "0ms", "x", server=service.url)
    command = [
        sys.executable,
        "-m",
        "chronos",
        "tail",
        "broken-off",
        "--from",
        "beginning",
        "--server",
        service.url,
    ]
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
    cancelled = sum(shard["totals"]["cancelled"] for shard in found["shards"])
    assert f", {cancelled:,} cancelled\n" in shown.out
    assert "CANCELLED" in shown.out


def test_a_standalone_node_cannot_hand_a_shard_over(chronos):
    """Exit code 1, and what to do instead."""
    for arguments in (
        ("transfer", "1", "b"),
        ("transfer", "--drain", "b"),
        ("transfer", "--undrain", "b"),
        ("forget", "b"),
    ):
        done = chronos(*arguments)
        assert done.code == 1
        assert "there is no other" in done.err
        assert "zookeeper" in done.err


def test_the_archive_needs_a_location_and_a_kafka_cluster(chronos, tmp_path):
    """Exit code 2, and what to write."""
    done = chronos("archive")
    assert done.code == 2
    assert "--location" in done.err
    done = chronos("archive", "--location", str(tmp_path / "archive"))
    assert done.code == 2
    assert "log.kind" in done.err
    assert not (tmp_path / "archive").exists()


def test_the_json_of_a_verb_is_that_of_the_http_interface(chronos, service):
    """get, list and send print its objects, field for field."""
    sent = chronos(
        "send",
        "--to",
        "same",
        "--in",
        "3h",
        "--id",
        "same",
        "-k",
        "k",
        "-H",
        "a=1",
        "x",
        "-o",
        "json",
    )
    assert set(sent.json) == {"id", "shard", "offset", "due_at", "result"}
    assert chronos("get", "same", "-o", "json").json == service.get("/v1/messages/same")
    listed = chronos("list", "--to", "same", "-o", "json").json
    assert listed == service.get("/v1/messages", target="same")
    assert chronos("cancel", "same", "-o", "json").json["result"] == "cancelled"


def test_a_list_has_as_many_messages_as_were_asked_for(chronos):
    """Over several pages, as text and as JSON; the JSON names the place where it goes on."""
    lines = b"".join(b"%d\n" % at for at in range(1_500))
    assert (
        chronos("send", "--to", "pages", "--in", "9d", "--lines", stdin=lines).out
        == "sent 1,500 messages\n"
    )
    some = chronos("list", "--to", "pages", "-n", 1_200)
    assert len(some.out.splitlines()) == 1 + 1_200
    assert "show them with -n 12000" in some.err
    everything = chronos("list", "--to", "pages", "-n", 5_000, "-o", "json").json
    assert (len({one["id"] for one in everything["messages"]}), everything["after"]) == (
        1_500,
        None,
    )
    part = chronos("list", "--to", "pages", "-n", 1_200, "-o", "json").json
    assert part["messages"] == everything["messages"][:1_200]
    assert part["after"] is not None


def test_one_message_is_not_called_messages(chronos):
    """Singular."""
    assert (
        chronos("send", "--to", "single", "--in", "9d", "--lines", stdin=b"x").out
        == "sent 1 message\n"
    )


def test_a_list_takes_times_relative_to_now(chronos):
    """A value that begins with a dash is the value of the option before it."""
    chronos("send", "--to", "relative", "--in", "1h", "--id", "relative", "--wait", "x")
    for start, end, expected in [
        ("-2h", "+2h", 1),
        ("now", "+2h", 1),
        ("-2h", "now", 0),
        ("+90m", "+1d", 0),
    ]:
        for bounds in (("--from", start, "--until", end), (f"--from={start}", f"--until={end}")):
            found = chronos("list", "--to", "relative", *bounds, "-o", "json")
            assert len(found.json["messages"]) == expected, bounds


def test_send_waits_until_the_message_is_accepted_or_rejected(chronos):
    """Exit code 1 and the reason if the id is taken; without --wait nothing is known of that."""
    first = chronos("send", "--to", "waits", "--in", "1h", "--id", "waits", "--wait", "x")
    assert (first.code, first.out) == (0, "waits\n")
    second = chronos("send", "--to", "waits", "--in", "1h", "--id", "waits", "--wait", "x")
    assert (second.code, second.out) == (1, "")
    assert second.err == "error: waits was rejected: another message has this id and is pending\n"
    assert chronos("send", "--to", "waits", "--in", "1h", "--id", "waits", "x").code == 0
    replaced = chronos(
        "send",
        "--to",
        "waits",
        "--in",
        "1h",
        "--id",
        "waits",
        "--on-conflict",
        "replace",
        "--wait",
        "y",
    )
    assert replaced.code == 0


def test_a_header_may_be_given_more_than_once(chronos):
    """All its values are delivered, in order."""
    chronos(
        "send", "--to", "twice", "--in", "0ms", "-H", "foo=1", "-H", "bar=x", "-H", "foo=2", "v"
    )
    record = chronos("tail", "twice", "--from", "beginning", "-n", 1, "-o", "json").json
    assert (record["headers"]["foo"], record["headers"]["bar"]) == (["1", "2"], "x")


def test_arguments_that_are_not_utf_8_are_bytes(chronos):
    """The value, the key and the id; a topic has to be text."""
    sent = chronos(
        "send", "--to", "raw", "--in", "0ms", "--id", b"\xff\xfe", "--key", b"\xfd", b"v\xff"
    )
    assert (sent.code, sent.out) == (0, "base64://4=\n")
    assert chronos("tail", "raw", "--from", "beginning", "-n", 1).raw == b"v\xff\n"
    assert "base64:/Q==" in chronos("tail", "raw", "--from", "beginning", "-n", 1, "--headers").out
    assert "delivered" in chronos("get", b"\xff\xfe").out
    for arguments in (
        ("send", "--to", b"\xff", "--in", "1s", "x"),
        ("tail", b"\xff"),
        ("list", "--to", b"\xff"),
    ):
        done = chronos(*arguments)
        assert done.code == 2, arguments
        assert "Traceback" not in done.err


def test_control_characters_in_ids_are_escaped(chronos, service):
    """An id that another producer chose cannot break the table."""
    service.post(
        "/v1/messages",
        {"target": {"topic": "odd"}, "value": None, "id": "odd\t\x1b[31m", "delay": "1h"},
    )
    listed = chronos("list", "--to", "odd")
    assert "odd\\t\\x1b[31m" in listed.out
    assert "\x1b" not in listed.out
    assert "odd\\t" in chronos("get", "odd\t\x1b[31m").out
    assert chronos("cancel", "odd\t\x1b[31m").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("list", "-o", "json"),
        ("get", "full"),
        ("get", "full", "-o", "json"),
        ("status",),
        (("--help"),),
        ("tail", "full", "--from", "beginning", "-n", "1"),
        ("tail", "full", "--from", "beginning", ("-n"), "1", "-o", "json"),
        ("send", "--to", "full", "--in", "1h", "x"),
        ("config", "show"),
        ("version",),
    ],
    ids=" ".join,
)
def test_a_full_device_is_one_line_on_stderr(chronos, arguments):
    """Exit code 1, no traceback, also for what is written at the very end."""
    chronos("send", "--to", "full", "--in", "0ms", "--id", "full", "--on-conflict", "ignore", "x")
    with open("/dev/full", "wb") as full:
        done = chronos(*arguments, stdout=full.fileno())
    assert done.code == 1
    assert (
        done.err.splitlines()[-1] == "error: the output cannot be written: No space left on device"
    )
    assert "Traceback" not in done.err
    assert "Exception ignored" not in done.err


def test_a_tail_ends_when_its_reader_does(service):
    """`tail | head -1`: without a second record, and without an error."""
    run("send", "--to", "head", "--in", "0ms", "only", server=service.url)
    command = [
        sys.executable,
        "-m",
        "chronos",
        "tail",
        "head",
        "--from",
        "beginning",
        "--server",
        service.url,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert tail.stdout.readline() == b"only\n"
        tail.stdout.close()
        assert tail.wait(30) == 0
        assert tail.stderr.read() == b""


@pytest.mark.process
def test_a_reason_of_the_service_is_printed(tmp_path):
    """The detail of a 503, although the retry after it gets no answer."""
    detail = b'{"detail": "the brokers did not acknowledge within 20 s"}'
    answer = b"HTTP/1.1 503 No\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
        len(detail),
        detail,
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for sent in (answer, b""):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(sent)
            listening.close()  # later retries are refused at once instead of waiting for an answer

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        done = run("get", "x", server=f"http://127.0.0.1:{listening.getsockname()[1]}")
        thread.join(10)
    assert (done.code, done.err) == (1, "error: the brokers did not acknowledge within 20 s\n")


def test_a_pause_is_shown_once_for_all_shards():
    """Wrapped, and not repeated in the table."""
    from chronos.admin.http.context import together
    from chronos.cli.service.status import other_reasons

    troubles = {
        0: ("master", "no broker"),
        1: ("master", "no broker"),
        2: ("starting", None),
        4: ("master", "no broker"),
    }
    reasons = together(troubles)
    assert reasons == ["shards 0, 1, 4 are master: no broker", "shard 2 is starting"]
    shards = [
        {"shard": 0, "paused": "no broker"},
        {"shard": 1, "paused": "clocks"},
        {"shard": 2, "paused": "clocks"},
    ]
    found = {"nodes": [{"reasons": reasons}], "shards": shards}
    assert other_reasons(found) == ["paused: shards 1, 2: clocks"]


# --- Wrong usage


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("explode",),
        ("send",),
        ("send", "x"),
        ("send", "--to", "t", "x"),
        ("send", "--to", ("t"), "--in", "1s"),
        ("send", "--to", "t", "--in", "1s", "--at", "2030-01-01T00:00:00Z", "x"),
        ("send", "--to", "t", "--in", "soon", "x"),
        ("send", "--to", "t", "--in", "5", "x"),
        ("send", "--to", "t", "--at", "1798000000", "x"),
        ("send", "--to", "t", "--at", ("1798000000000"), "x"),
        ("send", "--to", "t", "--in", "1s", "--expire-at", "1798000000000", "x"),
        ("reschedule", ("x"), "--in", "5"),
        ("send", "--to", "t", "--in", "1s", "--on-conflict", "perhaps", "x"),
        ("send", "--to", "t", "--in", "1s", "--lines", "--wait"),
        ("send", "--to", "t", "--in", ("1s"), "--id", "a\tb", "x"),
        ("list", "--from", "5"),
        ("list", "--from", "-5"),
        ("list", "--until=tomorrow"),
        ("send", "--to", "t", "--at", "2030-01-01T00:00:00", "x"),
        ("send", "--to", "t", "--in", ("1s"), "-H", "a", "x"),
        ("send", "--to", "t", "--in", "1s", "--lines", "x"),
        ("send", "--to", "t", "--in", "1s", ("--null"), "x"),
        ("send", "--to", "t", "--in", "1s", "--dealy", "x"),
        ("reschedule", "x"),
        ("get",),
        (("get"), "x", "-o", "yaml"),
        ("tail", "t", "--from", "middle"),
        ("list", "-n", "0"),
        ("list", "--from", "yesterday"),
        (("config"), "burn"),
        ("transfer",),
        ("transfer", "1"),
        ("transfer", "1", "b", "--drain", "b"),
        ("serve", "--set", "shards"),
        ("config", "check", "--set", "shrads=4"),
        ("get", "x", ("--server"), "ftp://x"),
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2_and_says_why_on_stderr(arguments):
    """Nothing on stdout, no traceback."""
    done = run(*arguments)
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert done.err or done.out.startswith("Usage")


def test_a_refusal_of_the_service_is_wrong_usage(chronos):
    """With the reason of the service, and the name of the option."""
    done = chronos("send", "--to", "chronos.delay", "--in", "1s", "x")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: --to: chronos.delay is a topic of Chronos")


@pytest.mark.process
def test_a_service_that_does_not_run_is_exit_code_3():
    """Within seconds."""
    started = time.monotonic()
    done = run("get", "x", server=f"http://127.0.0.1:{free_port()}")
    assert (done.code, done.out) == (3, "")
    assert "chronos serve" in done.err
    assert time.monotonic() - started < 10


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("send", "--to", "t", "--in", "5", "x"), "--in: 5 has no unit; write 5s, 5m or 5ms"),
        (
            ("archive", "expire", "-l", "none", "--older-than", "90", "--yes"),
            "--older-than: 90 has no unit",
        ),
        (("archive", "-l", "none", "--follow", "--every", "10"), "--every: 10 has no unit"),
        (
            ("cancel", "--header", "tenant=a", "--header", "tenant=b", "--yes"),
            "--header: tenant is given with two values",
        ),
        (("dead-letters", "replay", "--all", "--rate", "inf", "--yes"), "--rate: inf is not a"),
        (("send", "--to", "t", "--at", "1798000000", "x"), "such as 2026-12-23T04:26:40.000Z"),
        (
            ("send", "--to", "t", "--in", "1s", "--at", "2030-01-01T00:00:00Z", "x"),
            "--in and --at are both given",
        ),
        (("send", "--to", "t", "--in", "1s", "--id", "a\tb", "x"), "holds a control character"),
        (
            ("send", "--to", "t", "--at", "soon", "x"),
            "'soon' is not a time; write RFC 3339 with an offset, as 2030-",
        ),
        (
            ("send", "--to", "t", "--in", "1s", "--every", "500", "x"),
            "--every: 500 has no unit; write 500s or 500ms",
        ),
        (
            ("send", "--to", "t", "--cron", "0 9", "x"),
            "--cron: '0 9' is not 5 or 6 cron fields, such as '0 9 * * 1-5'",
        ),
        (
            ("send", "--to", "t", "--in", "9999999999999999s", "x"),
            "--in: '9999999999999999s' is longer than the longest",
        ),
        (("list", "--from", "yesterday"), "relative to now: -2h, now, +30m"),
        (("tail", "t", "-n", "0"), "Invalid value for '-n' / '--count': 0 is less than 1"),
        (
            ("--server", "http://h:1", "status"),
            "after the verb: chronos status --server http://h:1",
        ),
    ],
)
def test_wrong_usage_is_answered_with_what_to_write(arguments, says):
    """In the words of the option."""
    assert says in run(*arguments).err


def test_a_time_too_far_ahead_is_refused_in_the_words_of_the_user(chronos):
    """The option, the limit in days, and the setting."""
    expected = "due more than 3650d ahead, the limit set by limits.max_delay\n"
    assert chronos("send", "--to", "t", "--in", "5000d", "x").err == f"error: --in: {expected}"
    assert (
        chronos("send", "--to", "t", "--at", "2090-01-01T00:00:00Z", "x").err
        == f"error: --at: {expected}"
    )


def test_a_time_in_the_past_is_accepted_with_a_warning_or_refused_if_it_is_long_ago(chronos):
    """A warning is on stderr, and says how long ago."""
    at = datetime.now(UTC) - timedelta(days=3)
    done = chronos("send", "--to", "late", "--id", "late", "--at", at.isoformat(), "x")
    assert (done.code, done.out) == (0, "late\n")
    assert done.err.startswith(f"warning: due at {at:%Y-%m-%dT%H:%M:%S}.")
    assert done.err.endswith(", 3 days ago\n")
    refused = chronos("send", "--to", "late", "--at", "2020-01-01T00:00:00Z", "x")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == (
        "error: --at: due at 2020-01-01T00:00:00.000Z, more than 30d in the past, the limit set "
        "by limits.max_past\n"
    )
    chronos("send", "--to", "late", "--id", "moved", "--in", "1h", "x")
    moved = chronos("reschedule", "moved", "--at", at.isoformat())
    assert (moved.out, moved.err.endswith(", 3 days ago\n")) == ("rescheduled\n", True)


@pytest.mark.parametrize(
    "extra",
    [
        "server",
        *(
            pytest.param(extra, marks=pytest.mark.slow)
            for extra in ("zookeeper", "spark", "spark alone")
        ),
    ],
)
@pytest.mark.process
def test_a_missing_package_is_named_with_its_extra(extra, tmp_path):
    """Exit code 2 and the command that installs it."""
    module, arguments = {
        "server": ("pydantic", ("config", "show")),
        "zookeeper": (
            "kazoo",
            (
                "doctor",
                "--set",
                f"node.data_dir={tmp_path / 'data'}",
                "--set",
                "log.kind=kafka",
                "--set",
                "log.kafka.bootstrap_servers=127.0.0.1:1",
                "--set",
                "coordinator.kind=zookeeper",
                "--set",
                "coordinator.zookeeper.hosts=127.0.0.1:1",
            ),
        ),
        "spark": ("pyspark", ("audit", "--location", str(tmp_path))),
        "spark alone": ("yaml", ("audit", "--location", str(tmp_path))),
    }[extra]
    # A module set to None cannot be imported.
    program = f"import sys; sys.modules[{module!r}] = None; from chronos.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert f"pip install 'kafka-chronos[{extra.removesuffix(' alone')}]'".encode() in done.stderr, (
        done.stderr
    )
    assert done.returncode == (3 if extra == "spark" else 2)
    assert b"Traceback" not in done.stderr


@pytest.mark.process
def test_shell_completion_can_be_installed():
    """The option shows a script for the shell."""
    program = "import os, sys; os.environ['_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION'] = '1'; "
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program + "from chronos.cli import main; main()",
            "--show-completion",
            "bash",
        ],
        capture_output=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"_CHRONOS_COMPLETE" in done.stdout


@pytest.mark.process
@pytest.mark.parametrize(
    "verb",
    [
        "serve",
        "send",
        "get",
        "list",
        "cancel",
        "reschedule",
        "fire",
        "tail",
        "status",
        "whoami",
        "top",
        "transfer",
        "archive",
        "audit",
        "backfill",
        "config",
        "doctor",
        "version",
    ],
)
def test_every_verb_explains_itself(verb):
    """--help, on stdout, with examples; arguments are in capitals or a choice, and in one pair of
    brackets."""
    done = run(verb, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"Usage: chronos {verb} [OPTIONS]" in done.out
    assert "[[" not in done.out
    assert "[shard]" not in done.out
    assert f"Examples:\n    chronos {verb}" in done.out


# --- Settings


@pytest.mark.process
def test_the_settings_are_shown_and_checked(tmp_path):
    """As YAML that can be read back, and as JSON."""
    shown = run("config", "show", "--set", "shards=7")
    path = tmp_path / "chronos.yaml"
    path.write_text(shown.out)
    assert run("config", "check", "--config", path).out == "the configuration is valid\n"
    assert run("config", "show", "-c", path, "-o", "json").json["shards"] == 7


@pytest.mark.process
def test_all_problems_of_the_settings_are_listed(tmp_path):
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


@pytest.mark.process
def test_the_version_is_shown():
    """For people and for programs."""
    from chronos import __version__

    assert run("version").out.startswith(f"chronos {__version__}\n")
    assert run("version", "-o", "json").json["chronos"] == __version__
    assert run("--version").out == f"chronos {__version__}\n"


def test_the_verbs_of_the_client_load_nothing_of_the_service(service):
    """`get` imports no store, no Kafka client, no settings; and few modules, which is most of what
    a start costs."""
    program = (
        "import sys; sys.argv = ['chronos', 'version', '-o', 'json']\n"
        "from chronos.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "import chronos.cli.messages.verbs\n"
        "heavy = {'aiohttp', 'rocksdict', 'confluent_kafka', 'structlog', 'chronos.config'} & "
        "set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "print(len(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, cwd=ROOT
    )
    assert int(done.stdout.split()[-1]) < MODULES_MAX


# --- The service


def test_a_second_service_on_the_same_directory_is_refused(service):
    """Exit code 1, and the process that holds it."""
    done = run("serve", "--set", f"node.data_dir={service.data_dir}", "--set", "admin.port=0")
    assert (done.code, done.out) == (1, "")
    assert f"process {service.pid}" in done.err


def test_a_port_in_use_is_named(service, tmp_path):
    """And what to do; the node that had started is stopped again."""
    done = run(
        "serve",
        "--set",
        f"node.data_dir={tmp_path / 'data'}",
        "--set",
        f"admin.port={service.port}",
        "--set",
        "limits.disk_reserve=0",
    )
    assert done.code == 1
    assert f"cannot listen on 127.0.0.1:{service.port}" in done.err


def test_a_second_ctrl_c_ends_it_at_once(service):
    """Without waiting: 1, or 0 if it had already stopped."""
    with Service(service.data_dir.with_name("impatient"), settings={"shards": 1}) as running:
        running.start()
        done = run("send", "--to", "t", "--in", "0ms", "x", server=running.url)
        assert done.code == 0
        running.send_signal(signal.SIGINT)
        running.send_signal(signal.SIGINT)
        assert running.wait_exit() in (0, 1)


def test_the_reference_page_is_up_to_date():
    """`python -m chronos.cli`."""
    assert (ROOT / "docs" / "reference" / "cli.md").read_text() == contents()
