"""Options that several verbs share, and how their values are written."""

import os
from collections.abc import Callable
from typing import Annotated

import typer

from chronos.cli.output import Format
from chronos.client.tls import CA, CERT, CERT_KEY


def at_least(least: int) -> Callable[[int | None], int | None]:
    """The callback of an option that takes whole numbers from `least` on."""

    def check(value: int | None) -> int | None:
        if value is not None and value < least:
            raise typer.BadParameter(f"{value} is less than {least}")
        return value

    return check


Output = Annotated[
    Format,
    typer.Option(
        "-o", "--output", metavar="text|json", help="text for people, or json for programs.", show_default=True
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
MessageId = Annotated[str, typer.Argument(metavar="ID", help="The id; bytes that are not UTF-8 as base64:....")]
ConfigFile = Annotated[
    str | None,
    typer.Option("--config", "-c", envvar="CHRONOS_CONFIG", metavar="FILE", help="YAML file with settings."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="One setting; it overrides file and variables. May be repeated."
    ),
]
In = Annotated[
    str | None, typer.Option("--in", metavar="DURATION", help="How long from now: 250ms, 90s, 15m, 2h, 1h30m, 7d, 2w.")
]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="When: RFC 3339 with an offset, such as 2030-01-31T09:00:00+01:00."),
]


def _use_token(path: str | None) -> None:
    """Give the token in the file to the clients of this process."""
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
"""The verbs do not use the value: its parser gives the token to the clients. So it is with the files of TLS."""


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
        help=f"PEM file with the authorities to trust; without it, ${CA}, else those of the system.",
    ),
]

HERE = "http://127.0.0.1:7700"
