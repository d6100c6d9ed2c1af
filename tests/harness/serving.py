"""Servers of the standard library that a test runs beside what it tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer

POLL_S = 0.01
"""How long the end of a server takes at most; the library's own value is half a second."""


@contextmanager
def serving(server: TCPServer) -> Iterator[str]:
    """Serve requests in a thread until the block ends, and close the server; gives its address as
    `http://HOST:PORT`."""
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
    thread.start()
    try:
        host, port, *_ = server.socket.getsockname()
        yield f"http://{host}:{port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    """Answers requests, and writes no line for each."""

    def reply(self, status: int, body: bytes) -> None:
        """Send an answer."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""
