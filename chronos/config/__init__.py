"""Every setting of the service, and how settings are read.

Values come from one YAML file, then `CHRONOS_*` variables, then `--set path=value` flags, the later
over the earlier, key by key. Once read, durations are `int` milliseconds and sizes `int` bytes.
`python -m chronos.config` prints the reference, with `example` the example file. Variables of the
command line, such as `CHRONOS_TOKEN`, are no settings.

Law: all problems of the settings are reported together, each with the place it came from, if it was
given anywhere, and where possible with what to write instead. A conflict between settings is
reported once each of them is valid by itself. Nothing is ignored and nothing is guessed.

The modules, each of which may import those before it:

    values -> cluster -> model -> catalogue -> constraints, messages -> documents, reading
"""

from chronos.config.documents import example, in_effect, reference, show
from chronos.config.model import Config
from chronos.config.reading import load

__all__ = ["Config", "example", "in_effect", "load", "reference", "show"]
