"""The arguments of the commands for operators, which show payments, deliveries and consumers, or change them."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from incoming_payments.domain.transitions import State
from incoming_payments.server.check_config import check_config
from incoming_payments.server.config.settings import Settings
from incoming_payments.server.consumers import consumers, disable, enable, remove
from incoming_payments.server.deliveries import dead_letters, redeliver
from incoming_payments.server.payments import list_payments, show

WithSettings = Callable[[Path, Callable[[Settings], int]], int]


def add_parsers(commands: Any, configuration: str, with_settings: WithSettings) -> None:
    """Add the parsers to `commands`. `configuration` is the default of `--config`."""

    def add(name: str, text: str) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(name, help=text)
        command.add_argument(
            "--config",
            metavar="FILE",
            type=Path,
            default=Path(configuration),
            help=f"the configuration (default: {configuration})",
        )
        command.add_argument("--json", action="store_true", help="print JSON")
        return command

    def run(function: Callable[..., int], *names: str) -> Callable[[argparse.Namespace], int]:
        def call(options: argparse.Namespace) -> int:
            arguments = {name: getattr(options, name) for name in names}
            return with_settings(options.config, partial(function, as_json=options.json, **arguments))

        return call

    command = add("list", "list payments, newest first")
    command.add_argument("--wallet-address", metavar="URL", help="only payments into this wallet address")
    command.add_argument("--client", metavar="URL", help="only payments that this client has created")
    command.add_argument("--state", choices=[state.value for state in State], help="only payments in this state")
    command.add_argument("--limit", type=int, default=20, help="the largest number of payments (default: 20)")
    command.set_defaults(run=run(list_payments, "wallet_address", "client", "state", "limit"))
    command = add("show", "show a payment with its credits, events and deliveries")
    command.add_argument("id", metavar="ID", help="the id of the payment, or its URL")
    command.set_defaults(run=run(show, "id"))
    command = add("dead-letters", "list the deliveries of events that have failed")
    command.add_argument("consumer", nargs="?", help="the name of the consumer or webhook (default: all)")
    command.set_defaults(run=run(dead_letters, "consumer"))
    command = add("redeliver", "send dead letters again")
    command.add_argument("consumer", help="the name of the consumer or webhook")
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("delivery", nargs="?", metavar="ID", help="the id of the delivery")
    which.add_argument("--all", action="store_true", help="all dead letters of the consumer")
    command.set_defaults(run=run(redeliver, "consumer", "delivery"))
    command = add("consumers", "list the consumers of events and the webhooks, with their state")
    command.set_defaults(run=run(consumers))
    command = add("enable-consumer", "enable a consumer or webhook again")
    command.add_argument("consumer", help="the name of the consumer or webhook")
    command.add_argument("--skip", action="store_true", help="drop the deliveries that wait")
    command.set_defaults(run=run(enable, "consumer", "skip"))
    for name, text, function in (
        ("disable-consumer", "stop the deliveries to a consumer or webhook, and keep them", disable),
        ("remove-consumer", "remove a consumer or webhook that the configuration no longer names", remove),
    ):
        command = add(name, text)
        command.add_argument("consumer", help="the name of the consumer or webhook")
        command.set_defaults(run=run(function, "consumer"))
    command = add("check-config", "check a configuration without a start of the service")
    command.set_defaults(run=lambda options: check_config(options.config, as_json=options.json))
