"""Times and durations as the standard libraries of five languages write them.

`python -m tests.clients.literals` runs the programs of this folder and writes
`tests/unit/literals.tsv`: the library and its version, the kind (`time`, `duration`, or `refused`:
a text that Chronos does not take), the milliseconds that the library's own value has (rounded up),
the expression that wrote the text, and the text. Needs a JDK, Go, Node and rustc; Docker and the
network are not used.
"""
