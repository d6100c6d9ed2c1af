"""A checkpoint from another node of the cluster, which makes it for the request and sends it over
HTTP.

Only the stream is read here: `checkpoints.files` unpacks it and compares every byte with the
manifest."""

import http.client
import json
import ssl
from base64 import b64encode
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from chronos.adapters.checkpoints.files import CHUNK_BYTES
from chronos.core import certificates
from chronos.errors import Retry

CONNECT_S = 10.0
"""How long a connection may take: meanwhile no other shard of this node is restored."""

BEGIN_S = 120.0
"""How long a node may take to start: it reads its whole store first, for the digest."""

SILENCE_S = 10.0
"""How long it may then send nothing before it counts as hanging."""

PROBLEM_BYTES_MAX = 100_000
"""Most that is read of an error answer."""


def fetch_checkpoint(
    address: str, shard: int, *, node: str, token: str, tls: ssl.SSLContext | None = None
) -> Iterator[bytes]:
    """Stream a checkpoint of the shard that the node at `address` makes now. Raises Retry, also in
    the middle.

    `node`: this node. `token`: proof of its membership, which the coordinator shows to the other
    nodes. `tls`: for an address of HTTPS; None: the authorities of the system."""
    url = urlsplit(address)
    # Without the password that the URL may hold.
    place = f"{url.hostname}:{url.port}"
    connection = (
        http.client.HTTPSConnection(url.hostname or "", url.port, timeout=CONNECT_S, context=tls)
        if url.scheme == "https"
        else http.client.HTTPConnection(url.hostname or "", url.port, timeout=CONNECT_S)
    )
    try:
        connection.connect()
        sock = connection.sock
        sock.settimeout(BEGIN_S)
        headers = {"Chronos-Node": node, "Chronos-Token": token}
        if url.username is not None:
            pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        connection.request(
            "GET", f"{url.path.rstrip('/')}/v1/shards/{shard}/checkpoint", headers=headers
        )
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise Retry(f"{place} sends no checkpoint: {_reason(answer)}")
        sock.settimeout(SILENCE_S)
        while chunk := answer.read(CHUNK_BYTES):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise Retry(
            f"{place} does not answer, or stopped answering: {certificates.reason(error)}"
        ) from error
    finally:
        connection.close()


def _reason(answer: http.client.HTTPResponse) -> str:
    try:
        return str(json.loads(answer.read(PROBLEM_BYTES_MAX))["detail"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status}"
