"""`chronos registry`: registered nodes, topics and clusters, the routes to the nodes, and
configuration by namespace; with the options and help of its verbs."""

from typing import Annotated, Any

import typer

from chronos.cli.options import HERE, Output, Server, with_connection
from chronos.cli.output import (
    RETRIES,
    Format,
    connect,
    fetch,
    note,
    printable,
    put,
    put_json,
    relative,
    table,
)
from chronos.client import Client, ClientError, NotFound, Unreachable, servers
from chronos.client.connection import addresses, authorization

ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="Another cluster than that of the node asked."),
]
OnlyClusterOption = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Only this cluster.")
]
Namespace = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="Namespace of the configuration.")
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="Name of a value in the namespace.")]

registry_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Show the nodes that are registered and the routes to them; change the configuration for clients.

    Every node serves a registry, with which all nodes register. Registries store no registrations and exchange nothing; the configuration for clients is kept by the cluster, or by a standalone node.

    \b
    Examples:
      chronos registry nodes
      chronos registry routes --shard 3
    """,  # noqa: E501
)
config_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Show and change the configuration that registries keep for clients, by namespace.

    The coordinator keeps the values: they survive a restart of all nodes.

    \b
    Examples:
      chronos registry config set shop currency EUR
      chronos registry config get shop
    """,
)
registry_app.add_typer(config_app, name="config")


@registry_app.command()
@with_connection
def nodes(
    cluster: OnlyClusterOption = None,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """List the nodes that are registered with the node asked, of all clusters.

    \b
    Examples:
      chronos registry nodes
      chronos registry nodes --server http://chronos-2:7700 -o json
    """
    found = fetch(server, output, servers.nodes(cluster))
    if found is None:
        return
    columns = [
        ("NODE", "left"),
        ("CLUSTER", "left"),
        ("ADDRESS", "left"),
        ("MASTER OF", "left"),
        ("FOLLOWS", "left"),
        ("WRITES", "left"),
        ("REGISTERED", "left"),
    ]
    put(table(columns, [_node(node) for node in found["nodes"]]))


@registry_app.command()
@with_connection
def routes(
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Default: the delay topic.")
    ] = None,
    shard: Annotated[
        int | None, typer.Option("--shard", metavar="N", min=0, help="Only this shard.")
    ] = None,
    cluster: ClusterOption = None,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Show which node serves each shard of a topic, as master or follower. Exit code 4 if no node
    is registered for it.

    \b
    Examples:
      chronos registry routes
      chronos registry routes --topic chronos.progress --shard 0
    """
    found = fetch(server, output, servers.routes(topic=topic, shard=shard, cluster=cluster))
    if found is None:
        return
    columns = [
        ("SHARD", "right"),
        ("MASTER", "left"),
        ("ADDRESS", "left"),
        ("FOLLOWERS", "left"),
        ("PERMITS", "left"),
    ]
    put(table(columns, [_route(route) for route in found["routes"]]))
    missing = found["partitions"] - len(found["routes"])
    if missing and shard is None:
        note(f"no node is registered for {missing} of {found['partitions']} shards")


@registry_app.command()
@with_connection
def topics(
    cluster: OnlyClusterOption = None,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """List the topics that the masters of the shards have registered.

    \b
    Examples:
      chronos registry topics
    """
    found = fetch(server, output, servers.topics(cluster))
    if found is None:
        return
    columns = [("TOPIC", "left"), ("CLUSTER", "left"), ("PARTITIONS", "right"), ("PERMITS", "left")]
    rows = [
        [
            printable(each["topic"]),
            printable(each["cluster"]),
            str(each["partitions"]),
            ", ".join(each["permissions"]),
        ]
        for each in found["topics"]
    ]
    put(table(columns, rows))


@registry_app.command(name="remove-topic")
@with_connection
def remove_topic(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A registered topic.")],
    cluster: ClusterOption = None,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Remove a topic from the registry of the node asked, until a master registers a change. The
    topic itself stays.

    \b
    Examples:
      chronos registry remove-topic old.delay --cluster old
    """
    with connect(server) as client:
        found = client.call(servers.remove_topic(topic, cluster))
    put_json(found) if output is Format.json else print(
        f"{printable(topic)} is removed from the registry of {server}"
    )


@registry_app.command()
@with_connection
def clusters(
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """List the clusters with their registered nodes and shards.

    \b
    Examples:
      chronos registry clusters
    """
    found = fetch(server, output, servers.clusters())
    if found is None:
        return
    rows = [
        [
            printable(each["cluster"]),
            ", ".join(map(printable, each["nodes"])),
            ranges(each["shards"]),
        ]
        for each in found["clusters"]
    ]
    put(table([("CLUSTER", "left"), ("NODES", "left"), ("SHARDS", "left")], rows))


@config_app.command(name="get")
@with_connection
def get_config(
    namespace: Annotated[
        str | None,
        typer.Argument(
            metavar="NAMESPACE", help="Namespace; without it, the namespaces are listed."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="Only this value, as it is.")
    ] = None,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Show the namespaces, the values of one, or one value, as the registry of the node asked has
    them.

    \b
    Examples:
      chronos registry config get
      chronos registry config get shop currency
    """
    with connect(server) as client:
        found = client.call(servers.config(namespace, key))
    if output is Format.json:
        put_json(found)
    elif key is not None:
        print(printable(found["value"]))
    elif namespace is not None:
        put(
            table(
                [("KEY", "left"), ("VALUE", "left")],
                [[*map(printable, pair)] for pair in found["values"].items()],
            )
        )
    else:
        for name in found["namespaces"]:
            print(printable(name))


@config_app.command(name="set")
@with_connection
def set_config(
    namespace: Namespace,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="At most 16,384 characters.")],
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Set a value in the registries of the node asked and of the nodes of its cluster that are
    registered with it. Exit code 3 if one does not answer, or if another node answers at its
    address.

    \b
    Examples:
      chronos registry config set shop currency EUR
    """
    change_config(server, output, namespace, key, value)


@config_app.command(name="delete")
@with_connection
def delete_config(
    namespace: Namespace,
    key: Key,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Delete a value from the registries of the node asked and of the nodes of its cluster that are
    registered with it. Exit code 3 if one does not answer, or if another node answers at its
    address.

    \b
    Examples:
      chronos registry config delete shop currency
    """
    change_config(server, output, namespace, key, None)


def _node(node: dict[str, Any]) -> list[str]:
    led, followed = (
        ranges([shard["shard"] for shard in node["shards"] if shard["role"] == role])
        for role in ("master", "follower")
    )
    writes = "yes" if node["writable"] else "no"
    names = [printable(node[name]) for name in ("node", "cluster", "address")]
    return [*names, led, followed, writes, relative(node["registered_at"])]


def ranges(numbers: list[int]) -> str:
    """Numbers in their order, those that follow each other as `3-7`; `-` for none."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("-".join(map(str, each)) for each in found) or "-"


def _route(route: dict[str, Any]) -> list[str]:
    master = route["master"] or {"node": "-", "address": "-"}
    followers = ", ".join(printable(follower["node"]) for follower in route["followers"]) or "-"
    permits = ", ".join(route["permissions"]) or "-"
    return [
        str(route["shard"]),
        printable(master["node"]),
        printable(master["address"]),
        followers,
        permits,
    ]


def change_config(server: str, output: Format, namespace: str, key: str, value: str | None) -> None:
    """Set or delete a value in the registries of all nodes of the cluster that are registered with
    the node asked.

    Registries exchange nothing. The error of one of them is raised when all were asked. A
    registered address without TLS, or that the node itself did not register, gets no token unless
    the user gave it: it may be the address of any machine. Behind a load balancer another node may
    answer than the one that was asked: its name is in the answer."""
    change = (
        servers.delete_config(namespace, key)
        if value is None
        else servers.set_config(namespace, key, value)
    )
    with connect(server) as client:
        nodes = client.call(servers.nodes(None))
        asked = client.server
    given = {asked, *addresses(server)[0]}
    clusters = {node["cluster"] for node in nodes["nodes"] if node["node"] == nodes["registry"]}
    results: list[dict[str, str]] = []
    failure: ClientError | None = None
    for node in nodes["nodes"]:
        if node["cluster"] not in clusters:
            continue
        # The registry asked is reached by the address that the user gave.
        address = asked if node["node"] == nodes["registry"] else node["address"]
        is_trusted = address in given or address.startswith("https://")
        try:
            with (
                connect(address)
                if is_trusted
                else Client(address, retries=RETRIES, token="") as client
            ):
                answered = client.call(change).get("registry", node["node"])
            result = "done"
            if answered != node["node"]:
                result = f"{answered} answered instead of it"
                failure = failure or Unreachable(
                    f"{address} does not lead to node {node['node']}, whose registry was not "
                    f"changed: {answered} answered. Ask a node by an address of its own, not by "
                    "that of a load balancer: --server, and admin.advertised of each node"
                )
        except NotFound:
            # The registries of one cluster share their configuration: the first one that was asked
            # has deleted it for all.
            result = (
                "done" if any(each["result"] == "done" for each in results) else "has no such value"
            )
        except ClientError as error:
            result, failure = str(error), error
            if not is_trusted and authorization(None):
                result += (
                    f"; no token was sent to {address}, which has no TLS: name it with --server, "
                    "or use TLS"
                )
        results.append({"node": node["node"], "address": node["address"], "result": result})
    if output is Format.json:
        put_json({"registries": results})
    else:
        put(
            table(
                [("REGISTRY", "left"), ("RESULT", "left")],
                [[printable(r["node"]), printable(r["result"])] for r in results],
            )
        )
    if failure is not None:
        raise failure
    if all(each["result"] == "has no such value" for each in results):
        raise NotFound(f"no registry has a value {key} in namespace {namespace}")
