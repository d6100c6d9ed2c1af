"""The verbs of `chronos registry`, their options and their help. `app` adds them to the command
line."""

from typing import Annotated

import typer

from chronos.cli.options import HERE, Output, Server, with_connection
from chronos.cli.output import Format

ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="Another cluster than that of the node asked."),
]
OnlyClusterOption = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Only this cluster.")
]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Name of a registered node.")]
Namespace = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="Namespace of the configuration.")
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="Name of a value in the namespace.")]

registry_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Show the nodes that are registered and the routes to them; change configuration and write permissions.

    Every node serves a registry, with which all nodes register. Registries store nothing and exchange nothing.

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
    from chronos.cli.service.registry import show_nodes

    show_nodes(server, output, cluster)


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
    from chronos.cli.service.registry import show_routes

    show_routes(server, output, {"topic": topic, "shard": shard, "cluster": cluster})


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
    from chronos.cli.service.registry import show_topics

    show_topics(server, output, cluster)


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
    from chronos.cli.service.registry import remove_topic as remove

    remove(server, output, topic, cluster)


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
    from chronos.cli.service.registry import show_clusters

    show_clusters(server, output)


@registry_app.command(name="wipe-write")
@with_connection
def wipe_write(
    node: NodeArgument,
    cluster: ClusterOption = None,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Take the write permission from a node, so that clients write to other nodes; in a cluster the
    node is drained too.

    \b
    Examples:
      chronos registry wipe-write chronos-2
    """
    from chronos.cli.service.registry import allow_writes

    allow_writes(server, output, node, cluster, allowed=False)


@registry_app.command(name="restore-write")
@with_connection
def restore_write(
    node: NodeArgument,
    cluster: ClusterOption = None,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Give a node its write permission back, and end its drain.

    \b
    Examples:
      chronos registry restore-write chronos-2
    """
    from chronos.cli.service.registry import allow_writes

    allow_writes(server, output, node, cluster, allowed=True)


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
    from chronos.cli.service.registry import show_config

    show_config(server, output, namespace, key)


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
    from chronos.cli.service.registry import change_config

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
    from chronos.cli.service.registry import change_config

    change_config(server, output, namespace, key, None)
