"""The bounds of one step of a master, from the configuration."""

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of one step."""

    messages: int
    """Most records pulled, and most messages selected."""
    bytes: int
    """Most bytes pulled, and most bytes selected."""
    wheel_messages: int
    """Messages in the wheel above which it is shrunk."""
    wheel_bytes: int
    """Bytes in the wheel above which it is shrunk."""
    wheel_horizon_ms: int
    """How far ahead an idle master reads messages into the wheel."""
    pull: bool
    """False: no delay records are pulled, and messages are selected without those that are not pulled."""
    push: bool
    """False: no messages are selected."""
    wait_for_transactions: bool = False
    """True: a message is selected only once every record in the log when it was due is pulled, however long a producer's
    open transaction holds it back. False: every record that was readable then."""
