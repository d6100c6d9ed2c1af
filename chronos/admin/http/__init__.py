"""The HTTP server: connections, senders and their tokens, routes, schemas, checks, problems, the
audit trail, the OpenAPI description and the files of the console.

In: bytes of clients. Out: a checked `context.Call` for a handler, and its answer: JSON, a problem,
or the bytes of a checkpoint. The handlers are in `admin.messages`, `admin.letters` and
`admin.cluster`; `whoami`, `/metrics`, `/openapi.json` and the console are answered by `server`."""
