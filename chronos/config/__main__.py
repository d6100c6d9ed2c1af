"""Prints the content of `docs/reference/configuration.md`; with the argument `example` that of
`config/chronos.yaml`."""

import sys

from chronos.config import example, reference

sys.stdout.write(example() if sys.argv[1:] == ["example"] else reference())
