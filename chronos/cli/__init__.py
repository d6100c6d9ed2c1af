"""The command line: `chronos VERB`, entry `main`.

`app` declares the verbs, or adds those that other modules declare; the modules of `messages`,
`service` and `spark` execute them; `output` prints. Data goes to stdout, everything else to stderr.
Exit codes: 0 ok, 1 failure, 2 usage, configuration or a missing package, 3 a dependency is
unreachable or Spark cannot be started, 4 not found, 5 store corrupt, 6 not proved (`chronos
audit`), 128 + n ended by signal n. Some verbs handle Ctrl-C themselves: then it is 0 (`serve`,
`tail`, `top`) or 1 (bulk operations, Spark). The modules of most verbs are imported when the verb
runs, so that verbs that only send requests to a service start quickly and need the base
installation alone."""

import sys
from typing import NoReturn

from chronos.errors import ChronosError

EXTRAS = {
    "confluent_kafka": "server",
    "cryptography": "server",
    "fsspec": "server",
    "jwt": "server",
    "prometheus_client": "server",
    "pydantic": "server",
    "pydantic_core": "server",
    "rocksdict": "server",
    "structlog": "server",
    "yaml": "server",
    "kazoo": "zookeeper",
    "opentelemetry": "otel",
    "delta": "spark",
    "pandas": "spark",
    "py4j": "spark",
    "pyarrow": "spark",
    "pyspark": "spark",
}
"""Imported modules, and the extra of the distribution that installs each."""

SPARK_VERBS = ("archive", "audit", "backfill", "restore")
"""Verbs whose extra has the packages of the server too."""


def main() -> None:
    """Run the command in `sys.argv`; ends the process."""
    from chronos.cli.output import OutputClosed, complain, discard_stdout, guard_stdout

    guard_stdout()
    try:
        try:
            from chronos.cli.app import app

            app(prog_name="chronos")
        finally:
            sys.stdout.flush()
    except OutputClosed:
        discard_stdout()
        sys.exit(0)
    except ChronosError as error:
        discard_stdout()
        complain(str(error))
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        _explain(error)


def _explain(error: ModuleNotFoundError) -> NoReturn:
    """Say which extra has the module; a module of no extra is a fault of the installation, and
    stays a traceback."""
    from chronos.cli.output import complain

    module = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    if extra is None:
        raise error
    if sys.argv[1:2] and sys.argv[1] in SPARK_VERBS:
        extra = "spark"
    complain(
        f"the Python package {module} is missing; install it with: pip install "
        f"'kafka-chronos[{extra}]'"
    )
    sys.exit(2)
