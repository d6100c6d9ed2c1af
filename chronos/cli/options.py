"""Options that several verbs share, and the forms of their values: times, durations, filters, and
the connection to a service.

A bare number is refused as a time, and as a duration unless it is 0: its unit is never guessed.
`--token-file`, `--cert`, `--cert-key` and `--ca` set environment variables of this process, which
the client reads."""

import functools
import inspect
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, cast

import typer
from msgspec import Struct

from chronos.cli.output import Format, note
from chronos.client.connection import CA, CERT, CERT_KEY
from chronos.client.requests import delay_ms, time_ms
from chronos.core.timefmt import format_time

if TYPE_CHECKING:
    from chronos.client import FilterOptions, Time

Output = Annotated[
    Format,
    typer.Option(
        "-o",
        "--output",
        metavar="text|json",
        help="text for people, or json for programs.",
        show_default=True,
    ),
]
Server = Annotated[
    str,
    typer.Option(
        "--server",
        envvar="CHRONOS_SERVER",
        help="Address of the service, or several of its nodes, with commas between.",
        metavar="URL",
        show_default=True,
    ),
]
NamedServer = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="CHRONOS_SERVER",
        help="Address of a service to ask, or several of its nodes, with commas between.",
        metavar="URL",
    ),
]
MessageId = Annotated[
    str, typer.Argument(metavar="ID", help="The id; bytes that are not UTF-8 as base64:....")
]
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config", "-c", envvar="CHRONOS_CONFIG", metavar="FILE", help="YAML file with settings."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="One setting; it overrides file and variables. May be repeated.",
    ),
]
In = Annotated[
    str | None,
    typer.Option(
        "--in", metavar="DURATION", help="How long from now: 250ms, 90s, 15m, 2h, 1h30m, 7d, 2w."
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="When: RFC 3339 with an offset, such as 2030-01-31T09:00:00+01:00.",
    ),
]

HERE = "http://127.0.0.1:7700"

INTERVAL_MIN_MS = 100
"""Shortest time between two refreshes."""

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "--to",
        metavar="TOPIC",
        help="Only messages for this target topic, or for a pattern such as 'mail*'.",
    ),
]
DueFrom = Annotated[
    str | None,
    typer.Option(
        "--due-from",
        "--from",
        metavar="TIME",
        help="Only messages due at or after this time: RFC 3339, or -2h, now, +30m.",
    ),
]
_DUE_TO = "Only messages due before this time; the same forms."
DueTo = Annotated[str | None, typer.Option("--due-to", "--until", metavar="TIME", help=_DUE_TO)]
OnlyDueTo = Annotated[str | None, typer.Option("--due-to", metavar="TIME", help=_DUE_TO)]
"""Without `--until`, for verbs where that is the end of a pause or could be taken for it."""
IdPrefix = Annotated[
    str | None,
    typer.Option("--id-prefix", metavar="TEXT", help="Only messages whose id begins so."),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="KEY", help="Only messages that are delivered with this Kafka key."
    ),
]
HasHeader = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar="NAME=VALUE",
        help="Only messages with this header. May be repeated.",
    ),
]
Contains = Annotated[
    str | None,
    typer.Option(
        "--contains",
        metavar="TEXT",
        help="Only messages whose id, Kafka key, or name or value of a header contains it.",
    ),
]
OnlySeries = Annotated[bool, typer.Option("--series", help="Only series.")]

FILTER: dict[str, object] = {
    "target": Target,
    "due_from": DueFrom,
    "due_to": DueTo,
    "id_prefix": IdPrefix,
    "key": Key,
    "header": HasHeader,
    "contains": Contains,
    "series": OnlySeries,
}
"""Parameter of `filter_of` -> its option. All default to no condition."""

FILTER_OF_SERIES = FILTER | {"due_to": OnlyDueTo}
"""The options of FILTER, for verbs that pause or resume."""

Verb = TypeVar("Verb", bound=Callable[..., None])


def at_least(least: int) -> Callable[[int | None], int | None]:
    """The callback of an option that takes whole numbers from `least` on."""

    def check(value: int | None) -> int | None:
        if value is not None and value < least:
            raise typer.BadParameter(f"{value} is less than {least}")
        return value

    return check


def confirm(question: str, *, yes: bool, shown: str | None = None, done: str) -> None:
    """Ask before something is done, unless `--yes` was given; exit code 1 if the answer is no.

    `shown`: what `--dry-run` shows, if the verb has it. `done`: what was not done then, such as
    "sent"."""
    if yes:
        return
    if not sys.stdin.isatty():
        look = "" if shown is None else f", or look at the {shown} with --dry-run first"
        raise typer.BadParameter(
            f"stdin is not a terminal, so the command cannot ask: give --yes{look}"
        )
    if not typer.confirm(question, err=True):
        note(f"nothing was {done}")
        raise typer.Exit(1)


def _use_token(path: str | None) -> None:
    """Read the token in the file into the environment variable that the client reads."""
    if path is None:
        return
    try:
        with open(path, encoding="utf-8") as file:
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise typer.BadParameter(f"{path}: {reason}") from None
    if not token:
        raise typer.BadParameter(f"{path} is empty")
    os.environ["CHRONOS_TOKEN"] = token


TokenFile = Annotated[
    None,
    typer.Option(
        "--token-file",
        parser=_use_token,
        metavar="FILE",
        help="File with the token, if the service needs one; without it, $CHRONOS_TOKEN.",
    ),
]
"""The verbs do not use the value: its parser sets the environment variable that the client reads.
The options of TLS work the same way."""


def _use_file(variable: str) -> Callable[[str], None]:
    """The parser of an option that gives a file to the clients of this process."""

    def use(path: str) -> None:
        os.environ[variable] = path

    return use


Cert = Annotated[
    None,
    typer.Option(
        "--cert",
        parser=_use_file(CERT),
        metavar="FILE",
        help=f"PEM file with the certificate to show the service; without it, ${CERT}.",
    ),
]
CertKey = Annotated[
    None,
    typer.Option(
        "--cert-key",
        parser=_use_file(CERT_KEY),
        metavar="FILE",
        help=f"PEM file with the key of --cert, unless that file has it; without it, ${CERT_KEY}.",
    ),
]
Authorities = Annotated[
    None,
    typer.Option(
        "--ca",
        parser=_use_file(CA),
        metavar="FILE",
        help=(
            f"PEM file with the authorities to trust; without it, ${CA}, else those of the system."
        ),
    ),
]


def check_when(at: str | None, delay: str | None) -> None:
    """Exactly one of `--at` and `--in`, and a valid one; typer.BadParameter otherwise."""
    if at is not None and delay is not None:
        raise typer.BadParameter("--in and --at are both given; give one of them")
    if at is None and delay is None:
        raise typer.BadParameter("give a time: --in 90s, or --at 2030-01-31T09:00:00+01:00")
    check_time(at, "--at")
    check_delay(delay, "--in")


def check_delay(text: str | None, option: str) -> None:
    """A duration; typer.BadParameter, which names the option, otherwise."""
    try:
        if text is not None:
            delay_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from None


def interval_s(text: str, option: str) -> float:
    """The seconds between two refreshes; typer.BadParameter, which names the option, if it is no
    duration or too short."""
    check_delay(text, option)
    if (found_ms := delay_ms(text)) < INTERVAL_MIN_MS:
        raise typer.BadParameter(f"{option}: {text} is less than {INTERVAL_MIN_MS} ms")
    return found_ms / 1_000


def check_time(text: str | None, option: str) -> None:
    """A time in RFC 3339; typer.BadParameter, which names the option, otherwise."""
    try:
        if text is not None:
            time_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from None


def moment(text: str | None, option: str) -> str | None:
    """RFC 3339 from RFC 3339, `now`, or a time before or after now: `-2h`, `+30m`."""
    if text is None:
        return None
    now_ms = time.time_ns() // 1_000_000
    try:
        if text == "now":
            return format_time(now_ms)
        if text[:1] == "-":
            return format_time(max(0, now_ms - delay_ms(text[1:])))
        if text[:1] == "+":
            return format_time(now_ms + delay_ms(text[1:]))
        time_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}; relative to now: -2h, now, +30m") from None
    return text


class ChangeOptions(Struct, frozen=True):
    """A change of messages, as it was asked for."""

    verb: Literal["cancel", "reschedule", "fire", "pause", "resume"]
    delay: str | None = None
    at: str | None = None
    until: "Time | None" = None
    """Of a pause: when the series goes on."""


class SparkOptions(Struct, frozen=True, kw_only=True):
    """The options of Spark, and the archive that its job reads or writes."""

    location: str
    master: str
    conf: list[str]
    """`KEY=VALUE`."""


class ClusterOptions(Struct, frozen=True, kw_only=True):
    """The options of a job that reads or writes the Kafka cluster."""

    config: str | None
    """The path of the configuration."""
    settings: list[str]
    """`KEY=VALUE` over the configuration."""
    reader: list[str]
    """`KEY=VALUE` for Spark's Kafka source."""
    other_cluster: bool


def filter_of(
    target: str | None = None,
    due_from: str | None = None,
    due_to: str | None = None,
    id_prefix: str | None = None,
    key: str | None = None,
    header: list[str] | None = None,
    contains: str | None = None,
    series: bool = False,
) -> "FilterOptions":
    """The filter of the options in `FILTER`, empty without any; typer.BadParameter for a value that
    cannot be sent."""
    from chronos.cli.output import given, note
    from chronos.client import requests

    found: FilterOptions = {
        "target": target,
        "due_from": moment(due_from, "--due-from"),
        "due_to": moment(due_to, "--due-to"),
        "id_prefix": None if id_prefix is None else given(id_prefix),
        "key": None if key is None else given(key),
        "headers": _header_conditions(header or []) or None,
        "contains": contains,
        "series": series,
    }
    matching: FilterOptions = {  # type: ignore[assignment]
        name: value for name, value in found.items() if value is not None and value is not False
    }
    try:
        requests.conditions(**matching)
    except ValueError as error:
        text = str(error).replace("due_from", "--due-from").replace("due_to", "--due-to")
        raise typer.BadParameter(text) from None
    if id_prefix is not None and id_prefix.endswith("*"):
        note(
            f"--id-prefix is no pattern: only ids that begin with {id_prefix!r} match, the '*' "
            "included"
        )
    return matching


def _header_conditions(texts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in map(header_condition, texts):
        if found.setdefault(name, value) != value:
            raise typer.BadParameter(
                f"--header: {name} is given with two values; a filter has one for each name"
            )
    return found


def header_condition(text: str) -> tuple[str, str]:
    """Name and value of `--header NAME=VALUE`; typer.BadParameter for another text."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise typer.BadParameter(f"--header: {text!r} is not NAME=VALUE")
    return name, value


def with_connection(verb: Verb) -> Verb:
    """Add the options for the token and TLS to a verb, which does not see them: their parsers give
    them to the clients."""
    options = {"token_file": TokenFile, "cert": Cert, "cert_key": CertKey, "ca": Authorities}

    @functools.wraps(verb)
    def run(*arguments: object, **values: object) -> None:
        verb(*arguments, **{name: value for name, value in values.items() if name not in options})

    added = [_option(name, kind) for name, kind in options.items()]
    return _with_options(verb, run, [*inspect.signature(verb).parameters.values(), *added])


def with_filter(verb: Verb, options: dict[str, object] = FILTER) -> Verb:
    """Put the options of a filter in the place of a verb's parameter `matching`, which is their
    filter."""

    @functools.wraps(verb)
    def run(**values: object) -> None:
        chosen = {name: values.pop(name) for name in options}
        verb(matching=filter_of(**chosen), **values)  # type: ignore[arg-type]

    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(verb).parameters.items():
        added = [_option(each, kind) for each, kind in options.items()]
        parameters += added if name == "matching" else [parameter]
    return _with_options(verb, run, parameters)


def with_filter_of_series(verb: Verb) -> Verb:
    """`with_filter` for verbs that pause or resume."""
    return with_filter(verb, FILTER_OF_SERIES)


def _option(name: str, kind: object) -> inspect.Parameter:
    """The parameter of an option that is not given by default."""
    default = False if kind is OnlySeries else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _with_options(
    verb: Verb, run: Callable[..., None], parameters: list[inspect.Parameter]
) -> Verb:
    """`run`, with these parameters for those that ask for its signature."""
    run.__signature__ = inspect.signature(verb).replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return cast(Verb, run)
