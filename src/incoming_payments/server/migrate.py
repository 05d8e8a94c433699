"""`incoming-payments migrate`: create the tables in PostgreSQL, or bring them to the version of this program."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from incoming_payments.errors import ConfigurationError
from incoming_payments.server.config.postgres import postgres_database
from incoming_payments.server.config.settings import Settings
from incoming_payments.server.database import naming_database, postgres_conninfo

if TYPE_CHECKING:
    from incoming_payments.stores.postgres._migrations import Step

WithSettings = Callable[[Path, Callable[[Settings], int]], int]

_DONE: Final = {
    "all": "The tables are at the version of this program.",
    "before": "The tables fit this program and the version before it: replace the processes, and then run "
    "`incoming-payments migrate --step after`.",
    "after": "The tables are at the version of this program, and older versions can no longer use them.",
}


def add_parser(commands: Any, configuration: str, with_settings: WithSettings) -> None:
    """Add `migrate` to the commands. `configuration` is the default of `--config`."""

    def run(options: argparse.Namespace) -> int:
        if options.database_url is None:
            return with_settings(options.config, partial(_of_settings, step=options.step))
        return _of_url(options.database_url, step=options.step)

    command = commands.add_parser("migrate", help="create the tables in PostgreSQL, or bring them to this version")
    command.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=Path(configuration),
        help=f"the configuration (default: {configuration})",
    )
    command.add_argument(
        "--database-url", metavar="URL", help="a URL with the role that owns the tables, in place of the configuration"
    )
    command.add_argument(
        "--step",
        choices=list(_DONE),
        default="all",
        help="the steps to run before or after you replace the processes (default: all)",
    )
    command.set_defaults(run=run)


def _of_settings(settings: Settings, step: "Step") -> int:
    """Migrate the database of the configuration, and return the exit status. Raises the errors of `_migrate`."""
    return _migrate(postgres_conninfo(settings, "migrate"), step)


def _of_url(url: str, step: "Step") -> int:
    """Migrate the database at `url`, and return the exit status. Raises the errors of `_migrate`."""
    try:
        conninfo = postgres_database(url).conninfo
    except ConfigurationError as error:
        raise ConfigurationError(f"--database-url {error.description}", setting="database-url") from None
    return _migrate(conninfo, step)


def _migrate(conninfo: str, step: "Step") -> int:
    """Run the steps of the migration.

    Raises `ConfigurationError` when the database is not PostgreSQL, cannot be used or has a newer version, and
    `StoreUnavailable` when it does not answer, or another migration does not end.
    """
    from incoming_payments.stores.postgres import migrate

    with naming_database():
        migrate(conninfo, step)
    print(_DONE[step])
    return 0
