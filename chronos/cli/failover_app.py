"""The verbs of `chronos failover`, their options and their help. `app` adds them to the command line."""

from typing import Annotated

import typer

from chronos.cli.options import HERE, Authorities, Cert, CertKey, Output, Server, TokenFile, at_least
from chronos.cli.output import Format

failover_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Show the health of the masters, or permit the replacement of one that is stuck.

    Needs `failover.on_unhealthy: armed` or `auto`; `auto` is the default with three nodes or more. A master whose session is lost is replaced without it.

    \b
    Examples:
      chronos failover status
      chronos failover arm 3
    """,
)


@failover_app.command()
def status(
    output: Output = Format.text,
    server: Server = HERE,
    token_file: TokenFile = None,
    cert: Cert = None,
    cert_key: CertKey = None,
    ca: Authorities = None,
) -> None:
    """Show what the probes of the nodes find of each shard's master.

    \b
    Examples:
      chronos failover status
      chronos failover status -o json
    """
    from chronos.cli.failover import show

    show(server, output)


@failover_app.command()
def arm(
    shard: Annotated[int, typer.Argument(callback=at_least(0), metavar="SHARD", help="Number of the shard.")],
    output: Output = Format.text,
    server: Server = HERE,
    token_file: TokenFile = None,
    cert: Cert = None,
    cert_key: CertKey = None,
    ca: Authorities = None,
) -> None:
    """Permit one failover of a shard within the next 15 s, if two thirds of the nodes find its master unhealthy.

    \b
    Examples:
      chronos failover arm 3
    """
    from chronos.cli import verbs

    verbs.transfer(server, output, f"/v1/shards/{shard}/arm")
