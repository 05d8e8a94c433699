"""The operator commands, which show payments, deliveries and consumers, or change them."""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.domain.feed import Consumer, Failed, Start, consumer_name
from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.limits import FEED_ROWS_MAX
from incoming_payments.server.command import main
from incoming_payments.server.config.settings import load_settings
from incoming_payments.server.init import CONFIGURATION, PEER_TOKEN, SERVER_SECRET
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import a_creation, a_wallet_address, crediting

NOW = datetime.now(UTC)
METADATA = '{"note":"\\u001b[31mred [bold]"}'


@pytest.fixture
def paid(folder: Path) -> PaymentId:
    """Return a payment with two credits, and two dead letters of the consumer `ledger`."""
    with SqliteStore(folder / "payments.sqlite3") as store:
        store.feed.register(Consumer(name="ledger", joins_credits=False), Start.BEGINNING, NOW)
        store.feed.register(Consumer(name="shop"), Start.BEGINNING, NOW)
        created = a_creation(limit=900, metadata=METADATA, now=NOW)
        store.insert(created)
        for number in (1, 2):
            store.update(created.answer.id, crediting(f"wire-{number}", 450, now=NOW), CreditId(f"wire-{number}"))
        store.insert(a_creation(now=NOW - timedelta(days=1)))
        until = NOW + timedelta(minutes=1)
        for _ in range(2):
            for delivery in store.feed.claim(
                consumer_name("ledger"), lambda _: b"payload", now=NOW, until=until, limit=9
            ):
                store.feed.settle(delivery, Failed(error="boom\x1b[0m", retry_at=NOW, is_last=True), NOW)
        return created.answer.id


def run(folder: Path, *arguments: str, status: int = 0) -> None:
    """Run a command with the configuration in `folder`, and check its exit status."""
    assert main([*arguments, "--config", str(folder / CONFIGURATION)]) == status


def answer(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> Any:
    """Return the JSON that a command prints."""
    run(folder, *arguments, "--json")
    return json.loads(capsys.readouterr().out)


def add_webhook(folder: Path, name: str) -> None:
    """Add an endpoint to the configuration."""
    secret = folder / "webhook-secret.txt"
    secret.write_text("whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0\n", "utf-8")
    secret.chmod(0o600)
    lines = f'\n[[webhooks]]\nname = "{name}"\nurl = "https://shop.example/"\nsecret_files = ["{secret.name}"]\n'
    with (folder / CONFIGURATION).open("a", encoding="utf-8") as file:
        file.write(lines)


def test_payments_are_listed(paid: PaymentId, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest payment comes first. Filters select payments."""
    newest, oldest = answer(capsys, folder, "list")
    assert (newest["id"], newest["state"], oldest["state"]) == (paid, "completed", "pending")
    assert newest["receivedAmount"] == {"value": "900", "assetCode": "USD", "assetScale": 2}
    assert (newest["metadata"], oldest["metadata"], oldest["incomingAmount"]) == (json.loads(METADATA), None, None)
    wallet, client = newest["walletAddress"], newest["client"]
    for filters, count in (
        (["--state", "completed"], 1),
        (["--wallet-address", wallet], 2),
        (["--client", client], 2),
        (["--client", "https://nobody.example/"], 0),
        (["--limit", "1"], 1),
    ):
        assert len(answer(capsys, folder, "list", *filters)) == count
    run(folder, "list")
    table = capsys.readouterr().out
    assert "2 payments, newest first" in table
    assert paid in table
    assert "900 USD/2" in table


def test_a_payment_is_shown(paid: PaymentId, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`show` has the credits, events and deliveries. Control characters of clients do not reach the terminal."""
    shown = answer(capsys, folder, "show", paid)
    assert shown["payment"]["id"] == paid
    url = load_settings(folder / CONFIGURATION).policy.payment_url(paid)
    assert answer(capsys, folder, "show", url) == shown
    assert [(credit["creditId"], credit["amount"]["value"]) for credit in shown["credits"]] == [
        ("wire-1", "450"),
        ("wire-2", "450"),
    ]
    assert [event["kind"] for event in shown["events"]] == ["created", "credited", "credited", "completed"]
    assert [(each["consumer"], each["state"], each["error"]) for each in shown["deliveries"]][:1] == [
        ("ledger", "dead", "boom [0m")
    ]
    run(folder, "show", paid)
    table = capsys.readouterr().out
    for text in (
        "payment",
        "credits",
        "wire-2",
        "events",
        "completed",
        "deliveries",
        "boom [0m",
        "\\u001b[31mred [bold]",
    ):
        assert text in table
    assert "\x1b" not in table


def test_dead_letters_are_sent_again(paid: PaymentId, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An operator lists dead letters, and makes one of them or all of them due again."""
    letters = answer(capsys, folder, "dead-letters")
    assert letters == answer(capsys, folder, "dead-letters", "ledger")
    assert answer(capsys, folder, "dead-letters", "shop") == []
    assert {letter["state"] for letter in letters} == {"dead"}
    assert len(letters) == 3
    run(folder, "dead-letters")
    table = capsys.readouterr().out
    assert "3 dead letters" in table
    assert f"{paid}_1_1" in table

    assert answer(capsys, folder, "redeliver", "ledger", f"{paid}_1_1") == {"consumer": "ledger", "redelivered": 1}
    assert len(answer(capsys, folder, "dead-letters")) == 2
    run(folder, "redeliver", "ledger", "--all")
    assert "2 deliveries of ledger are due again." in capsys.readouterr().out
    assert answer(capsys, folder, "dead-letters") == []


@pytest.mark.usefixtures("paid")
def test_consumers_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each consumer has its state, its filter, and the time since when its oldest delivery waits."""
    hour, name, alice = timedelta(hours=1), consumer_name("push"), a_wallet_address().url
    push = Consumer(name=name, kinds=["expired", "created"], wallet_addresses=[alice], down_after_s=60)
    with SqliteStore(folder / "payments.sqlite3") as store:
        store.feed.register(push, Start.NOW, NOW)
        store.insert(a_creation(now=NOW))
        [delivery] = store.feed.claim(name, lambda _: b"", now=NOW, until=NOW + hour, limit=9)
        store.feed.settle(delivery, Failed(error="no", retry_at=NOW), NOW - hour)
    ledger, waits, shop = answer(capsys, folder, "consumers")
    assert (ledger["name"], waits["name"], shop["name"]) == ("ledger", "push", "shop")
    assert (ledger["state"], waits["state"], shop["state"]) == ("ready", "down", "ready")
    assert (shop["kinds"], shop["walletAddresses"], shop["failingSince"], shop["disabledAt"]) == (None,) * 4
    assert waits["kinds"] == ["created", "expired"]
    assert waits["walletAddresses"] == [alice]
    assert waits["failingSince"] < waits["oldestDueAt"]
    run(folder, "consumers")
    table = capsys.readouterr().out
    assert "3 consumers" in table
    assert "push" in table


def test_a_registration_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A consumer gets no deliveries before its registration over old events is complete."""
    with SqliteStore(folder / "payments.sqlite3") as store:
        for _ in range(FEED_ROWS_MAX):
            store.insert(a_creation(now=NOW))
        assert not store.feed.register(Consumer(name="ledger"), Start.BEGINNING, NOW)
    [ledger] = answer(capsys, folder, "consumers")
    assert ledger["state"] == "registering"


@pytest.mark.parametrize(("skip", "waits"), [([], True), (["--skip"], False)])
@pytest.mark.usefixtures("paid")
def test_a_consumer_is_disabled_and_enabled(
    folder: Path, capsys: pytest.CaptureFixture[str], skip: list[str], waits: bool
) -> None:
    """A consumer that is enabled again continues where it was, or drops what waits."""
    assert answer(capsys, folder, "disable-consumer", "shop") == {"name": "shop", "state": "disabled"}
    shop = answer(capsys, folder, "consumers")[1]
    assert (shop["state"], shop["disabledAt"] is None, shop["oldestDueAt"] is None) == ("disabled", False, False)
    assert answer(capsys, folder, "enable-consumer", "shop", *skip) == {"name": "shop", "state": "enabled"}
    shop = answer(capsys, folder, "consumers")[1]
    assert (shop["state"], shop["disabledAt"], shop["oldestDueAt"] is not None) == ("ready", None, waits)
    run(folder, "disable-consumer", "shop")
    assert "shop is disabled. Its deliveries wait until you enable it again." in capsys.readouterr().out
    run(folder, "enable-consumer", "shop", *skip)
    follows = "It continues where it stopped." if waits else "The deliveries that waited are dropped."
    assert f"shop is enabled. {follows}" in capsys.readouterr().out


def test_a_consumer_is_removed(paid: PaymentId, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its deliveries go with it. The payments, and the other consumers, stay."""
    assert answer(capsys, folder, "remove-consumer", "ledger") == {"name": "ledger", "state": "removed"}
    assert [state["name"] for state in answer(capsys, folder, "consumers")] == ["shop"]
    assert answer(capsys, folder, "show", paid)["deliveries"] == []
    run(folder, "remove-consumer", "shop")
    assert "shop and its deliveries are removed. The payments stay." in capsys.readouterr().out
    assert answer(capsys, folder, "consumers") == []


@pytest.mark.usefixtures("paid")
def test_a_configured_webhook_is_not_removed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`serve` would register it again, and its waiting events would be lost."""
    add_webhook(folder, "ledger")
    run(folder, "remove-consumer", "ledger", status=1)
    says = "table with the name ledger: remove the table, restart serve, and repeat the command"
    assert says in capsys.readouterr().err
    assert len(answer(capsys, folder, "consumers")) == 2


@pytest.mark.usefixtures("paid")
def test_unused_consumers_get_a_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check-config` names the command that removes them, if a process has the database open."""
    add_webhook(folder, "ledger")
    assert answer(capsys, folder, "check-config")["warnings"] == []
    with SqliteStore(folder / "payments.sqlite3"):
        [warning] = answer(capsys, folder, "check-config")["warnings"]
    assert "the database keeps deliveries for the consumer shop, which no [[webhooks]] and no [[consumer]]" in warning
    assert f"`incoming-payments remove-consumer shop --config '{folder / CONFIGURATION}'`" in warning


def test_a_missing_folder_for_the_database_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`serve` would refuse it too, and `check-config` creates no folder."""
    file = folder / CONFIGURATION
    file.write_text(file.read_text("utf-8").replace('"payments.sqlite3"', '"none/payments.sqlite3"'), "utf-8")
    run(folder, "check-config", status=1)
    text = f"{file}: database: the directory {folder / 'none'} does not exist: create it for the database"
    assert text in capsys.readouterr().err


def test_consumers_that_cannot_be_read_get_a_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The configuration is valid, whatever is wrong with the files of the database."""
    lock = folder / "payments.sqlite3-lock"
    lock.symlink_to(lock)
    checked = answer(capsys, folder, "check-config")
    assert checked["isValid"] is True
    assert "the consumers in the database were not checked: " in checked["warnings"][0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["list", "--limit", "0"], "limit must be"),
        (["list", "--wallet-address", "alice"], "walletAddress must be an absolute http or https URL"),
        (["show", "x"], "payment must be a payment's id, or its URL below http://"),
        (["show", "019b76da-a800-7000-8000-000000000000"], "there is no payment 019b76da"),
        (["dead-letters", "nobody"], "the feed has no consumer nobody"),
        (["redeliver", "ledger", "x"], "'x' is no id of a delivery: give an id that `incoming-payments dead-letters`"),
        (["redeliver", "shop", "019b76da-a800-7000-8000-000000000000_1_1"], "019b76da"),
        (["enable-consumer", "Shop"], "the name of a consumer must have"),
        (["enable-consumer", "nobody", "--skip"], "the feed has no consumer nobody"),
        (["disable-consumer", "nobody"], "the feed has no consumer nobody"),
        (["remove-consumer", "nobody"], "the feed has no consumer nobody"),
    ],
)
@pytest.mark.usefixtures("paid")
def test_errors_have_status_1(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    """The message names the argument at fault."""
    run(folder, *arguments, status=1)
    error = capsys.readouterr().err
    assert error.startswith("incoming-payments: ")
    assert says in error


@pytest.mark.parametrize(
    "command",
    [["list"], ["dead-letters"], ["redeliver", "ledger", "--all"], ["consumers"], ["remove-consumer", "ledger"]],
)
def test_a_missing_database_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    """An operator command creates no database."""
    run(folder, *command, status=1)
    assert "database: " in (error := capsys.readouterr().err)
    assert "does not exist: correct the path of the database" in error
    assert not (folder / "payments.sqlite3").exists()


@pytest.mark.parametrize("arguments", [["list", "--state", "paid"], ["show"], ["redeliver", "ledger"]])
def test_wrong_usage_has_status_2(arguments: list[str]) -> None:
    """argparse prints the usage."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_a_configuration_is_checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check-config` prints the warnings, or the error. It creates no database."""
    assert answer(capsys, folder, "check-config")["isValid"] is True
    (folder / CONFIGURATION).chmod(0o644)
    run(folder, "check-config")
    output = capsys.readouterr()
    assert f"{folder / CONFIGURATION} is valid." in output.out
    assert "incoming-payments: warning: " in output.err
    text = (folder / CONFIGURATION).read_text("utf-8")
    (folder / CONFIGURATION).write_text(text.replace("\n[listen]\n", "\n[listen]\nworkers = 0\n"), "utf-8")
    run(folder, "check-config", status=1)
    assert "listen.workers must be an integer from 1 to 64, not 0" in capsys.readouterr().err
    run(folder, "check-config", "--json", status=1)
    wrong = json.loads(capsys.readouterr().out)
    assert (wrong["isValid"], wrong["warnings"]) == (False, [])
    assert "listen.workers" in wrong["error"]
    assert not (folder / "payments.sqlite3").exists()


def test_a_missing_library_for_the_metrics_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`serve` would refuse the configuration too."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    file = folder / CONFIGURATION
    file.write_text(file.read_text("utf-8").replace("\n# metrics_port", "\nmetrics_port"), "utf-8")
    run(folder, "check-config", status=1)
    assert "listen.metrics_port needs prometheus-client" in capsys.readouterr().err


def test_no_output_has_a_secret(paid: PaymentId, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither tables nor JSON contain tokens, server secrets or payloads."""
    for command in (["list"], ["show", paid], ["dead-letters"], ["consumers"], ["check-config"]):
        for form in ([], ["--json"]):
            run(folder, *command, *form)
    output = capsys.readouterr()
    for name in (PEER_TOKEN, SERVER_SECRET):
        assert (folder / name).read_text("utf-8").strip() not in output.out + output.err
    assert "payload" not in output.out


def test_tables_need_rich(
    paid: PaymentId, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the extra. JSON needs no library."""
    monkeypatch.setitem(sys.modules, "rich.console", None)
    run(folder, "list", status=1)
    assert "tables need rich: run pip install 'incoming-payments[serve]', or use --json" in capsys.readouterr().err
    assert answer(capsys, folder, "list")[0]["id"] == paid
