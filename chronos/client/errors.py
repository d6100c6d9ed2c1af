"""Errors of the client.

    ChronosError
    └── ClientError            the call failed; `exit_code` is that of the command line
        ├── Unreachable   3    no answer from the address, or none in time
        ├── NotFound      4    no message has the id
        ├── Refused       2    the request is invalid; `errors` names the fields
        ├── Rejected      1    the shard rejected the message; only `schedule(wait=...)` and `confirm` raise it
        └── ServiceFailed 1    the service could not carry out the request now

An argument that is wrong on its own, such as a time without a zone, raises ValueError or TypeError.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chronos.errors import ChronosError

if TYPE_CHECKING:
    from chronos.client.models import Scheduled


class ClientError(ChronosError):
    """The call failed."""


class Unreachable(ClientError):
    """No answer from the address, or none in time. The request may have been carried out."""

    exit_code = 3


class NotFound(ClientError):
    """No message has the id."""

    exit_code = 4


class Refused(ClientError):
    """The request is invalid and would be refused again. `errors` lists the errors, each with its field."""

    exit_code = 2

    def __init__(self, text: str, errors: Sequence[Mapping[str, Any]] = ()) -> None:
        self.errors = list(errors)
        super().__init__(text)


class Rejected(ClientError):
    """The shard rejected the message, nearly always because its id is taken. Its record is in the rejected topic.

    `scheduled` says what is known of it; its `result` is `conflict` or `rejected`.
    """

    def __init__(self, text: str, scheduled: "Scheduled | None" = None) -> None:
        self.scheduled = scheduled
        super().__init__(text)


class ServiceFailed(ClientError):
    """The service answered that it cannot carry out the request now."""
