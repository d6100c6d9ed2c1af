"""The verbs of the archive that erase messages: `expire`, what was settled long ago, and `forget`,
those of some ids."""

import sys
import time
from collections.abc import Mapping, Sequence

import typer

from chronos.cli.options import SparkOptions, check_delay
from chronos.cli.output import Format, note, number, printable, put, put_json, table
from chronos.cli.spark.archive import archive_job
from chronos.client.requests import delay_ms

NOT_FOUND = 4
"""Exit code: the archive holds nothing of an id."""

STOPPED = "stopped; run the same command again"

NAMED = 10
"""Most ids that a message names."""


def expire_archive(output: Format, options: SparkOptions, *, older_than: str, yes: bool) -> None:
    """Erase what was settled long ago."""
    check_delay(older_than, "--older-than")
    before_ms = time.time_ns() // 1_000_000 - delay_ms(older_than)
    _confirm_erasing(
        f"erase what was settled more than {older_than} ago from {options.location}? This cannot "
        "be undone",
        yes=yes,
    )
    with archive_job("archive expire", options, STOPPED) as (spark, storage, display):
        from chronos.spark.archive.expire import expire

        done = expire(spark, storage, before_ms, display)
    if output is Format.json:
        put_json(done)
        return
    _show_removed(done.rows)
    note(f"the outcomes and times of {number(done.erased)} deliveries stay")


def forget_ids(
    output: Format, options: SparkOptions, *, ids: Sequence[str], ids_file: str | None, yes: bool
) -> None:
    """Erase the messages of some ids; exit code 1 if one is pending, 4 if the archive holds nothing
    of an id."""
    from chronos.admin.http.encoding import id_bytes, id_text

    texts = [*ids, *([] if ids_file is None else _lines(ids_file))]
    if not texts:
        raise typer.BadParameter("give --id ID, or --ids-file FILE with an id on each line")
    try:
        wanted = {id_bytes(each) for each in texts}
    except ValueError as error:
        raise typer.BadParameter(f"--id or --ids-file: {error}") from None
    _confirm_erasing(
        f"forget {number(len(wanted))} ids in {options.location}? This cannot be undone", yes=yes
    )
    with archive_job("archive forget", options, STOPPED) as (spark, storage, display):
        from chronos.spark.archive.forget import forget

        done = forget(spark, storage, wanted, display)
    pending, absent = (
        [printable(id_text(each)) for each in found] for found in (done.pending, done.not_found)
    )
    if output is Format.json:
        put_json(
            {
                "rows": done.rows,
                "erased": done.erased,
                "not_found": list(map(id_text, done.not_found)),
                "pending": list(map(id_text, done.pending)),
            }
        )
    elif done.rows:
        _show_removed(done.rows)
        note(f"the outcomes and times of {number(done.erased)} deliveries stay")
    if pending:
        note(
            f"nothing was forgotten: {', '.join(pending)} pending, or not archived to the end. "
            "Cancel what is pending, run `chronos archive`, and repeat the command"
        )
        raise typer.Exit(1)
    if absent:
        more = len(absent) - NAMED
        note(
            f"the archive holds nothing of {', '.join(absent[:NAMED])}"
            f"{f' and {number(more)} more' if more > 0 else ''}"
        )
        raise typer.Exit(NOT_FOUND)


def _confirm_erasing(question: str, *, yes: bool) -> None:
    """Ask before messages are erased, unless `--yes` was given; exit code 1 if the answer is
    no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("stdin is not a terminal, so the command cannot ask: give --yes")
    if not typer.confirm(question, err=True):
        note("nothing was erased")
        raise typer.Exit(1)


def _lines(path: str) -> list[str]:
    """The lines of a file that are not empty."""
    try:
        with open(path, encoding="utf-8") as file:
            return [line for each in file if (line := each.rstrip("\r\n"))]
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--ids-file {path}: {error}") from None


def _show_removed(rows: Mapping[str, int]) -> None:
    listed = [(name, number(count)) for name, count in rows.items()]
    put(table([("table", "left"), ("rows removed", "right")], listed))
