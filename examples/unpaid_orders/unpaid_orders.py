"""Closes orders that were not paid in time: the closing is scheduled with the order, the payment
cancels it.

    python unpaid_orders.py [--server URL] [--after 3s]

Plays a day of a shop against a running Chronos on its embedded log: three orders, two of them paid,
one of those too late. A real shop would keep `Shop` as it is; only `closings` reads differently on
Kafka (see README.md)."""

import argparse
import json
import sys
import time
from collections.abc import Iterator

from chronos import Client
from chronos.client import NotFound

TOPIC = "orders.close"
"""Where closings are delivered. The shop itself reads it."""

PATIENCE_S = 30.0
"""How long the play waits for what must come."""


class Shop:
    """Orders and their state: open, paid or closed."""

    def __init__(self, client: Client, close_after: str) -> None:
        self._client = client
        self._close_after = close_after
        self.orders: dict[str, str] = {}

    def place(self, order: str) -> None:
        """Take an order, and schedule what happens if nobody pays.

        The id is made from the order, so the order is all that a cancel needs. `ignore`: if this is
        called twice, after a crash in between, the second call changes nothing."""
        self.orders[order] = "open"
        self._client.schedule(
            TOPIC,
            json.dumps({"order": order}),
            delay=self._close_after,
            id=f"close-{order}",
            key=order,
            on_conflict="ignore",
        )

    def pay(self, order: str) -> bool:
        """Take the money; False if the order is already closed and the money must be refunded.

        The shop's own data decide. The cancel only saves a delivery: if it comes too late, `close`
        checks the order again."""
        if self.orders[order] == "closed":
            return False
        self.orders[order] = "paid"
        self._client.cancel(f"close-{order}")
        return True

    def close(self, order: str) -> bool:
        """A closing was delivered: close the order unless it was paid in the meantime."""
        if self.orders.get(order) != "open":
            return False
        self.orders[order] = "closed"
        return True


def closings(client: Client) -> Iterator[str]:
    """Yields the orders whose closing was delivered, and an empty text after half a second without
    one."""
    offset = None
    while True:
        try:
            found = client.records(TOPIC, offset=offset, wait="500ms")
        except NotFound:  # the first record creates the topic
            time.sleep(0.1)
            yield ""
            continue
        offset = found["next_offset"]
        for record in found["records"]:
            yield json.loads(record["value"])["order"]
        if not found["records"]:
            yield ""


def main() -> int:
    """0 when everything went as it should."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--server", help="address of Chronos; default: $CHRONOS_SERVER or http://127.0.0.1:7700"
    )
    parser.add_argument("--after", default="3s", help="how long a customer has to pay (default 3s)")
    arguments = parser.parse_args()
    run = f"{time.time_ns() // 1_000_000:x}"  # orders of their own for every play
    anna, ben, cleo = (f"{name}-{run}" for name in ("anna", "ben", "cleo"))

    with Client(arguments.server) as client:
        shop = Shop(client, arguments.after)
        for order in (anna, ben, cleo):
            shop.place(order)
            print(f"placed   {order}: closes in {arguments.after} unless it is paid")
        shop.pay(anna)
        print(f"paid     {anna}: {client.get(f'close-{anna}').state}")

        deadline = time.monotonic() + PATIENCE_S
        waiting = {ben, cleo}
        for order in closings(client):
            if order in waiting:
                waiting.remove(order)
                print(
                    f"closed   {order}" if shop.close(order) else f"ignored  the closing of {order}"
                )
            elif order == anna:
                print("WRONG    a cancelled closing was delivered", file=sys.stderr)
                return 1
            if not waiting:
                break
            if time.monotonic() > deadline:
                print(f"WRONG    nothing came for {', '.join(sorted(waiting))}", file=sys.stderr)
                return 1
        print(
            f"refunded {ben}: the order was closed before" if not shop.pay(ben) else f"paid {ben}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
