"""The commands of the command line, and their arguments."""

import argparse
import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn, get_args

from incoming_payments.errors import ConfigurationError, IncomingPaymentsError
from incoming_payments.gnap import Dialect
from incoming_payments.server import migrate, operating
from incoming_payments.server.audit import audit
from incoming_payments.server.backup import backup, reindex
from incoming_payments.server.config.settings import Settings, load_settings
from incoming_payments.server.copy_to_postgres import copy_to_postgres
from incoming_payments.server.dev import demo, sign
from incoming_payments.server.init import CONFIGURATION, init
from incoming_payments.server.output import say, without_password
from incoming_payments.server.serve import serve


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    The exit status is 0 for success, 1 for an error (with a message on stderr) and 130 after Ctrl-C. Wrong usage exits
    with status 2.
    """
    options = parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except IncomingPaymentsError as error:
        say(f"incoming-payments: {without_password(error.description)}", sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT, as in shells
    return status


def _with_settings(path: Path, run: Callable[[Settings], int]) -> int:
    """Run a command with the settings in the file at `path`. An error about a setting names the file."""
    settings = load_settings(path)
    try:
        return run(settings)
    except ConfigurationError as error:
        if "setting" not in error.details:
            raise
        raise ConfigurationError(f"{path}: {error.description}", **error.details) from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with status 2. The message may show an argument that is unknown."""
        super().error(without_password(message))


def parser() -> argparse.ArgumentParser:
    """Return the parser for all commands, which sets `run` to the function of the chosen command."""
    parser = _Parser(prog="incoming-payments", description="Be paid over Open Payments.")
    version = importlib.metadata.version("incoming-payments")
    parser.add_argument("--version", action="version", version=f"incoming-payments {version}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    command = commands.add_parser("init", help="write a configuration, keys and development tokens")
    command.add_argument("folder", type=Path, help="the folder for the files, which is created if it does not exist")
    command.add_argument("--port", type=int, default=8080, help="the port to listen on (default: 8080)")
    command.add_argument(
        "--authorization-server",
        metavar="URL",
        help="the introspection endpoint to use, in place of a development token",
    )
    command.add_argument(
        "--dialect", choices=get_args(Dialect), help="the form of the introspection answers (default: rfc9767)"
    )
    command.add_argument(
        "--database-url", metavar="URL", help="the PostgreSQL database to use, in place of a new SQLite file"
    )
    command.set_defaults(
        run=lambda given: init(given.folder, given.port, given.authorization_server, given.dialect, given.database_url)
    )
    command = commands.add_parser("serve", help="serve incoming payments over HTTP")
    command.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=Path(CONFIGURATION),
        help=f"the configuration (default: {CONFIGURATION})",
    )
    command.set_defaults(run=lambda options: _with_settings(options.config, serve))
    command = commands.add_parser("backup", help="write a verified copy of the database; the service may be running")
    command.add_argument("target", type=Path, help="the file to write, which must not exist")
    command.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=Path(CONFIGURATION),
        help=f"the configuration (default: {CONFIGURATION})",
    )
    command.add_argument("--audit", action="store_true", help="audit the copy")
    command.set_defaults(
        run=lambda options: _with_settings(
            options.config, partial(backup, target=options.target, with_audit=options.audit)
        )
    )
    command = commands.add_parser("audit", help="check every row of a backup, or of a database that serve has open")
    command.add_argument("database", help="the SQLite file, or the postgresql:// URL; the audit changes nothing")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    command.set_defaults(run=lambda options: audit(options.database, as_json=options.json))
    command = commands.add_parser("copy-to-postgres", help="move the payments of a SQLite file to PostgreSQL")
    command.add_argument("file", type=Path, help="the SQLite file; from now on, no process can write to it")
    command.add_argument("url", help="the postgresql:// URL of an empty database")
    command.add_argument(
        "--abandon", action="store_true", help="undo an incomplete move: allow writes to the file, and remove the copy"
    )
    command.set_defaults(run=lambda options: copy_to_postgres(options.file, options.url, abandon=options.abandon))
    command = commands.add_parser("reindex", help="index the references of all payments; the service may be running")
    command.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=Path(CONFIGURATION),
        help=f"the configuration (default: {CONFIGURATION})",
    )
    command.set_defaults(run=lambda options: _with_settings(options.config, reindex))
    migrate.add_parser(commands, CONFIGURATION, _with_settings)
    operating.add_parsers(commands, CONFIGURATION, _with_settings)
    sign.add_parser(commands, CONFIGURATION)
    command = commands.add_parser("demo", help="show a whole payment: create, pay by STREAM, crash, complete")
    command.set_defaults(run=lambda _: demo.main())
    return parser


if __name__ == "__main__":
    sys.exit(main())
