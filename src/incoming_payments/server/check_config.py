"""`incoming-payments check-config`: check a configuration without a start of the service."""

import sys
from pathlib import Path

from incoming_payments.errors import ConfigurationError
from incoming_payments.server.config.settings import Settings, load_settings
from incoming_payments.server.connections import Connections
from incoming_payments.server.consumers import unused_while_served
from incoming_payments.server.metrics import check_installed
from incoming_payments.server.output import say
from incoming_payments.server.report import print_json


def check_config(path: Path, *, as_json: bool) -> int:
    """Check the configuration at `path` with its files, print the result, and return the exit status.

    The command opens no connection. It reads the consumers in a SQLite file if a process has the file open. Raises
    `ConfigurationError` for a wrong configuration, unless the result is printed as JSON.
    """
    try:
        settings = load_settings(path)
        Connections(settings.given)
        check_installed(settings.given.listen)
        _check_folder(settings)
    except ConfigurationError as error:
        if not as_json:
            raise
        print_json({"isValid": False, "error": error.description, "warnings": []})
        return 1
    warnings = [*settings.warnings, *unused_while_served(settings)]
    if as_json:
        print_json({"isValid": True, "error": None, "warnings": warnings})
        return 0
    for warning in warnings:
        say(f"incoming-payments: warning: {warning}", sys.stderr)
    print(f"{path} is valid.")
    return 0


def _check_folder(settings: Settings) -> None:
    """Raise `ConfigurationError` if there is no folder for the database, which `serve` would create."""
    database = settings.given.database
    if isinstance(database, Path) and not database.parent.is_dir():
        folder = database.parent
        text = f"{settings.path}: database: the directory {folder} does not exist: create it for the database"
        raise ConfigurationError(text, setting="database")
