"""The printing of `docs/reference/archive.md`."""

import sys

from chronos.spark.schema import reference

sys.stdout.write(reference())
