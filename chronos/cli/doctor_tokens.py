"""The part of `chronos doctor` that examines the file of tokens: whether it can be read, its format, and what each token may do."""

from collections.abc import Iterator

from chronos.admin.tokens import FORMAT, Sender, difference, parse_tokens
from chronos.cli.findings import Finding, note, ok, problem


def examine_tokens(path: str) -> Iterator[Finding]:
    """Findings of one file."""
    try:
        with open(path, "rb") as file:
            found = parse_tokens(file.read())
    except OSError as error:
        yield problem("tokens", f"{path} cannot be read: {error.strerror}", exit_code=2)
        return
    except ValueError as error:
        yield problem("tokens", f"{path} {error}", exit_code=2)
        return
    for sender in found.senders.values():
        yield ok("tokens", _meaning(sender))
        if "*" not in sender.targets and "*" in sender.ids and "write" in sender.roles and found.format == FORMAT:
            yield note("tokens", f"{sender.name} may write every id: it can take and replace the ids of others")
    if found.format < FORMAT:
        lines = "\n".join(difference(found))
        yield problem(
            "tokens", f"{path} has format {found.format}, which the next release refuses; for format {FORMAT}\n{lines}"
        )


def _meaning(sender: Sender) -> str:
    roles = ", ".join(sorted(sender.roles))
    return f"{sender.name}: {roles}; targets {' '.join(sender.targets)}; ids {' '.join(sender.ids)}"
