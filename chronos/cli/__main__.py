"""Print `docs/reference/cli.md`."""

import sys

from chronos.cli.reference import reference

sys.stdout.write(reference())
