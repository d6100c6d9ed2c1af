"""Which of Read and Write every client of Kafka may do on a topic: what ACLs allow to all, or both
where the brokers check no permissions.

The permissions of this client itself are described with the topic (`topics`)."""

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from chronos.adapters.kafka.connection import (
    ADMIN,
    FORBIDDEN_CODES,
    Connection,
)
from chronos.adapters.kafka.topics import _broker_settings

EVERYBODY = "User:*"
"""The principal of an ACL for all clients."""

OPERATIONS = {"Read": AclOperation.READ, "Write": AclOperation.WRITE}


def public_operations(connection: Connection, topic: str) -> list[str]:
    """Return which of Read and Write every client may do: without an authorizer both, otherwise
    those that an ACL allows to all.

    Empty also if Chronos may not read ACLs, which takes the permission Describe on the cluster.
    Raises LogUnavailable."""
    admin = AdminClient(connection.asking(ADMIN))
    matching = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.MATCH,
        EVERYBODY,
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        AclPermissionType.ALLOW,
    )
    try:
        if not _has_authorizer(admin, connection):
            return list(OPERATIONS)
        asked = admin.describe_acls(matching, request_timeout=connection.request_timeout_s)
        allowed = {acl.operation for acl in asked.result(connection.answer_s)}
    except TimeoutError:
        raise connection.unanswered(f"asking for the ACLs of {topic}") from None
    except KafkaException as error:
        if error.args[0].code() in FORBIDDEN_CODES:
            return []
        raise connection.unavailable(f"asking for the ACLs of {topic}", error) from error
    return [
        word for word, operation in OPERATIONS.items() if allowed & {operation, AclOperation.ALL}
    ]


def _has_authorizer(admin: AdminClient, connection: Connection) -> bool:
    """Return whether the brokers check permissions: a request for the ACLs has no error where they
    do not (measured)."""
    broker = next(iter(admin.list_topics(timeout=connection.request_timeout_s).brokers))
    asked = _broker_settings(admin, connection, broker)
    return bool(asked.result(connection.answer_s)["authorizer.class.name"].value)
