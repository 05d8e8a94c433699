"""The settings of webhooks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from incoming_payments.domain.events import EventKind
from incoming_payments.domain.payment import WalletAddressUrl
from incoming_payments.errors import ConfigurationError
from incoming_payments.limits import (
    CONSUMER_DOWN_S_MAX,
    CREDIT_DELAY_S_MAX,
    WEBHOOK_CREDIT_DELAY_S_DEFAULT,
    WEBHOOK_DISABLE_S_DEFAULT,
    WEBHOOK_DOWN_S_DEFAULT,
    WEBHOOK_S_DEFAULT,
    WEBHOOK_S_MAX,
    WEBHOOK_SECRETS_MAX,
)
from incoming_payments.server.config.files import WebhookSecretText
from incoming_payments.server.config.packets import files
from incoming_payments.server.config.reader import Once
from incoming_payments.server.config.setting import setting, toml

if TYPE_CHECKING:
    from incoming_payments.outbound.webhooks import WebhookEndpoint


@frozen(kw_only=True)
class WebhookTable:
    """An endpoint that receives webhooks."""

    name: str = setting(
        "the name of the endpoint in the database. Keep it when the URL changes, so that no event is lost or sent "
        "twice",
        written='"shop"',
    )
    url: str = setting("the URL that gets the webhooks", written='"https://shop.example/hooks"')
    secret_files: tuple[WebhookSecretText, ...] = setting(
        f"1 to {WEBHOOK_SECRETS_MAX} files, each with a secret that begins with `whsec_` (HMAC-SHA256) or `whsk_` "
        "(Ed25519). Each secret signs each webhook. To replace a secret, add the new secret, let the receiver switch "
        "to it, and remove the old secret",
        check=files(WEBHOOK_SECRETS_MAX),
        written='["webhook-secret.txt"]',
    )
    kinds: tuple[EventKind, ...] = setting(
        f"any of {', '.join(f'`{toml(kind)}`' for kind in EventKind)}: the kinds of events to send. An empty list "
        "means all kinds",
        (),
    )
    wallet_addresses: tuple[WalletAddressUrl, ...] = setting(
        "the wallet addresses whose payments are of interest. An empty list means all wallet addresses", ()
    )
    joins_credits: bool = setting("whether consecutive credits of a payment are joined into one webhook", True)
    credit_delay_s: int = setting(
        "for how many seconds a credit waits for further credits",
        int(WEBHOOK_CREDIT_DELAY_S_DEFAULT),
        bounds=(0, int(CREDIT_DELAY_S_MAX)),
    )
    thin: bool = setting("whether a webhook has only ids and versions", False)
    timeout_s: int = setting(
        "how many seconds an attempt may take", int(WEBHOOK_S_DEFAULT), bounds=(1, int(WEBHOOK_S_MAX))
    )
    down_after_s: int = setting(
        "after how many seconds without success the endpoint is down, and gets only one webhook at a time",
        int(WEBHOOK_DOWN_S_DEFAULT),
        bounds=(1, int(CONSUMER_DOWN_S_MAX)),
    )
    disable_after_s: int = setting(
        "after how many seconds without success the endpoint is disabled",
        int(WEBHOOK_DISABLE_S_DEFAULT),
        bounds=(1, int(CONSUMER_DOWN_S_MAX)),
    )
    allow_private: bool = setting(
        "whether the URL may have the scheme `http` and a private IP address, for development, or for a receiver in "
        "your own network",
        False,
    )


def endpoints_of(tables: Sequence[WebhookTable]) -> "tuple[WebhookEndpoint, ...]":
    """Return the endpoints of `[[webhooks]]`. Raises `ConfigurationError`."""
    if not tables:
        return ()
    names = Once()
    for place, table in enumerate(tables):
        names.add(table.name, f"webhooks[{place}].name", "give each endpoint its own name")
    return tuple(_endpoint(f"webhooks[{place}]", table) for place, table in enumerate(tables))


def _endpoint(path: str, table: WebhookTable) -> "WebhookEndpoint":
    from incoming_payments.outbound.webhooks import WebhookEndpoint

    try:
        return WebhookEndpoint(
            name=table.name,
            url=table.url,
            secrets=[secret.value for secret in table.secret_files],
            kinds=table.kinds or None,
            wallet_addresses=table.wallet_addresses or None,
            joins_credits=table.joins_credits,
            credit_delay_s=table.credit_delay_s,
            thin=table.thin,
            timeout_s=table.timeout_s,
            down_after_s=table.down_after_s,
            disable_after_s=table.disable_after_s,
            allow_private=table.allow_private,
        )
    except ConfigurationError as error:
        name, text = str(error.details["setting"]), error.description
        subject = text if text.startswith(name) else f"{name}: {text}"
        shown, named = (value.replace("secrets", "secret_files", 1) for value in (subject, name))
        raise ConfigurationError(f"{path}.{shown}", setting=f"{path}.{named}") from None
