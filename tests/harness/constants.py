"""`chronos` with other values of its constants, for tests that would take minutes, or gigabytes,
with its own.

    CHANGED_CONSTANTS='{"chronos.core.size.STEP_MESSAGES": 200}' python -m tests.harness.constants serve

The values are set before any other module of Chronos is loaded, so that all of them see the same
ones. A name that does not exist ends the process."""  # noqa: E501

import json
import os
from importlib import import_module

ENVIRONMENT = "CHANGED_CONSTANTS"


def change_constants() -> None:
    """Set the constants that the variable names, each by its module and its name."""
    for path, value in json.loads(os.environ.get(ENVIRONMENT, "{}")).items():
        module_name, _, name = path.rpartition(".")
        module = import_module(module_name)
        assert type(getattr(module, name)) is type(value), path
        setattr(module, name, value)


if __name__ == "__main__":
    change_constants()
    from chronos.cli import main

    main()
