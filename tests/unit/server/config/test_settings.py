"""The configuration file: a correct one yields its values; in a wrong one the error names the setting."""

import json
import os
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from incoming_payments.domain.amount import Asset, Tolerance
from incoming_payments.domain.feed import Consumer, Start, consumer_name
from incoming_payments.domain.payment import WalletAddress, wallet_address_url
from incoming_payments.endpoints.open_payments import Request
from incoming_payments.errors import ConfigurationError
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.gnap import AccessRight, AccessToken, AccessTokenInfo, TokenQuery
from incoming_payments.httpsig import Policy as SignaturePolicy
from incoming_payments.httpsig import Shape
from incoming_payments.ilp import DerivedMethods, Peer, Receiver
from incoming_payments.limits import CLOCK_SKEW_S_DEFAULT, CONFIGURATION_BYTES_MAX, SIGNATURE_AGE_S_DEFAULT
from incoming_payments.server.config import files
from incoming_payments.server.config.settings import Settings, load_settings
from incoming_payments.server.config.sweep import SweepTable
from incoming_payments.server.config.tables import TABLES, QuotasTable

JWK: Final = {
    "kty": "OKP",
    "crv": "Ed25519",
    "alg": "EdDSA",
    "kid": "client-key-1",
    "x": "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs",
}
SECRETS: Final = (bytes(range(32)), bytes(range(1, 41)))
PEER_TOKENS: Final = {"peer.txt": "PEER-TOKEN-000001", "peer-old.txt": "PEER-TOKEN-000000", "other.txt": "T" * 16 + "="}
CONSUMER_TOKENS: Final = {"ledger.txt": "LEDGER-TOKEN-0001", "ledger-old.txt": "LEDGER-TOKEN-0000"}

FULL: Final = """\
base_url = "https://Bank.example/op/"
auth_server = "https://auth.bank.example"
database = "data/payments.sqlite3"
reference = "externalRef"
[listen]
host = "::1"
port = 9001
workers = 1
drain_s = 5
mount = "/proxied"
health = false
metrics_port = 9464
[[wallet_address]]
url = "https://bank.example/alice/"
asset_code = "USD"
asset_scale = 2
[[wallet_address]]
url = "https://bank.example/bob"
asset_code = "JPY"
asset_scale = 0
auth_server = "https://auth.bob.example"
[[token]]
value = "TOKEN1"
client = "https://shop.example/"
jwk_file = "client.jwk"
rights = [{ actions = ["create", "read"], identifier = "https://bank.example/alice" }, { actions = ["read-all"] }]
expires_at = 2027-01-01T01:00:00+01:00
[[token]]
value = "TOKEN2"
client = "https://other.example/"
jwk_file = "client.jwk"
rights = [{ actions = ["read"] }]
[ilp]
address = "g.bank"
secret_files = ["new.hex", "old.hex"]
path = "/peers/ilp"
tolerance_units = 0
tolerance_basis_points = 5
margin_ms = 250
[[peer]]
name = "connector"
asset_code = "EUR"
asset_scale = 3
token_files = ["peer.txt", "peer-old.txt"]
ilp_address = "g.elsewhere.us"
[[peer]]
name = "other_1"
asset_code = "JPY"
asset_scale = 0
token_files = ["other.txt"]
[limits]
public_get = false
public_cors = false
allow_identical = false
expiry_s_max = 3600
idempotency_key_s = 700
default_expiry_s = 600
metadata_bytes_max = 100
metadata_depth_max = 3
signature_age_s = 30
clock_skew_s = 5
signature_shapes = ["rust-sdk"]
trailing_slash = true
wording = "web-monetization"
[quotas]
requests_per_minute = 600
unpaid_payments = 50
[sweep]
interval_s = 5
metadata_kept_s = 86400
deliveries_kept_s = 600
[events]
port = 8081
[[consumer]]
name = "ledger"
token_files = ["ledger.txt", "ledger-old.txt"]
kinds = ["credited", "completed"]
wallet_addresses = ["https://bank.example/alice/"]
start = "beginning"
joins_credits = false
[log]
explain_signatures = true
format = "json"
access = true
"""

# The required settings only.
LEAST: Final = """\
base_url = "https://bank.example/op"
auth_server = "https://auth.bank.example"
database = "payments.sqlite3"
[[wallet_address]]
url = "https://bank.example/alice"
asset_code = "USD"
asset_scale = 2
[ilp]
address = "g.bank"
secret_files = ["new.hex"]
"""

Load = Callable[[str | bytes], Settings]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Return a function that loads a configuration from the folder of its files."""
    (tmp_path / "client.jwk").write_text(json.dumps(JWK), "utf-8")
    (tmp_path / "hook.txt").write_text("whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "ascii")
    for name, secret in zip(("new.hex", "old.hex"), SECRETS, strict=True):
        (tmp_path / name).write_text(secret.hex() + "\n", "ascii")
    for name, token in (PEER_TOKENS | CONSUMER_TOKENS).items():
        (tmp_path / name).write_text(token + "\n", "ascii")

    def load(text: str | bytes) -> Settings:
        path = tmp_path / "configuration.toml"
        path.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
        return load_settings(path, clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))

    return load


def introspect(settings: Settings, token: str) -> AccessTokenInfo | None:
    """Return the facts about `token` from the introspector of `settings`."""
    return settings.introspector.introspect(TokenQuery(AccessToken(token), "read"))


def changed(line: str, new: str, text: str = FULL) -> str:
    """Return `text` with `new` in place of the first line that begins with `line`."""
    lines = text.splitlines()
    place = next(place for place, old in enumerate(lines) if old.startswith(line))
    return "\n".join([*lines[:place], new, *lines[place + 1 :]])


# --- correct files -------------------------------------------------------------------------------


def test_full_configuration_has_every_setting() -> None:
    """`FULL` sets every setting beside `[[token]]`, so that the test below checks each of them."""
    document = tomllib.loads(FULL)
    rights = [right for token in document["token"] for right in token["rights"]]
    for table in TABLES:
        if table.name in {
            "authorization_server",
            "wallet_addresses",
            "webhooks",
            "postgres",
        }:  # they have their own tests
            continue
        found = rights if table.name == "rights" else document.get(table.name, document)
        given = set().union(*found) if isinstance(found, list) else set(found)
        assert {setting.name for setting in table.settings} - given == set()


def test_every_setting_is_loaded(load: Load, tmp_path: Path) -> None:
    """A file with every setting loads to these values, in the types and the spelling of the library."""
    settings = load(FULL)

    alice = WalletAddress(
        wallet_address_url("https://bank.example/alice"), Asset("USD", 2), "https://auth.bank.example"
    )
    bob = WalletAddress(wallet_address_url("https://bank.example/bob"), Asset("JPY", 0), "https://auth.bob.example")
    first = AccessTokenInfo(
        "https://shop.example/",
        JWK,
        [AccessRight(["create", "read"], "https://bank.example/alice"), AccessRight(["read-all"])],
        datetime(2027, 1, 1, tzinfo=UTC),
    )
    second = AccessTokenInfo("https://other.example/", JWK, [AccessRight(["read"])])
    policy = ServicePolicy(
        base_url="https://bank.example/op",
        auth_server="https://auth.bank.example",
        signature=SignaturePolicy(max_age_s=30, clock_skew_s=5, shapes=[Shape.RUST_SDK]),
        public_get=False,
        public_cors=False,
        allow_identical=False,
        expiry_s_max=3600,
        idempotency_key_s=700,
        default_expiry_s=600,
        metadata_bytes_max=100,
        metadata_depth_max=3,
        trailing_slash=True,
        wording="web-monetization",
    )
    assert (policy, tmp_path / "data/payments.sqlite3") == (settings.policy, settings.given.database)
    listen, log = settings.given.listen, settings.given.log
    assert (listen.host, listen.port, listen.mount) == ("::1", 9001, "/proxied")
    assert (listen.health, listen.metrics_port, listen.workers) == (False, 9464, 1)
    assert (log.explain_signatures, log.format, log.access) == (True, "json", True)
    assert settings.given.reference == "externalRef"
    assert settings.given.sweep == SweepTable(interval_s=5, metadata_kept_s=86400, deliveries_kept_s=600)
    assert [alice, bob] == [settings.wallet_addresses.find(address.url) for address in (alice, bob)]
    assert [first, second] == [introspect(settings, token) for token in ("TOKEN1", "TOKEN2")]
    assert DerivedMethods("g.bank", SECRETS) == settings.receiver.methods


def test_optional_settings_have_documented_defaults(load: Load, tmp_path: Path) -> None:
    """Without optional settings, the service listens on loopback, at the path of `base_url`, with the usual limits."""
    settings = load(LEAST)

    policy = ServicePolicy(base_url="https://bank.example/op", auth_server="https://auth.bank.example")
    assert (policy, tmp_path / "payments.sqlite3") == (settings.policy, settings.given.database)
    listen, log = settings.given.listen, settings.given.log
    assert (listen.host, listen.port, listen.mount) == ("127.0.0.1", 8080, None)
    assert (listen.health, listen.metrics_port, settings.given.quotas) == (True, None, QuotasTable())
    assert (log.explain_signatures, log.format, log.access) == (False, "text", False)
    assert (settings.given.reference, settings.given.sweep) == (None, SweepTable(interval_s=15))
    assert settings.wallet_addresses.find(wallet_address_url("https://bank.example/bob")) is None
    assert introspect(settings, "TOKEN1") is None


def test_peers_are_loaded(load: Load) -> None:
    """Each peer has its tokens, its asset, and the configured address or one below the address of the service."""
    settings = load(FULL)
    packets = settings.packets
    assert packets is not None
    first, second = Peer("g.elsewhere.us", Asset("EUR", 3)), Peer("g.bank.other_1", Asset("JPY", 0))
    found = [packets.peer_of([f"Bearer {token}"]) for token in PEER_TOKENS.values()]
    assert found == [first, first, second]
    assert packets.path == "/peers/ilp"
    assert settings.receiver == Receiver(DerivedMethods("g.bank", SECRETS), Tolerance(0, 5), 250)


def test_consumers_are_loaded(load: Load) -> None:
    """Each consumer has its tokens and its filter. Without consumers there is no port for them."""
    settings = load(FULL)
    pull = settings.pull
    assert pull is not None
    expected = Consumer(
        name=consumer_name("ledger"),
        kinds=["credited", "completed"],
        wallet_addresses=["https://bank.example/alice"],
        joins_credits=False,
    )
    headers = [
        (("content-type", "application/json"), ("authorization", f"Bearer {token}"))
        for token in CONSUMER_TOKENS.values()
    ]
    found = [pull.consumer_of(Request("POST", "/events/claim", headers=fields)) for fields in headers]
    assert [(one.consumer, one.start) for one in found] == [(expected, Start.BEGINNING)] * 2
    assert settings.given.events.port == 8081
    least = load(LEAST + CONSUMER).pull
    assert least is not None
    assert [(one.consumer, one.start) for one in least.consumers] == [(Consumer(name=consumer_name("l")), Start.NOW)]
    assert (load(LEAST).pull, load(LEAST).given.events.port) == (None, None)


CONSUMER: Final = '[events]\nport = 8081\n[[consumer]]\nname = "l"\ntoken_files = ["ledger.txt"]\n'


@pytest.mark.parametrize(
    ("text", "setting", "says"),
    [
        (CONSUMER.replace("port", "# port"), "events.port", "is missing, but there is a [[consumer]]: give the port"),
        ("[events]\nport = 8081", "events.port", "is given, but there is no [[consumer]]: add one, or remove the port"),
        (CONSUMER.replace("8081", "0"), "events.port", "must be an integer from 1 to 65535, not 0"),
        (CONSUMER.replace('"l"', '"L"'), "consumer[0].name", "the name of a consumer must have 1 to 64 of"),
        (CONSUMER + "kinds = ['paid']", "consumer[0].kinds[0]", "must be 'created' or 'credited' or"),
        (CONSUMER + "wallet_addresses = ['x']", "consumer[0].wallet_addresses[0]", "must be an"),
        (CONSUMER + "start = 'later'", "consumer[0].start", "must be 'beginning' or 'now'"),
        (CONSUMER.replace('"ledger.txt"', ""), "consumer[0].token_files", "must name 1 to 8 files, but names 0"),
        (
            CONSUMER + '[[webhooks]]\nname = "l"\nurl = "https://a.example"\nsecret_files = ["hook.txt"]',
            "consumer[0].name",
            "holds the same value as webhooks[0].name: give each consumer a name of its own",
        ),
        (
            CONSUMER + CONSUMER.partition("8081")[2],
            "consumer[1].name",
            "holds the same value as consumer[0].name: give each consumer a name of its own",
        ),
        (
            CONSUMER + CONSUMER.partition("8081")[2].replace('"l"', '"m"'),
            "consumer[1].token_files[0]",
            "holds the same value as consumer[0].token_files[0]: give each file a different token",
        ),
    ],
)
def test_wrong_consumer_is_named(load: Load, text: str, setting: str, says: str) -> None:
    """The error names the setting of the consumer."""
    with pytest.raises(ConfigurationError) as refused:
        load(LEAST + text)
    assert refused.value.details == {"setting": setting}
    assert says in refused.value.description
    assert "LEDGER-TOKEN" not in refused.value.description


def test_service_without_peers_accepts_no_packets(load: Load) -> None:
    """A service without peers accepts no packets. A service with a peer accepts them at `/ilp`."""
    peer = '[[peer]]\nname = "c"\nasset_code = "USD"\nasset_scale = 2\ntoken_files = ["peer.txt"]\n'
    settings = load(LEAST + peer)
    packets = settings.packets
    assert packets is not None
    assert packets.path == "/ilp"
    assert settings.receiver == Receiver(DerivedMethods("g.bank", SECRETS[:1]))
    assert load(LEAST).packets is None


def test_quotas_are_loaded(load: Load) -> None:
    """Each quota may be set alone, also with several workers."""
    assert load(FULL).given.quotas == QuotasTable(requests_per_minute=600, unpaid_payments=50)
    assert load(LEAST + "[quotas]\nunpaid_payments = 7").given.quotas == QuotasTable(unpaid_payments=7)
    several = load(LEAST + "[quotas]\nunpaid_payments = 7\n[listen]\nworkers = 2").given
    assert (several.quotas.unpaid_payments, several.listen.workers) == (7, 2)


def test_each_worker_has_a_port_for_metrics(load: Load) -> None:
    """A `metrics_port` that leaves too few ports for the workers is refused."""
    settings = load(LEAST + "[listen]\nworkers = 3\nmetrics_port = 65533")
    assert (settings.given.listen.workers, settings.given.listen.metrics_port) == (3, 65533)
    reason = "listen.metrics_port is 65534, so 3 workers would need ports up to 65536: give a port of at most 65533"
    with pytest.raises(ConfigurationError, match=reason):
        load(LEAST + "[listen]\nworkers = 3\nmetrics_port = 65534")


@pytest.mark.parametrize(
    ("ports", "setting", "first"),
    [
        (CONSUMER.replace("8081", "8080"), "events.port", "listen.port"),
        ("[listen]\nmetrics_port = 8080", "listen.metrics_port", "listen.port"),
        ("[listen]\nworkers = 2\nmetrics_port = 8079", "listen.metrics_port", "listen.port"),
        ("[listen]\nmetrics_port = 8080\nworkers = 2\nport = 8082\n" + CONSUMER, "events.port", "listen.metrics_port"),
    ],
)
def test_two_listeners_with_one_port_are_refused(load: Load, ports: str, setting: str, first: str) -> None:
    """Otherwise `serve` would tell the operator to stop the program that listens there."""
    with pytest.raises(
        ConfigurationError, match=f"{setting} holds the same value as {first}: give each of them a port"
    ):
        load(LEAST + ports)


def test_filter_for_an_unknown_wallet_address_gets_a_warning(load: Load, tmp_path: Path) -> None:
    """The consumer would wait for events that never come. Another service may host any wallet address."""
    hosted, other = "https://bank.example/alice", "https://bank.example/bob"
    hooks = '[[webhooks]]\nname = "s"\nurl = "https://shop.example/h"\nsecret_files = ["hook.txt"]\n'
    filters = f'wallet_addresses = ["{hosted}", "{other}"]\n'
    text = LEAST + CONSUMER + f'wallet_addresses = ["{hosted}"]\n' + hooks + filters
    says = (
        f"{tmp_path / 'configuration.toml'}: webhooks[0].wallet_addresses[1] is {other}, but no [[wallet_address]] has "
        "this URL, so there are no new events for it: correct the URL, or add the wallet address"
    )
    assert [warning for warning in load(text).warnings if "wallet_addresses[" in warning] == [says]
    listed = LEAST[LEAST.index("[[wallet_address]]") : LEAST.index("[ilp]")]
    elsewhere = text.replace(listed, '[wallet_addresses]\nbase_urls = ["https://wallet.example"]\n')
    assert [warning for warning in load(elsewhere).warnings if "wallet_addresses[" in warning] == []


def test_signature_age_and_clock_skew_are_independent(load: Load) -> None:
    """Either of the two settings leaves the other one at its default."""
    older = load(LEAST + "[limits]\nsignature_age_s = 500").policy.signature
    ahead = load(LEAST + "[limits]\nclock_skew_s = 7").policy.signature

    assert (older.max_age_s, older.clock_skew_s) == (500, CLOCK_SKEW_S_DEFAULT)
    assert (ahead.max_age_s, ahead.clock_skew_s) == (SIGNATURE_AGE_S_DEFAULT, 7)


def test_byte_order_mark_is_ignored(load: Load) -> None:
    """A file that begins with a byte order mark loads like a file without it."""
    assert load(b"\xef\xbb\xbf" + LEAST.encode()).policy == load(LEAST).policy


def test_absolute_paths_stay_unchanged(load: Load, tmp_path: Path) -> None:
    """An absolute path is not resolved against the folder of the configuration."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret.hex").write_text(SECRETS[1].hex(), "ascii")
    text = changed("database", f'database = "{(elsewhere / "p.sqlite3").as_posix()}"', LEAST)
    text = changed("secret_files", f'secret_files = ["{(elsewhere / "secret.hex").as_posix()}"]', text)
    settings = load(text)

    assert settings.given.database == elsewhere / "p.sqlite3"
    assert settings.receiver.methods == DerivedMethods("g.bank", SECRETS[1:])


def test_settings_do_not_show_tokens(load: Load) -> None:
    """The representation of settings holds no token and no secret."""
    shown = repr(load(FULL))
    secrets = ("TOKEN1", SECRETS[0].hex(), repr(SECRETS[0]), *PEER_TOKENS.values(), *CONSUMER_TOKENS.values())
    assert [secret for secret in secrets if secret in shown] == []


# --- wrong files -------------------------------------------------------------------------------

NO_RIGHTS: Final = 'is missing: add at least one table, such as rights = [{ actions = ["create"] }]'
MANY_RIGHTS: Final = '{ actions = ["read"] }, ' * 65
ALICIA: Final = "https://bank.example/alicia"

# the value of rights, the place in it, a part of the message
RIGHTS: Final = [
    ("[]", "", NO_RIGHTS),
    ("[{}]", "[0].actions", "is missing: give an array"),
    ('"read"', "", "must be an array of tables, such as rights = [{"),
    ('["read"]', "[0]", "must be a table, not a string"),
    ('{ actions = ["read"] }', "", 'must be an array of tables, such as rights = [{ actions = ["create"] }]'),
    ('[{ actions = "read" }]', "[0].actions", "must be an array"),
    ("[{ actions = [] }]", "[0].actions", "a right needs at least one action"),
    ("[{ actions = [1] }]", "[0].actions[0]", "must be 'create' or 'read' or"),
    ('[{ actions = ["write"] }]', "[0].actions[0]", "must be 'create' or 'read' or"),
    ('[{ actions = ["create", "Read_All"] }]', "[0].actions[1]", " or 'list-all': did you mean read-all?"),
    ('[{ actions = ["read"], limits = 1 }]', "[0].limits", "is not a setting: remove this setting, or use one of act"),
    ('[{ actions = ["read"], identifier = "bob" }]', "[0].identifier", "must be an"),
    ('[{ actions = ["read"], identifier = "$bank.example/alice" }]', "[0].identifier", "is a payment pointer: write"),
    (
        f'[{{ actions = ["read"], identifier = "{ALICIA}" }}]',
        "[0].identifier",
        f"is not a wallet address of this configuration: {ALICIA}; use one of https://bank.example/al",
    ),
    (f"[{MANY_RIGHTS}]", "", "a token may have at most 64 rights"),
]

# a line of FULL, its replacement, the setting in the error, a part of the message
WRONG: Final = [
    # missing
    ("base_url", "", "base_url", "is missing: give a string in front of the first table"),
    ("auth_server", "", "auth_server", "is missing: give a string"),
    ("database", "", "database", "is missing: give a string"),
    ("url", "", "wallet_address[0].url", "is missing: give a string"),
    ("asset_code", "", "wallet_address[0].asset_code", "is missing: give a string"),
    ("asset_scale", "", "wallet_address[0].asset_scale", "is missing: give an integer"),
    ("value", "", "token[0].value", "is missing: give a string"),
    ("client", "", "token[0].client", "is missing: give a string"),
    ("jwk_file", "", "token[0].jwk_file", "is missing: give a string"),
    ("rights", "", "token[0].rights", NO_RIGHTS),
    ("address", "", "ilp.address", "is missing: give a string"),
    ("secret_files", "", "ilp.secret_files", "is missing: give an array"),
    ("name", "", "peer[0].name", "is missing: give a string"),
    ('asset_code = "EUR', "", "peer[0].asset_code", "is missing: give a string"),
    ("asset_scale = 3", "", "peer[0].asset_scale", "is missing: give an integer"),
    ("token_files", "", "peer[0].token_files", "is missing: give an array"),
    # of the wrong type
    ("database", "database = true", "database", "must be a string, not true or false"),
    ("host", "host = {}", "listen.host", "must be a string, not a table"),
    ("port", 'port = "9001"', "listen.port", "must be an integer, not a string"),
    ("port", "port = true", "listen.port", "must be an integer, not true or false"),
    ("port", "port = 80.0", "listen.port", "must be an integer, not a float"),
    ("mount", "mount = 1", "listen.mount", "must be a string, not an integer"),
    ("url", "url = 1", "wallet_address[0].url", "must be a string"),
    ("jwk_file", "jwk_file = 1", "token[0].jwk_file", "must be a string"),
    ("expires_at", 'expires_at = "2027"', "token[0].expires_at", "must be a date-time, such as 2027-01-01T00:00:00Z"),
    ("expires_at", "expires_at = 2027-01-01", "token[0].expires_at", "must be a date-time"),
    ("secret_files", 'secret_files = "new.hex"', "ilp.secret_files", "must be an array, not a string: write the value"),
    ("token_files", "token_files = [1]", "peer[0].token_files[0]", "must be a string, not an integer"),
    ("public_get", "public_get = 1", "limits.public_get", "must be true or false, not an integer"),
    ("default_expiry_s", 'default_expiry_s = "1"', "limits.default_expiry_s", "must be an integer"),
    # of a value that cannot be
    ("base_url", 'base_url = "bank.example"', "base_url", "must be an absolute http or https URL"),
    ("base_url", 'base_url = "http://[/"', "base_url", "must have a valid host and port"),
    ("base_url", 'base_url = "https://bank.example/?a=b"', "base_url", "must not contain a query"),
    ("auth_server", 'auth_server = "mailto:a@b"', "auth_server", "must be an absolute http or https URL"),
    ("database", 'database = ""', "database", "must not be empty, and must not contain NUL"),
    ("database", r'database = "a\u0000b"', "database", "must not be empty, and must not contain NUL"),
    *(
        ("database", f'database = "{name}"', "database", says)
        for name, says in {
            ":memory:": 'is ":memory:", but payments must survive a restart: give the name of a file, such as',
            "file:p.sqlite3?mode=memory": 'must be the name of a SQLite file, such as "payments.sqlite3", or a URL',
            "mysql://bank:SECRET@localhost/bank": 'or a URL such as "postgresql://user@host/database"',
            "~/payments.sqlite3": "begins with ~, which serve does not expand: write the whole path",
            "$DATABASE_URL": "begins with $, which serve does not expand: write the whole path or URL",
            ".": "is the folder ",
            "payments/": "payments: give the name of a file in this folder",
        }.items()
    ),
    ("host", 'host = ""', "listen.host", "must not be empty, and must not contain NUL"),
    *(
        ("host", f'host = "{host}"', "listen.host", "must be only a host name or an IP address, such as")
        for host in ("http://127.0.0.1", "127.0.0.1:8080", "[::1]", "*", "127.0.0.1/8")
    ),
    ("port", "port = 0", "listen.port", "must be an integer from 1 to 65535"),
    ("port", "port = 65536", "listen.port", "must be an integer from 1 to 65535"),
    *(
        ("mount", f"mount = {mount!r}", "listen.mount", 'must be "", or a path such as "/op" that has no slash at')
        for mount in (
            "op", "/", "/op/", "//op", "/a//b", "/a?b", "/a#b", "/..", "/../x", "/x/.", "/%2e%2E/x", "/%2", "/a b",
        )
    ),
    ("url", 'url = "alice"', "wallet_address[0].url", "must be an absolute http or https URL"),
    (
        "url",
        'url = "$bank.example/alice"',
        "wallet_address[0].url",
        "is a payment pointer: write a URL, with https:// in place of $",
    ),
    ("url", 'url = "https://bank.example/..%2fadmin"', "wallet_address[0].url", "must not contain %2F, %5C,"),
    ("asset_code", 'asset_code = ""', "wallet_address[0].asset_code", "must be 1 to 32 printable ASCII characters"),
    ("asset_scale", "asset_scale = 256", "wallet_address[0].asset_scale", "must be an integer from 0 to 255"),
    ("asset_scale", "asset_scale = -1", "wallet_address[0].asset_scale", "must be an integer from 0 to 255"),
    ('auth_server = "https://auth.bob', 'auth_server = ""', "wallet_address[1].auth_server", "must be an absolute"),
    (
        'url = "https://bank.example/b',
        'url = "https://BANK.example/alice"',
        "wallet_address[1].url",
        "holds the same value as wallet_address[0].url: list https://bank.example/alice only once",
    ),
    ("value", 'value = "two words"', "token[0].value", "the access token must be 1 to 4096 letters"),
    ("value", 'value = "TOKEN2"', "token[1].value", "holds the same value as token[0].value: give each token a"),
    ("client", 'client = ""', "token[0].client", "a client id must have 1 to 2048 printable ASCII characters"),
    *(("rights", f"rights = {rights}", f"token[0].rights{place}", says) for rights, place, says in RIGHTS),
    ("expires_at", "expires_at = 2027-01-01T00:00:00", "token[0].expires_at", "has no offset from UTC: add one, such"),
    ("expires_at", "expires_at = 0001-01-01T00:00:00+23:59", "token[0].expires_at", "must be in the years 1 to 9999"),
    ("expires_at", "expires_at = 9999-12-31T23:59:59-00:01", "token[0].expires_at", "must be in the years 1 to 9999"),
    ("address", 'address = "bank"', "ilp.address", ""),
    ("address", f'address = "g.{"a" * 1000}"', "ilp.address", "the ILP address of the service must have"),
    ("secret_files", "secret_files = []", "ilp.secret_files", "must name 1 to 8 files, but names 0"),
    ("secret_files", f"secret_files = {['new.hex'] * 9}", "ilp.secret_files", "must name 1 to 8 files, but names 9"),
    (
        "secret_files",
        'secret_files = ["new.hex", "new.hex"]',
        "ilp.secret_files[1]",
        "holds the same value as ilp.secret_files[0]: give each secret only once",
    ),
    *(
        ("path", f'path = "{path}"', "ilp.path", "must look like /ilp, without a slash at the end, dot segments")
        for path in ("", "ilp", "/", "/ilp/", "/a/../b", "/%69lp", "/ilp?a=b")
    ),
    (
        "tolerance_units",
        "tolerance_units = -1",
        "ilp.tolerance_units",
        "must be an integer from 0 to 18446744073709551615, not -1",
    ),
    ("tolerance_basis_points", "tolerance_basis_points = -1", "ilp.tolerance_basis_points", "must be an integer from"),
    ("margin_ms", "margin_ms = -1", "ilp.margin_ms", "must be an integer from 0 to 20000, not -1: the usual values"),
    ("margin_ms", "margin_ms = 1000000", "ilp.margin_ms", "not 1000000: the usual values are 100 to 10000"),
    (
        "tolerance_basis_points",
        "tolerance_basis_points = 20000",
        "ilp.tolerance_basis_points",
        "must be an integer from 0 to 5000, not 20000: the usual values are 0 to 1000, because 100 is one percent, and",
    ),
    ("path", 'path = "/incoming-payments"', "ilp.path", "must not be below /incoming-payments"),
    *(
        ("name", f'name = "{name}"', "peer[0].name", "must be 1 to 64 letters, digits and _~-")
        for name in ("", "a.b", "a b", "é", "x" * 65)
    ),
    ('name = "other', 'name = "connector"', "peer[1].name", "holds the same value as peer[0].name: give connec"),
    ('asset_code = "EUR', 'asset_code = "€"', "peer[0].asset_code", "must be 1 to 32 printable ASCII characters"),
    ("asset_scale = 3", "asset_scale = 256", "peer[0].asset_scale", "must be an integer from 0 to 255"),
    ("token_files", "token_files = []", "peer[0].token_files", "must name 1 to 8 files, but names 0"),
    (
        "token_files",
        'token_files = ["peer.txt", "other.txt"]',
        "peer[1].token_files[0]",
        "holds the same value as peer[0].token_files[1]: give each file a different token",
    ),
    ("token_files", 'token_files = ["new.hex"]', "peer[0].token_files[0]", "same value as ilp.secret_files[0]: give"),
    ("ilp_address", 'ilp_address = "us"', "peer[0].ilp_address", "must be an ILP address of at most"),
    ("expiry_s_max", "expiry_s_max = 0", "limits.expiry_s_max", "must be an integer from 1 to"),
    ("idempotency_key_s", "idempotency_key_s = 0", "limits.idempotency_key_s", "must be an integer from 1 to"),
    ("default_expiry_s", "default_expiry_s = 3601", "limits.default_expiry_s", "must be an integer from 1 to 3600"),
    ("metadata_bytes_max", "metadata_bytes_max = 1", "limits.metadata_bytes_max", "must be an integer from 2 to"),
    ("metadata_depth_max", "metadata_depth_max = 99", "limits.metadata_depth_max", "must be an integer from 1 to"),
    ("signature_age_s", "signature_age_s = 0", "limits.signature_age_s", "must be an integer from 1 to 86400, not 0"),
    ("signature_age_s", "signature_age_s = 86401", "limits.signature_age_s", "must be an integer from 1 to 86400"),
    ("clock_skew_s", "clock_skew_s = 3601", "limits.clock_skew_s", "must be an integer from 0 to 3600, not 3601"),
    ("format", 'format = "xml"', "log.format", "must be 'text' or 'json'"),
    ("clock_skew_s", "clock_skew_s = -1", "limits.clock_skew_s", "must be an integer from 0 to 3600"),
    ("workers", "workers = 0", "listen.workers", "must be an integer from 1 to 64, not 0"),
    ("reference", 'reference = ""', "reference", "must have 1 to 255 characters"),
    ("interval_s", "interval_s = 0", "sweep.interval_s", "must be an integer from 1 to 3600, not 0"),
    ("metrics_port", "metrics_port = 65536", "listen.metrics_port", "must be an integer from 1 to 65535, not 65536"),
    ("unpaid_payments", "unpaid_payments = 501", "quotas.unpaid_payments", "must be an integer from 1 to 500, not 501"),
    ("requests_per_minute", "requests_per_minute = 0", "quotas.requests_per_minute", "must be an integer from 1 to"),
    ("signature_shapes", 'signature_shapes = ["go"]', "limits.signature_shapes[0]", "must be 'php-sdk' or 'rust-sdk'"),
    ("signature_shapes", "signature_shapes = [1]", "limits.signature_shapes[0]", "must be 'php-sdk' or"),
    ("signature_shapes", 'signature_shapes = "php-sdk"', "limits.signature_shapes", "must be an array"),
    # unknown, or misspelt
    ("[[wallet_address]]", "[[wallet_adress]]", "wallet_adress", "is not a setting: did you mean wallet_address?"),
    ("base_url", 'base_ulr = "https://bank.example"', "base_url", "(base_ulr is not a setting: is it misspelt?)"),
    ("base_url", 'base_url = "https://a.example"\ndebug = true', "debug", "is not a setting"),
    ("[log]", "[logs]", "logs", "is not a setting: did you mean log?"),
    (
        "explain_signatures",
        "explain_signature = true",
        "log.explain_signature",
        "is not a setting: did you mean explain_signatures?",
    ),
    ("[limits]", "[limit]", "limit", "is not a setting: did you mean limits?"),
    ("[ilp]", "[ipl]", "ilp", "is missing: give [ilp] with address and secret_files (ipl is not a"),
    ("port", "prot = 9001", "listen.prot", "is not a setting: did you mean port?"),
    ("asset_scale", "asset_scale = 2\nname = 1", "wallet_address[0].name", "is not a setting"),
    ("expires_at", "expires = 2027-01-01T00:00:00Z", "token[0].expires", "is not a setting: did you mean expires_at?"),
    ("address", 'adress = "g.bank"', "ilp.address", "(adress is not a setting: is it misspelt?)"),
    ("address", 'address = "g.bank"\nsecrets = []', "ilp.secrets", "is not a setting: did you mean secret_files?"),
    ("[[peer]]", "[[pear]]", "pear", "is not a setting: did you mean peer?"),
    ("path", 'paths = "/ilp"', "ilp.paths", "is not a setting: did you mean path?"),
    ("ilp_address", 'address = "g.us"', "peer[0].address", "is not a setting: did you mean ilp_address?"),
    ("token_files", 'token_file = ["peer.txt"]', "peer[0].token_files", "(token_file is not a setting: is it"),
    ("public_get", "publicget = true", "limits.publicget", "is not a setting: did you mean public_get?"),
    ("public_get", "asset_code = 1", "limits.asset_code", "is not a setting: this setting belongs in [[wallet"),
    ("public_get", "actions = []", "limits.actions", "is not a setting: this setting belongs in rights"),
    ("address", 'address = "g.bank"\nbase_url = 1', "ilp.base_url", "this setting belongs in front of the first table"),
    ("signature_shapes", 'signature_shapes = ["php"]', "limits.signature_shapes[0]", "did you mean php-sdk?"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "new", "setting", "says"), WRONG)
def test_error_names_the_setting(load: Load, tmp_path: Path, line: str, new: str, setting: str, says: str) -> None:
    """The error names the file, the setting and the change to make, in one line."""
    with pytest.raises(ConfigurationError) as refused:
        load(changed(line, new))

    assert {"setting": setting} == refused.value.details
    assert refused.value.description.startswith(f"{tmp_path / 'configuration.toml'}: {setting}")
    assert says in refused.value.description
    assert "\n" not in refused.value.description


@pytest.mark.parametrize("name", ["listen", "ilp", "limits"])
def test_value_instead_of_a_table_is_refused(load: Load, name: str) -> None:
    """The error for a value in place of a table names the table."""
    says = rf"{name} must be a table, not an integer: write \[{name}\] once, before the settings of this table"
    with pytest.raises(ConfigurationError, match=says) as refused:
        load(f"{name} = 1\n" + FULL.replace(f"[{name}]", "[other]"))
    assert {"setting": name} == refused.value.details


def test_table_instead_of_an_array_is_refused(load: Load) -> None:
    """The error for `[wallet_address]` shows `[[wallet_address]]`."""
    says = r"wallet_address must be an array of tables, such as \[\[wallet_address\]\]"
    with pytest.raises(ConfigurationError, match=says):
        load(LEAST.replace("[[wallet_address]]", "[wallet_address]"))


NO_WALLETS: Final = LEAST[: LEAST.index("[[wallet")] + LEAST[LEAST.index("[ilp]") :]


@pytest.mark.parametrize("text", [NO_WALLETS, f"wallet_address = []\n{NO_WALLETS}"])
def test_configuration_without_a_wallet_address_is_refused(load: Load, text: str) -> None:
    """A configuration needs at least one wallet address."""
    with pytest.raises(ConfigurationError) as refused:
        load(text)
    assert refused.value.details == {"setting": "wallet_address"}
    assert "add at least one table [[wallet_address]], or the table [wallet_addresses]" in refused.value.description


MISSING: Final = "does not exist: correct the name, or add the file"
# content of client.jwk, a part of the message
JWKS: Final[list[tuple[bytes | None, str]]] = [
    (json.dumps({**JWK, "d": JWK["x"]}).encode(), "the JWK has the private member d"),
    (json.dumps({**JWK, "x": "AA"}).encode(), "the JWK's x"),
    (json.dumps({**JWK, "kty": "oct", "k": "AA"}).encode(), "is for a shared secret"),
    (b"-----BEGIN PUBLIC KEY-----", "holds PEM or an SSH key, but must hold the client's public key as a JWK"),
    (b'{"kty": "OKP", "kty": "OKP"}', "the JWK has the member kty twice"),
    (None, MISSING),
]

# content of old.hex, the message
HEX: Final = "must hold 32 bytes or more, in hexadecimal digits, but holds "
NEW_HEX: Final = ": `openssl rand -hex 32` writes a new secret"
NO_HEX: Final = f"{HEX}other characters, or an odd number of digits{NEW_HEX}"
SECRET_FILES: Final = [
    (b"5f" * 31, f"{HEX}31 bytes{NEW_HEX}"),
    (b"5f" * 32 + b"5", NO_HEX),
    (b"xx" * 32, NO_HEX),
    ("ä".encode() * 32, NO_HEX),
    (bytes(range(32)), NO_HEX),
    (b"", f"{HEX}0 bytes{NEW_HEX}"),
    (None, MISSING),
]

# content of other.txt, the message
NEW_TOKEN: Final = "`openssl rand -hex 32` writes a new token"
TOKEN_IN: Final = (
    "must hold only a token: letters, digits and -._~+/, then optional = characters, "
    f"and no `Bearer` before the token: {NEW_TOKEN}"
)
TOKEN_FILES: Final = [
    (b"", TOKEN_IN),
    (b"two tokens in one file", TOKEN_IN),
    ("ä".encode() * 32, TOKEN_IN),
    (b"t" * 4097, TOKEN_IN),
    (b"t" * 15, f"must hold a token of 16 characters or more, not 15: {NEW_TOKEN}"),
    (None, MISSING),
]

UNUSABLE: Final = [
    (setting, name, *row)
    for setting, name, rows in (
        ("token[0].jwk_file", "client.jwk", JWKS),
        ("ilp.secret_files[1]", "old.hex", SECRET_FILES),
        ("peer[1].token_files[0]", "other.txt", TOKEN_FILES),
    )
    for row in rows
]


@pytest.mark.parametrize(("setting", "name", "content", "says"), UNUSABLE)
def test_unusable_file_is_refused(
    load: Load, tmp_path: Path, setting: str, name: str, content: bytes | None, says: str
) -> None:
    """The error names the file, its setting and the reason, but not the content of a secret or a token."""
    path = tmp_path / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        load(FULL)
    assert refused.value.details == {"setting": setting}
    assert refused.value.description.startswith(f"{tmp_path / 'configuration.toml'}: {setting}: {path} ")
    assert says in refused.value.description
    assert "\n" not in refused.value.description


@pytest.mark.parametrize("before", ["", "\r\n", " \t"])
def test_peer_token_may_have_surrounding_space(load: Load, tmp_path: Path, before: str) -> None:
    """White space around a token, such as the newline of an editor, is not part of the token."""
    (tmp_path / "other.txt").write_bytes(f"{before}{PEER_TOKENS['other.txt']}\r\n".encode())
    packets = load(FULL).packets
    assert packets is not None
    assert packets.peer_of([f"Bearer {PEER_TOKENS['other.txt']}"]).address == "g.bank.other_1"


def test_file_name_with_nul_is_refused(load: Load) -> None:
    """An impossible file name is refused like the name of a missing file."""
    for line, new, setting in (
        ("jwk_file", r'jwk_file = "a\u0000b"', "token[0].jwk_file"),
        ("secret_files", r'secret_files = ["a\u0000b"]', "ilp.secret_files[0]"),
    ):
        with pytest.raises(
            ConfigurationError, match=r"cannot be read \(no file can have this name\): correct the path"
        ) as refused:
            load(changed(line, new))
        assert {"setting": setting} == refused.value.details


SECRET: Final = "OS9M2PMHKUR64TB8N6BW7OZB8CDFONP219RP1LT0"
MISPLACED: Final = [
    ("base_url", f'{SECRET} = "https://bank.example/op"'),
    ("public_get", f"{SECRET} = 1"),
    ("public_get", f'"{SECRETS[0].hex()}" = 1'),
    ("public_get", '"a\\nb" = 1'),
    ("rights", f'rights = [{{ actions = ["read"], {SECRET} = 1 }}]'),
    ("rights", f"rights = [{{ {SECRET} = 1, {SECRET} = 2 }}]"),
    ("rights", f'rights = [{{ actions = ["{SECRET}"] }}]'),
    ("rights", f'rights = [{{ actions = ["read"], identifier = "{SECRET}" }}]'),
    ("public_get", f"[{SECRET}]\n[{SECRET}]"),
    ("value", f'value = "{SECRET}'),
    ("value", f"value = {SECRET}"),
    ("value", f'value = "{SECRET} {SECRET}"'),
    ("client", f'client = "{SECRET} {SECRET}"'),
    ("jwk_file", f'jwk_file = "{SECRET}"'),
    ("jwk_file", f'jwk_file = "{SECRET * 50}"'),
    ("secret_files", f'secret_files = ["{SECRETS[0].hex()}"]'),
    ("secret_files", f'secret_files = "{SECRETS[0].hex()}"'),
    ("address", f'address = "{SECRETS[0].hex()}"'),
    ("mount", f'mount = "{SECRET}"'),
    ("token_files", f'token_files = ["{SECRET}"]'),
    ("token_files", f'token_files = "{SECRET}"'),
    ("ilp_address", f'ilp_address = "{SECRET}"'),
    ("path", f'path = "{SECRET}"'),
    ("name", f'{SECRET} = "connector"'),
]  # fmt: skip


@pytest.mark.parametrize(("line", "new"), MISPLACED)
def test_error_never_shows_a_secret(load: Load, line: str, new: str) -> None:
    """The error for a token or a server secret in the wrong place does not repeat it."""
    with pytest.raises(ConfigurationError) as refused:
        load(changed(line, new))
    shown = f"{refused.value.description} {refused.value.details}"
    assert [secret for secret in (SECRET, SECRETS[0].hex(), "\n") if secret in shown] == []


# --- access of other users --------------------------------------------------------

# the file, its mode, the access to remove
MODES: Final = [
    ("configuration.toml", 0o600, None),
    ("configuration.toml", 0o640, "rwx"),
    ("configuration.toml", 0o602, "rwx"),
    ("old.hex", 0o400, None),
    ("old.hex", 0o604, "rwx"),
    ("peer.txt", 0o600, None),
    ("peer-old.txt", 0o640, "rwx"),
    ("client.jwk", 0o644, None),  # a public key
    ("client.jwk", 0o664, "w"),
]


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
@pytest.mark.parametrize(("name", "mode", "denied"), MODES)
def test_files_with_access_for_others_get_a_warning(
    load: Load, tmp_path: Path, name: str, mode: int, denied: str | None
) -> None:
    """A secret that others can read, or a client's key that they can write, is used and gets a warning."""
    load(LEAST)
    for path in tmp_path.iterdir():
        path.chmod(0o600)
    (tmp_path / name).chmod(mode)

    path = tmp_path / name
    says = f"{path}: other users have access (mode {mode:04o}): run chmod go-{denied} on it"
    all_can_pay = FULL.replace('"EUR"\nasset_scale = 3', '"USD"\nasset_scale = 2')
    assert load(all_can_pay).warnings == (() if denied is None else (says,))


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        (".", 0o777, "every user can replace the files in this folder (mode 0777): run chmod o-w on it"),
        (".", 0o1777, None),  # as /tmp: a user can replace only files of that user
        (".", 0o770, None),
        ("data", 0o757, "every user can replace the files in this folder (mode 0757): run chmod o-w on it"),
        ("data/payments.sqlite3", 0o666, "every user can read or change payments (mode 0666): run chmod o-rwx on it"),
        ("data/payments.sqlite3", 0o604, "every user can read or change payments (mode 0604): run chmod o-rwx on it"),
        ("data/payments.sqlite3", 0o660, None),  # a group may share the database with core banking
    ],
)
def test_access_of_every_user_to_folders_and_database_gets_a_warning(
    load: Load, tmp_path: Path, name: str, mode: int, expected: str | None
) -> None:
    """A folder in which every user can replace files, and a database that every user can open, get one warning."""
    load(FULL)
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data/payments.sqlite3").touch(mode=0o600)
    for path in tmp_path.iterdir():
        path.chmod(0o700)
    (tmp_path / name).chmod(mode)
    found = [warning for warning in load(FULL).warnings if "chmod" in warning]
    assert found == ([] if expected is None else [f"{tmp_path / name}: {expected}"])


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_secret_of_another_owner_gets_a_warning(load: Load, tmp_path: Path) -> None:
    """The owner of a file can read and change it, whatever its mode is."""
    load(LEAST)
    os.chown(tmp_path / "new.hex", 12345, -1)
    path = tmp_path / "new.hex"
    assert (
        f"{path} belongs to another user (uid 12345), who can change the file: run chown on it" in load(LEAST).warnings
    )


def test_service_without_access_for_clients_gets_a_warning(load: Load) -> None:
    """Without tokens and without an authorization server, every client would get 401."""
    says = "there is no [authorization_server] and no [[token]], so every client with a token gets 401 invalid_token"
    assert [says in " ".join(load(text).warnings) for text in (LEAST, FULL)] == [True, False]


@pytest.mark.parametrize(("scheme", "warns"), [("https", True), ("http", False)])
def test_private_clients_in_production_get_a_warning(load: Load, scheme: str, warns: bool) -> None:
    """A setting for development is suspicious if `base_url` is an https URL."""
    text = LEAST.replace('base_url = "https', f'base_url = "{scheme}')
    server = '[authorization_server]\nurl = "https://auth.bank.example/i"\ndialect = "rafiki"\n'
    warnings = " ".join(load(f"{text}{server}allow_private_clients = true\n").warnings)
    assert ("authorization_server.allow_private_clients is true" in warnings) == warns


def test_peer_without_a_payable_wallet_address_gets_a_warning(load: Load, tmp_path: Path) -> None:
    """A peer gets a warning if no wallet address has the same asset code and scale."""
    says = "{}: peer[0] has the asset {} at scale 3, but no wallet address has this asset, so this peer cannot pay:"
    how = " correct asset_code and asset_scale, or add a wallet address with this asset"
    for code in ("EUR", "USD"):
        text = says.format(tmp_path / "configuration.toml", code) + how
        assert text in load(FULL.replace('"EUR"', f'"{code}"')).warnings


def test_warnings_name_the_file_and_the_setting(load: Load, tmp_path: Path) -> None:
    """Each kind of advice is given with the name of the configuration."""
    text = changed("expires_at", "expires_at = 2025-12-31T23:59:59Z")
    text = changed("margin_ms", "margin_ms = 20000", changed("signature_age_s", "signature_age_s = 7200", text))
    text = changed(
        "tolerance_units", "tolerance_units = 1000", changed('asset_code = "JPY', 'asset_code = "jpy"', text)
    )
    text = changed("host", 'host = "192.0.2.1"', text)
    for path in tmp_path.iterdir():
        path.chmod(0o600)
    warnings = [warning for warning in load(text).warnings if "chmod" not in warning]
    start = f"{tmp_path / 'configuration.toml'}: "
    assert [warning.removeprefix(start).split()[:3] for warning in warnings] == [
        ["listen.host:", "192.0.2.1", "is"],
        ["ilp.margin_ms", "is", "20000:"],
        ["limits.signature_age_s", "is", "7200:"],
        ["token[0].expires_at", "is", "2025-12-31T23:59:59Z,"],
        ["wallet_address[1].asset_code", "is", '"jpy":'],
        ["peer[0]", "has", "the"],
        ["peer[1]", "has", "the"],
        ["ilp.tolerance_units", "is", "1000,"],
        ["ilp.tolerance_units", "is", "1000,"],
    ]


def test_no_warnings_without_modes(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no warning about modes on systems without such modes."""
    monkeypatch.setattr(files, "POSIX", False)
    assert [warning for warning in load(LEAST).warnings if "chmod" in warning] == []


INVALID: Final = "is not TOML: Invalid value (at line 1, column 14); write strings"
NEWLINE: Final = "is not TOML: Expected newline or end of document after a statement (at line 1, column 13)"
UNESCAPED: Final = "is not TOML: Unescaped ... in a string (at line 1, column 17)"


# --- the file itself -----------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")
@pytest.mark.parametrize("name", ["configuration.toml", "new.hex", "client.jwk", "peer.txt"])
def test_file_that_would_block_is_refused(load: Load, tmp_path: Path, name: str) -> None:
    """A FIFO without a writer keeps no process waiting."""
    load(FULL)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigurationError, match=rf"{name} is not a regular file: give the path of a regular file"):
        load_settings(tmp_path / "configuration.toml")


@pytest.mark.parametrize("name", ["configuration.toml", "new.hex"])
def test_file_of_endless_length_is_refused(load: Load, tmp_path: Path, name: str) -> None:
    """No more than a bounded part of a file is read."""
    load(FULL)
    with (tmp_path / name).open("wb") as file:
        file.truncate(CONFIGURATION_BYTES_MAX + 1)
    with pytest.raises(ConfigurationError, match=rf"{name} is larger than {CONFIGURATION_BYTES_MAX} bytes"):
        load_settings(tmp_path / "configuration.toml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"x = {'[' * 5000}", "is nested too deeply"),
        ("base_url = ", "is not TOML: Invalid value (at end of document)"),
        (
            'base_url = "a"\nbase_url = "b"',
            "is not TOML: Cannot overwrite a value (at end of document); the setting occurs",
        ),
        ("[log]\n[log]\n", "is not TOML: Cannot declare [log] twice (at line 2, column 5); the table occurs twice"),
        ('base_url: "a"', "is not TOML: Expected = after a key in a key/value pair (at line 1, column 9)"),
        ("public_get = True", f"{INVALID} in quotes, and true and false in lower case"),
        ("host = 127.0.0.1", f"{NEWLINE}; write strings and addresses in quotes"),
        (r'database = "C:\payments.sqlite3"', f"{UNESCAPED}; write / in place of \\ in a path"),
        (b"\xff\xfe", "is not TOML: byte 0 is not UTF-8; save the file as UTF-8"),
        (f"port = {'9' * 5000}", "is not TOML: "),
    ],
)
def test_file_that_is_not_toml_is_refused(load: Load, tmp_path: Path, text: str | bytes, says: str) -> None:
    """The error names the file and the position."""
    with pytest.raises(ConfigurationError) as refused:
        load(text)
    assert f"{tmp_path / 'configuration.toml'} {says}" in refused.value.description


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("none.toml", "does not exist: give another file with --config, or create it with `incoming-payments init FOL"),
        ("folder", "is a folder: give the path of a file"),
        (
            "file/configuration.toml",
            "cannot be read (Not a directory): correct the path, or let this process read the file",
        ),
    ],
)
def test_unreadable_configuration_is_refused(tmp_path: Path, name: str, says: str) -> None:
    """The error says what to do, or has the reason of the operating system."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError) as refused:
        load_settings(tmp_path / name)
    assert refused.value.description.startswith(f"{tmp_path / name} {says}")
