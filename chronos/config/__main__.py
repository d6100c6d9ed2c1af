"""The printing of `docs/reference/configuration.md`, or with the argument `example` of
`config/chronos.yaml`."""

import sys

from chronos.config import example, reference

sys.stdout.write(example() if sys.argv[1:] == ["example"] else reference())
