"""The command line: `chronos VERB`, entry `main`.

    app (verbs, options, help) -> client verbs | serve | doctor -> output

Data goes to stdout, everything else to stderr. Exit codes: 0 ok, 1 failure, 2 usage or configuration, 3 a
dependency is unreachable, 4 not found, 5 store corrupt. Each verb imports what it needs when it runs, so that the
quick ones are quick.
"""

import sys

from chronos.errors import ChronosError


def main() -> None:
    """Run the command in `sys.argv`; ends the process."""
    from chronos.cli.app import app

    try:
        app(prog_name="chronos")
    except ChronosError as error:
        from chronos.cli.output import complain

        complain(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # Whoever read our output has enough.
        sys.stderr.close()
        sys.exit(0)
