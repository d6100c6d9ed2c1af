"""What the client raises.

    ChronosError
    └── ClientError            the call did not do what it was asked to; `exit_code` is that of the command line
        ├── Unreachable   3    no answer from the address, or none in time
        ├── NotFound      4    no message has the id
        ├── Refused       2    the request is wrong; `errors` names the fields
        ├── Rejected      1    the shard rejected the message; only `schedule(wait=...)` raises it
        └── ServiceFailed 1    the service could not do it now

A value that no request can be made of, such as a time without a zone, is a ValueError or a TypeError.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from chronos.errors import ChronosError


class ClientError(ChronosError):
    """The call did not do what it was asked to."""


class Unreachable(ClientError):
    """No answer from the address, or none in time. Whether the request was carried out is not known."""

    exit_code = 3


class NotFound(ClientError):
    """No message has the id."""

    exit_code = 4


class Refused(ClientError):
    """The request is wrong and will be refused again. `errors` holds the faults, field by field."""

    exit_code = 2

    def __init__(self, text: str, errors: Sequence[Mapping[str, Any]] = ()) -> None:
        self.errors = list(errors)
        super().__init__(text)


class Rejected(ClientError):
    """The log has the message, and its shard rejected it: the id is taken. It is in the rejected topic."""


class ServiceFailed(ClientError):
    """The service answered that it cannot do it, at least not now."""
