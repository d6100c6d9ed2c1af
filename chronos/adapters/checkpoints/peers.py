"""What one node asks of another, over HTTP: a checkpoint of a shard, as a stream.

Blocking, for the thread of the shard that has nothing else to do until it has a store.
"""

import http.client
import json
from base64 import b64encode
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from chronos.adapters.checkpoints.files import CHUNK_BYTES
from chronos.errors import Retry

BEGIN_S = 120.0
"""How long a node may take to begin: it reads all of its store first, to say what its digest is."""

SILENCE_S = 10.0
"""How long it may send nothing after that; then it hangs."""

PROBLEM_BYTES_MAX = 100_000


def checkpoint_of(address: str, shard: int, *, node: str, token: str) -> Iterator[bytes]:
    """A checkpoint of the shard, made at `address` now. Raises Retry, also in the middle.

    `node` asks, and shows the `token` that the coordinator gave out with its membership.
    """
    url = urlsplit(address)
    # Without the password that a URL may hold.
    place = f"{url.hostname}:{url.port}"
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.hostname or "", url.port, timeout=BEGIN_S)
    try:
        connection.connect()
        sock = connection.sock
        headers = {"Chronos-Node": node, "Chronos-Token": token}
        if url.username is not None:
            pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        connection.request("GET", f"{url.path.rstrip('/')}/v1/shards/{shard}/checkpoint", headers=headers)
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise Retry(f"{place} gives none: {_reason(answer)}")
        sock.settimeout(SILENCE_S)
        while chunk := answer.read(CHUNK_BYTES):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise Retry(f"{place} does not answer, or not to the end: {str(error) or type(error).__name__}") from error
    finally:
        connection.close()


def _reason(answer: http.client.HTTPResponse) -> str:
    try:
        return str(json.loads(answer.read(PROBLEM_BYTES_MAX))["detail"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status}"
