"""Print `docs/reference/archive.md`."""

import sys

from chronos.spark.reference import reference

sys.stdout.write(reference())
