"""Every setting of Chronos, and how settings are read.

Values come from one YAML file, then `CHRONOS_*` variables, then `--set path=value` flags, the later
over the earlier, key by key. Once read, durations are `int` milliseconds and sizes `int` bytes; the
description of every key names its unit. `python -m chronos.config` prints the reference, with
`example` the example file.

Law: all problems of the settings are reported together, each with the place it came from and what
to write instead. Nothing is ignored and nothing is guessed.

The modules, each of which may import those before it:

    values -> cluster -> model -> catalogue -> constraints, messages -> documents, reading
"""

from chronos.config.documents import example, in_effect, reference, show
from chronos.config.model import Config
from chronos.config.reading import load

__all__ = ["Config", "example", "in_effect", "load", "reference", "show"]
