"""Schedule, find and cancel a message with the client that openapi-python-client makes:

    main.py SERVER ID TOPIC

Prints the result of each step on a line."""

import sys
from datetime import UTC, datetime, timedelta

from chronos_generated import Client
from chronos_generated.api.default import cancel, get, list_, schedule
from chronos_generated.models import Accepted, ActionResult, Message, MessageInfo, Page, Target

server, id, topic = sys.argv[1:]
client = Client(base_url=server)
due = datetime.now(UTC) + timedelta(hours=1)

message = Message(
    id=id, target=Target(topic=topic), value="from Python", deliver_at=due.isoformat()
)
scheduled = schedule.sync(client=client, body=message, wait="5s")
assert isinstance(scheduled, Accepted), scheduled
print(scheduled.result)

found = get.sync(id, client=client)
assert isinstance(found, MessageInfo), found
print(found.state)

page = list_.sync(client=client, target=topic, due_from=(due - timedelta(minutes=1)).isoformat())
assert isinstance(page, Page), page
print(any(each.id == id for each in page.messages))

cancelled = cancel.sync(id, client=client)
assert isinstance(cancelled, ActionResult), cancelled
print(cancelled.result)
