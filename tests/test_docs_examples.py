"""Every example in the documentation can be copied: commands, settings, headers, requests and
programs are accepted.

Accepted by the code that will read them, with default settings: not only by a parser, also for
their values. A page may show an example that is refused if it shows the error text too."""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from zoneinfo import ZoneInfo

import click
import msgspec
import pytest
import typer
import yaml
from typer.testing import CliRunner

import chronos
from chronos.admin.http import schemas
from chronos.admin.http.problems import ProblemError
from chronos.admin.http.tokens import ANYBODY
from chronos.admin.messages.scheduling import Planner
from chronos.cli.app import app
from chronos.cli.messages.send import SeriesOptions
from chronos.cli.spark.audit import parse_moment
from chronos.config import load
from chronos.config.catalogue import keys
from chronos.config.values import size_bytes
from chronos.core.keys import partition_of
from chronos.core.message import (
    CONFLICT_POLICIES,
    DELAY,
    DELIVER_AT,
    TARGET_TOPIC,
    Record,
    Rejection,
)
from chronos.core.shard.parsing import parse
from chronos.core.shard.rules import Rules
from chronos.core.timefmt import parse_duration_ms, parse_time_ms
from chronos.errors import ConfigurationError
from tests.harness.pages import DOCS, PAGES, ROOT, blocks, inline, on_every_page, prose, rows

NOW_MS = 1_795_000_000_000
"""2026-11-18: when the examples are read. A fixed time, so that they do not expire."""

USAGE_ERROR = typer.BadParameter.__mro__[1]
"""What the command line raises for a line it cannot parse. (Typer has its own copy of click.)"""

DEFAULTS = load(None, {}, [])
SHARDS = DEFAULTS.shards

SENT = "2030-01-31T09:00:00+01:00"
"""The time that stands for an expression that gives one."""


def rules(shard: int = 0) -> Rules:
    """The rules of a shard with the default settings."""
    topics = DEFAULTS.topics
    return Rules(
        shard=shard,
        shards=SHARDS,
        own_topics=[topics.delay, topics.progress, topics.rejected, topics.dead_letter],
        max_delay_ms=DEFAULTS.limits.max_delay,
        max_past_ms=DEFAULTS.limits.max_past,
    )


def shard_of(key: bytes | None) -> int:
    """The shard that a key belongs to; 0 without a key."""
    return 0 if key is None else partition_of(key, SHARDS)


# ----------------------------------------------------------------------------------------- Commands


@cache
def verbs() -> dict[str, click.Command]:
    """The verbs of the command line."""
    command = typer.main.get_command(app)
    return dict(command.commands)  # type: ignore[attr-defined]


def words(line: str) -> list[str]:
    """The arguments of one command line, without the command, variables before it, comments and
    redirections."""
    found = shlex.split(line, comments=True)
    found = found[found.index("chronos") + 1 :]
    return found[
        : next((at for at, word in enumerate(found) if word in ("<", ">", "|", "&")), len(found))
    ]


def command_lines(page: Path) -> Iterator[list[str]]:
    """The `chronos ...` lines of the code blocks, as arguments."""
    for block in (*blocks(page, "sh"), *blocks(page, "console")):
        for line in block.replace("\\\n", " ").splitlines():
            if line.removeprefix("$ ").startswith("chronos "):
                yield words(line.removeprefix("$ "))


def inline_command_lines(page: Path) -> Iterator[list[str]]:
    """The commands with arguments in running text, unless they hold placeholders."""
    for text in inline(page):
        if (
            text.startswith("chronos ")
            and " " in text[8:]
            and not re.search(r"<|\.\.\.|…|\b[A-Z]{2,}\b", text)
        ):
            yield words(text)


def help_lines() -> Iterator[list[str]]:
    """The examples in the help texts of all verbs and their subcommands."""
    commands = [*verbs().values()]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        for line in (command.help or "").replace("\\\n", " ").splitlines():
            if re.match(r"\s+([A-Z_]+=\S+ )*chronos ", line):
                yield words(line)


def context_of(arguments: list[str]) -> click.Context:
    """The parsed command line; UsageError if it cannot be parsed."""
    verb, *rest = arguments
    command = verbs()[verb]
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]  # type: ignore[attr-defined]
    context = command.make_context(verb, list(rest))
    assert context.args == [], arguments
    return context


def check_values(context: click.Context) -> None:
    """Read each value with the code that will read it; an error says what is wrong."""
    for param in context.command.params:
        values = context.params.get(param.name or "")
        for value in values if isinstance(values, list | tuple) else [values]:
            if value is not None and not isinstance(value, bool):
                check_value(context.command.name or "", param, value)


RELATIVE = {"--due-from", "--due-to", "--since", "--until", "--resume-at"}
"""Options that take times relative to now."""


def check_value(verb: str, param: click.Parameter, value: Any) -> None:
    """One value, by its option or the kind of value that its help text names."""
    kind = getattr(param, "metavar", None)
    if "--set" in param.opts:
        load(None, {}, [value] if value.startswith("log.kind=embedded") else together(value))
    elif kind == "TIME" and verb in ("audit", "backfill", "find"):
        parse_moment(value, NOW_MS, param.opts[0])
    elif kind == "TIME" and RELATIVE & set(param.opts) and re.match("now$|[+-]", value):
        assert value == "now" or parse_duration_ms(value[1:]) >= 0
    elif kind == "TIME":
        parse_time_ms(value)
    elif kind == "DURATION":
        parse_duration_ms(value)
    elif kind == "SIZE":
        size_bytes(value)
    elif kind in ("NAME=VALUE", "KEY=VALUE"):
        assert "=" in value, value
    elif kind == "POLICY":
        assert value.encode() in CONFLICT_POLICIES
    elif kind == "beginning|end|OFFSET":
        assert value in ("beginning", "end") or value.isdigit()
    elif kind == "check|show":
        assert value in ("check", "show")


def together(setting: str) -> list[str]:
    """The setting, and those without which it would be refused."""
    return (
        ["log.kafka.bootstrap_servers=localhost:9092", setting]
        if setting.startswith("log.")
        else [setting]
    )


def sent_by(context: click.Context) -> dict[str, Any] | None:
    """The message that a `send` would send, as the body of a request."""
    given = context.params
    if context.command.name != "send":
        return None
    headers = dict(each.split("=", 1) for each in given["header"] or [])
    series = SeriesOptions(**{field: given[field] for field in SeriesOptions.__struct_fields__})
    found = {
        "target": {"topic": given["to"], "key": given["key"], "headers": headers},
        "value": given["value"],
        "deliver_at": given["at"],
        "delay": given["in_"],
        "id": given["id"],
        "on_conflict": given["on_conflict"],
        "expire_at": given["expire_at"],
        "attempts": given["attempts"],
        **series.options(),
    }
    return {
        name: content for name, content in found.items() if content is not None or name == "value"
    }


def refusal(body: bytes) -> str | None:
    """Why the HTTP interface would refuse messages; None if it would accept them."""
    planner = Planner(
        rules=[rules(shard) for shard in range(SHARDS)],
        delay_topic=DEFAULTS.topics.delay,
        bytes_max=DEFAULTS.topics.message_bytes_max,
        knows_call=lambda *call: False,
    )
    try:
        planner.plan_body(body, NOW_MS, sender=ANYBODY, expressions_max=100, go_on=lambda: None)
    except ProblemError as error:
        return error.problem.detail
    return None


def as_json(value: object) -> bytes:
    """The body of a request."""
    return msgspec.json.encode(value)


@on_every_page
def test_every_command_is_accepted(page: Path) -> None:
    """Options, values and messages; a refused message is shown with its error."""
    for arguments in command_lines(page):
        context = context_of(arguments)
        check_values(context)
        sent = sent_by(context)
        why = None if sent is None else refusal(as_json([sent]))
        # The command line names its option where HTTP names the field.
        assert why is None or why.partition(": ")[2] in page.read_text(), (arguments, why)


@on_every_page
def test_every_command_in_running_text_is_accepted(page: Path) -> None:
    """Required options may be left out there; the options that are named exist and have good
    values."""
    for arguments in inline_command_lines(page):
        try:
            context = context_of(arguments)
        except typer.BadParameter as error:
            if type(error).__name__ != "MissingParameter":
                raise
            continue
        check_values(context)


@pytest.mark.parametrize("arguments", [*help_lines()], ids=" ".join)
def test_every_example_of_the_help_is_accepted(arguments: list[str]) -> None:
    """`chronos VERB --help` shows commands that work."""
    context = context_of(arguments)
    check_values(context)
    sent = sent_by(context)
    assert sent is None or refusal(as_json([sent])) is None


def test_there_are_commands_to_check() -> None:
    """The searches find them."""
    assert sum(1 for page in PAGES for _ in command_lines(page)) > 40
    assert sum(1 for page in PAGES for _ in inline_command_lines(page)) > 10
    assert len([*help_lines()]) > 20


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("chronos send --to a --in 5 seconds hello", USAGE_ERROR),
        ("chronos send --to a --in 5sec hello", ValueError),
        ("chronos send --to a --at 2030-01-31 hello", ValueError),
        ("chronos archive -l a --every 1min", ValueError),
        ("chronos send --to a --in 5s --on-conflict drop hello", (AssertionError, USAGE_ERROR)),
        ("chronos send --to a --in 5s --header novalue hello", AssertionError),
        ("chronos audit -l a --from 2h", USAGE_ERROR),
        ("chronos archive compact -l a --file-size 128M", ValueError),
        ("chronos serve --set shards=many", ConfigurationError),
    ],
)
def test_a_command_with_a_wrong_value_is_found(
    line: str, error: type[Exception] | tuple[type[Exception], ...]
) -> None:
    """The checks above fail on what the command line would refuse."""
    with pytest.raises(error):
        check_values(context_of(words(line)))


@pytest.mark.parametrize(
    "verb", sorted({arguments[0] for page in PAGES for arguments in command_lines(page)})
)
def test_every_verb_that_is_shown_explains_itself(verb: str) -> None:
    """`--help` works."""
    shown = CliRunner().invoke(app, [verb, "--help"])
    assert shown.exit_code == 0
    assert "Usage" in shown.output


# ----------------------------------------------------------------------------------------- Settings


def configurations(page: Path) -> Iterator[str]:
    """The yaml blocks that are settings of Chronos."""
    for block in blocks(page, "yaml"):
        if set(yaml.safe_load(block)) & {path for path in keys() if "." not in path}:
            yield block


@on_every_page
def test_every_configuration_is_accepted(page: Path) -> None:
    """Settings shown can be copied."""
    for block in configurations(page):
        with NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(block)
            file.flush()
            load(file.name, {}, [])


NEEDED = {
    "log.kind": "kafka",
    "log.kafka.bootstrap_servers": "localhost:9092",
    "coordinator.zookeeper.hosts": "localhost:2181",
    "coordinator.zookeeper.authentication": "digest",
    "coordinator.zookeeper.username": "chronos",
    "coordinator.zookeeper.password": "x",
    "coordinator.secret": "a secret of the tests",
    "coordinator.raft.peers": "[a=host-a:7701]",
}
"""Settings without which some others are refused."""


@on_every_page
def test_every_setting_in_running_text_has_a_value_that_it_takes(page: Path) -> None:
    """`key: value` in backticks."""
    for text in inline(page):
        match = re.fullmatch(r"([a-z_]+(?:\.[a-z_]+)*): (\S+|[\[{].*)", text)
        if match is None or match[1] not in keys() or keys()[match[1]].kind == "section":
            continue
        besides = {"coordinator.kind": "kafka"} if match[1].startswith("replication.") else {}
        besides |= (
            {"audit.path": "/var/log/chronos/audit.log"} if match[1] == "audit.required" else {}
        )
        settings = NEEDED | besides | {match[1]: match[2]}
        overrides = [f"{key}={value}" for key, value in settings.items() if key in keys()]
        load(None, {}, overrides)


# ------------------------------------------------------------------------------------------ Headers


def command(
    key: bytes | None,
    value: bytes | None,
    headers: Mapping[str, str | bytes] | list[tuple[str, Any]],
) -> Any:
    """The command that a record stands for, in the shard its id belongs to."""
    pairs = [
        (name, content.encode() if isinstance(content, str) else content)
        for name, content in (headers.items() if isinstance(headers, Mapping) else headers)
    ]
    named = dict(pairs).get("chronos-id", b"")
    generated = re.match(rb"(\d+)-\d+-\d+$", named or b"")
    shard = int(generated[1]) if generated else shard_of(key)
    return parse(Record(0, NOW_MS, key, value, pairs), rules(shard))


def test_the_record_of_the_readme_is_accepted() -> None:
    """Its first table is a complete record."""
    found = {cells[0]: cells[1] for cells in rows(ROOT / "README.md", "## What it is")}
    first = {cell: re.findall(r"`([^`]+)`", text)[0] for cell, text in found.items() if "`" in text}
    headers = {
        name.split("`")[1]: value for name, value in first.items() if name.startswith("header ")
    }
    assert set(headers) == {TARGET_TOPIC, DELAY}
    parsed = command(first["key"].encode(), b"{}", headers)
    assert not isinstance(parsed, Rejection), parsed


@on_every_page
def test_every_header_in_running_text_has_a_value_that_is_accepted(page: Path) -> None:
    """`chronos-...: value` in backticks, in an otherwise complete record."""
    for text in inline(page):
        match = re.fullmatch(r"(chronos-[a-z-]+): (\S+)", text)
        if match is None:
            continue
        headers = {TARGET_TOPIC: "reminders", DELAY: "30m"}
        if match[1] == DELIVER_AT:
            del headers[DELAY]
        parsed = command(b"order-17", b"{}", headers | {match[1]: match[2]})
        assert not isinstance(parsed, Rejection), (text, parsed)


def test_every_form_of_a_time_and_a_duration_is_read() -> None:
    """The forms that docs/reference/headers.md names; a time without an offset is the one that is
    refused."""
    text = prose(DOCS / "reference/headers.md")
    times = re.findall(
        r"`([^`]+)`", text[text.index("A **time** is") : text.index("A time without an offset")]
    )
    durations = re.findall(
        r"`([^`]+)`", text[text.index("A **duration** is") : text.index("It counts from")]
    )
    assert len(times) >= 7
    assert len(durations) >= 7
    assert len({parse_time_ms(time) for time in times}) == 2
    assert all(parse_duration_ms(duration) > 0 for duration in durations)


def console_records(page: Path) -> Iterator[tuple[bytes, bytes | None, dict[str, str]]]:
    """The records that pages give to Kafka's console producer."""
    for block in blocks(page, "console"):
        for text, producer in re.findall(
            r"\$ printf '(.*?)\\n' \|\n(.*?--property parse.key=true[^\n]*)", block, re.DOTALL
        ):
            *headers, key, value = text.split("\\t")
            pairs = dict(pair.split(":", 1) for pair in headers[0].split(",")) if headers else {}
            assert bool(headers) == ("parse.headers=true" in producer), text
            yield (
                key.encode(),
                None if value == "NULL" and "null.marker=NULL" in producer else value.encode(),
                pairs,
            )


@on_every_page
def test_every_record_for_the_console_producer_is_accepted(page: Path) -> None:
    """Headers, a tab, the key, a tab, the value."""
    for key, value, headers in console_records(page):
        parsed = command(key, value, headers)
        assert not isinstance(parsed, Rejection), (page, headers, parsed)


def test_there_are_console_records_to_check() -> None:
    """The search finds them."""
    assert sum(1 for page in PAGES for _ in console_records(page)) >= 4


# ------------------------------------------------------------------------------- Programs, requests


class Unknown(str):
    """A value that the program around an example would have: text, whatever is asked of it."""

    def __getattr__(self, name: str) -> "Unknown":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: object) -> "Unknown":
        return self

    def isoformat(self) -> str:
        """A time with an offset."""
        return SENT


class Names(dict[str, Any]):
    """The names that an example may use."""

    def __missing__(self, name: str) -> Any:
        return Unknown("x")


NAMES = Names(
    chronos=chronos,
    datetime=datetime,
    date=date,
    timedelta=timedelta,
    UTC=UTC,
    ZoneInfo=ZoneInfo,
    instant=Unknown("x"),
    json=__import__("json"),
    range=range,
    # A dead letter, for the example that resends one.
    headers=[
        (TARGET_TOPIC, b"reminders"),
        ("chronos-reason", b"target-missing"),
        ("chronos-source", b"chronos.delay/0/1"),
    ],
)


def calls(page: Path, name: str) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """The arguments of each call of a method in the Python blocks, evaluated."""
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == name
            ):
                whole = ast.Expression(
                    ast.Call(ast.Name("seen", ast.Load()), node.args, node.keywords)
                )
                ast.fix_missing_locations(whole)
                names = Names(NAMES, seen=lambda *args, **kwargs: (list(args), kwargs))
                yield eval(compile(whole, str(page), "eval"), {"__builtins__": {}}, names)


@on_every_page
def test_python_is_python(page: Path) -> None:
    """Every Python block can be compiled."""
    for block in blocks(page, "python"):
        ast.parse(block)


@on_every_page
def test_every_record_that_a_program_produces_is_accepted(page: Path) -> None:
    """Records for the delay topic, whatever their headers are made of."""
    for args, given in calls(page, "produce"):
        assert args == ["chronos.delay"]
        key, value = (
            None if part is None else str(part).encode()
            for part in (given.get("key"), given.get("value"))
        )
        parsed = command(key, value, given.get("headers", {}))
        assert not isinstance(parsed, Rejection), (given, parsed)


@on_every_page
def test_every_message_that_a_program_schedules_is_accepted(page: Path) -> None:
    """`client.schedule` and `chronos.message`."""
    for args, given in [*calls(page, "schedule"), *calls(page, "message")]:
        given.pop("wait", None)
        assert refusal(as_json(chronos.message(*args, **given))) is None, given


@on_every_page
def test_every_request_is_accepted(page: Path) -> None:
    """The JSON that is posted to /v1/messages, or gives a message a new time."""
    for block in (*blocks(page, "console"), *blocks(page, "sh")):
        for options, body in re.findall(
            r"curl([^\n]*?)/v1/messages\b[^\n]* -d '(.*?)'", block, re.DOTALL
        ):
            if "-X PATCH" in options:
                msgspec.json.decode(body, type=schemas.Reschedule)
            else:
                assert refusal(body.encode()) is None, body


def test_there_are_programs_and_requests_to_check() -> None:
    """The searches find them."""
    assert sum(1 for page in PAGES for _ in calls(page, "produce")) >= 9
    assert sum(1 for page in PAGES for _ in calls(page, "schedule")) >= 4
    assert any(
        "/v1/messages" in block and "-d '" in block
        for page in PAGES
        for block in blocks(page, "console")
    )
