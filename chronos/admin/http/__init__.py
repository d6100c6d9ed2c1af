"""The HTTP server: connections, senders and their tokens, routes, schemas, checks, problems, the
audit trail.

In: bytes of clients. Out: a checked `context.Call` for a handler, and its answer as JSON or a
problem. The handlers are in `admin.messages`, `admin.letters` and `admin.cluster`."""
