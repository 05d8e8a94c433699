"""Copy, compare, and complete or abandon a move."""

import os
import time
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from attrs import evolve, frozen

from incoming_payments.copying._compare import differences, page_of, settings_of
from incoming_payments.copying._tables import Row
from incoming_payments.copying._target import Place, Target
from incoming_payments.errors import CopyFailed, StoreError
from incoming_payments.stores._connection_text import may_be_connection_string
from incoming_payments.stores.sqlite._moves import Move
from incoming_payments.stores.sqlite._moving import MovingFile

_SHOWN_MAX: Final = 10  # differences in the text of an error


@frozen(kw_only=True)
class CopyProgress:
    """The rows that this call has copied so far, and the table of the next ones."""

    rows: int
    table: str


@frozen(kw_only=True)
class CopyReport:
    """A complete move to the database `target`.

    `payments` and `rows` are the numbers in the whole database. `copied` is the number of rows that this call has
    copied, in `copy_s` seconds. The comparison has taken `compare_s` seconds. All are 0 if the move was complete
    before.
    `is_one_file` is true if the file has no log any more, because no other process has it open.
    """

    target: str
    payments: int = 0
    rows: int = 0
    copied: int = 0
    copy_s: float = 0.0
    compare_s: float = 0.0
    is_one_file: bool


def copy_to_postgres(
    path: str | os.PathLike[str], conninfo: str, *, on_progress: Callable[[CopyProgress], None] | None = None
) -> CopyReport:
    """Move the payments of the SQLite database `path` to the empty PostgreSQL database `conninfo`.

    `conninfo` is a connection string or URL. The call creates the tables. From its first step on, no process can
    write to the file. If the call is interrupted, repeat it with the same arguments, and it continues. Until the move
    is complete, no store opens the target, and `abandon_copy` undoes the move.

    Raises `CopyFailed` when the target is not empty, when a row cannot be copied, when both sides are not the same at
    the end, or when another process has abandoned the copy. Raises `StoreError` when a database fails, and
    `ConfigurationError` for an invalid `conninfo`.
    """
    _require_file(path)
    with MovingFile(path) as file, Target(conninfo) as target:
        move = _begin(file, target)
        if target.begin(move.copy_id, str(file.path)):
            report = CopyReport(target=target.name, is_one_file=False)
        else:
            report = _copy(file, target, move.copy_id, on_progress or (lambda _: None))
        file.change(partial(_completed, move))
        target.complete(move.copy_id)
    return evolve(report, is_one_file=file.is_one_file)


def _begin(file: MovingFile, target: Target) -> Move:
    """Mark the file, so that no process can write to it. First check that the target can take the rows."""
    wanted = Move(str(uuid.uuid4()), target.name, "copying")

    def decide(found: Move | None) -> Move:
        if found is None or found.state == "abandoned":
            return wanted
        _require_same(file, target, found)
        return found

    found = file.move()
    if found is not None and found.state == "abandoned":
        target.clear(found.copy_id)  # the target did not answer when the copy was abandoned
    has_copy = target.require_free(None if found is None else found.copy_id)
    if found is not None and found.state == "complete" and not has_copy:
        raise CopyFailed(
            f"the payments of {file.path} were moved to {found.target}, and the empty database at {target.name} is "
            "another one: check to which server the URL leads"
        )
    if not has_copy:
        target.require_unopened()
    return file.change(decide)


def _require_same(file: MovingFile, target: Target, found: Move) -> None:
    if found.target != target.name:
        raise CopyFailed(
            f"the payments of {file.path} are being copied to {found.target}, or were moved there: give that URL in "
            f"place of {target.name}"
        )


def _copy(file: MovingFile, target: Target, copy_id: str, on_progress: Callable[[CopyProgress], None]) -> CopyReport:
    def read(place: Place) -> list[Row]:
        return [] if place.table is None else page_of(file, place.table, place.key)

    began_s, copied = time.monotonic(), 0
    place, number = target.add(copy_id, read)
    while place.table is not None:
        copied += number
        on_progress(CopyProgress(rows=copied, table=place.table.name))
        place, number = target.add(copy_id, read)
    copied += number
    target.write_settings(copy_id, settings_of(file))
    copied_s, counts = time.monotonic(), Counter[str]()
    found = differences(file, target, counts)
    if first := list(islice(found, _SHOWN_MAX)):
        others = sum(1 for _ in found)
        lines = "".join(f"\n{difference}" for difference in first)
        raise CopyFailed(
            f"{file.path} and {target.name} are not the same: abandon the copy, and start again. The first of "
            f"{len(first) + others} differences:{lines}"
        )
    return CopyReport(
        target=target.name,
        payments=counts["payments"],
        rows=counts.total(),
        copied=copied,
        copy_s=copied_s - began_s,
        compare_s=time.monotonic() - copied_s,
        is_one_file=False,
    )


def _completed(move: Move, found: Move | None) -> Move:
    if found is None or found.copy_id != move.copy_id or found.state == "abandoned":
        raise CopyFailed("another process has abandoned the copy")
    return evolve(found, state="complete")


def abandon_copy(path: str | os.PathLike[str], conninfo: str) -> None:
    """Allow writes to the SQLite database `path` again, and remove the rows from the target.

    If the target does not answer, the function raises `StoreError`. The file accepts writes all the same. The target
    cannot be opened as a store until you call this function again and it removes the rows. Raises `CopyFailed` when
    there is no copy, or when it is complete.
    """
    _require_file(path)
    with MovingFile(path) as file:
        abandoned = partial(_abandoned, file.path)
        move = abandoned(file.move())
        try:
            with Target(conninfo) as target:
                _require_same(file, target, move)
                # A file from an old copy of the disk may lack the mark that the move is complete.
                target.require_incomplete(move.copy_id)
                target.clear(file.change(abandoned).copy_id)
        except StoreError as error:
            move = file.change(abandoned)
            text = f"{file.path} accepts writes again, but the rows in {move.target} were not removed"
            raise type(error)(f"{text}: {error.description}") from error


def _abandoned(path: Path, found: Move | None) -> Move:
    if found is None:
        raise CopyFailed(f"{path} is not being copied, so there is nothing to abandon")
    if found.state == "complete":
        raise CopyFailed(f"the payments of {path} were moved to {found.target}, so the copy cannot be abandoned")
    return evolve(found, state="abandoned")


def _require_file(path: str | os.PathLike[str]) -> None:
    if not Path(path).is_file():
        if may_be_connection_string(os.fspath(path)):
            raise CopyFailed(
                "a connection string is in the place of the SQLite file: give the file first, and then the URL"
            )
        raise CopyFailed(f"{os.fspath(path)} is not a file: give the path of a database")
