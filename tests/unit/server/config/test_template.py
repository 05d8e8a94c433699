"""The configuration that `init` writes agrees with the reader."""

import tomllib
from typing import Any, Final

import pytest

from incoming_payments.server.config.setting import REQUIRED
from incoming_payments.server.config.tables import TABLES
from incoming_payments.server.config.template import template

VALUES: Final[dict[str, Any]] = {
    "base_url": "http://x",
    "auth_server": "http://x/auth",
    "port": 1,
    "token": "T",
    "introspection": "https://as.example",
    "dialect": "rafiki",
    "jwk": "j",
    "service_key": "k",
    "service_key_id": "i",
    "secret": "s",
    "peer_token": "p",
    "database": '"d"',
}


@pytest.mark.parametrize("has_server", [False, True])
def test_template_holds_every_setting(has_server: bool) -> None:
    """The template is TOML, sets each required setting, and shows each optional one as a comment.

    It shows the token or the authorization server as a comment, because they exclude each other. It shows the service
    for wallet addresses, the webhooks and the consumers as comments too.
    """
    text = template(has_authorization_server=has_server, **VALUES)
    document = tomllib.loads(text)
    for table in TABLES:
        access = "token" if has_server else "authorization_server"
        if table.name in {"wallet_addresses", "webhooks", "consumer", access}:
            assert table.name not in document
            assert f"\n# {table.header}\n" in text
            assert [setting.name for setting in table.settings if f"\n# {setting.name} = " not in text] == []
            continue
        if table.name == "rights":
            if has_server:
                continue
            [members] = document["token"][0]["rights"]
            assert set(members) == {setting.name for setting in table.settings}
            continue
        members = document.get(table.name, document)
        members = members[0] if isinstance(members, list) else members
        for setting in table.settings:
            is_set = setting.default is REQUIRED or setting.is_active
            assert (setting.name in members) == is_set, setting.name
            assert is_set or f"\n# {setting.name} = " in text
