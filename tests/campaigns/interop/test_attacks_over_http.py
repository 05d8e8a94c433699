"""Every attack over real HTTP, on a `serve` process: the refusal has the right code, and nothing is stored.

Requests are sent as raw bytes over a socket, so no client library changes them.
"""

import json
import sqlite3
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve, frozen

from campaigns.attacks import on_the_wire, on_tokens
from campaigns.attacks.everything import all_rows
from campaigns.attacks.on_registered_keys import bad_keys
from campaigns.attacks.on_replays import replays
from campaigns.attacks.rows import ENDS_EARLY, Answer, Attack, Attempt, BadKey, Replay
from campaigns.attacks.signatures import attacks
from incoming_payments.errors import ConfigurationError
from incoming_payments.httpsig import Algorithm, RequestMessage
from incoming_payments.server.config.settings import load_settings
from incoming_payments.server.init import CLIENT_JWK, CONFIGURATION
from kits.processes import COMMAND, ROOT, HttpClient, free_port, run_command, serving
from kits.raw_http import answers, as_bytes, exchange
from kits.signed_requests import KEY, SCENE, Scene

BASE_URL: Final = "https://bank.example"  # as behind a proxy that ends TLS
CLIENT: Final = f"{BASE_URL}/a-client"
TABLES: Final = ("payments", "credits", "events", "nonces")
OTHERS: Final = (Algorithm.ES256, Algorithm.PS512)  # other keys of the client


@frozen
class Bank:
    """A `serve` process for `https://bank.example`, and the client that is attacked."""

    port: int
    folder: Path
    scene: Scene

    def send(self, data: bytes, *, ends_early: bool = False) -> list[Answer]:
        """Return the answers to `data`. None contains a token, and each 401 names the authorization server."""
        received = exchange(self.port, data, ends_early=ends_early)
        found = answers(received)
        assert not any(token.encode() in received for token in self.scene.tokens)
        assert received.count(b"www-authenticate: GNAP as_uri=") == [status for status, _ in found].count(401)
        return found

    def answer(self, request: RequestMessage) -> Answer:
        """Return the only answer to `request`."""
        (answer,) = self.send(as_bytes(request, BASE_URL))
        return answer

    def rows(self) -> tuple[int, ...]:
        """Return the number of rows in each table of the store."""
        with closing(sqlite3.connect(self.folder / "payments.sqlite3")) as database:
            return tuple(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES)  # noqa: S608


# --- the servers -----------------------------------------------------------------------------------


def configure(folder: Path, port: int, limits: str = "") -> Scene:
    """Write a configuration with tokens of all kinds to `folder`, and return the client that has them."""
    assert run_command("init", folder, "--port", str(port)).returncode == 0
    client = HttpClient.of(folder, BASE_URL)
    scene = evolve(
        SCENE,
        url=f"{BASE_URL}/incoming-payments/none-yet",
        collection=f"{BASE_URL}/incoming-payments",
        body=json.dumps({"walletAddress": f"{BASE_URL}/alice"}).encode(),
        now=datetime.now(UTC),
        tokens=(client.token, "ANOTHER"),
        key=client.key,
    )
    strangers = write_jwk(folder, scene.other.public_jwk())
    tokens = [
        token_table("ANOTHER", CLIENT_JWK),
        *(token_table(other.value, write_jwk(folder, scene.by(other).key.public_jwk())) for other in OTHERS),
        token_table(on_tokens.EXPIRED, CLIENT_JWK, more="expires_at = 2020-01-01T00:00:00Z"),
        token_table(on_tokens.READ_ONLY, CLIENT_JWK, actions="read"),
        token_table(on_tokens.CREATE_ONLY, CLIENT_JWK, actions="create"),
        token_table(on_tokens.STRANGERS, strangers, client="https://stranger.example/"),
    ]
    path = folder / CONFIGURATION
    text = path.read_text("utf-8").replace(f"http://127.0.0.1:{port}", BASE_URL)
    path.write_text("".join([text.replace("[limits]\n", f"[limits]\n{limits}\n"), *tokens]), "utf-8")
    return scene


def write_jwk(folder: Path, jwk: dict[str, Any]) -> str:
    """Write `jwk` to a new file, and return its name."""
    name = f"{len(list(folder.iterdir()))}.jwk"
    (folder / name).write_text(json.dumps(jwk), "utf-8")
    return name


def token_table(
    value: str, jwk_file: str, *, client: str = CLIENT, actions: str = 'create", "read', more: str = ""
) -> str:
    """Return the table of a token for the configuration."""
    rights = f'[{{ actions = ["{actions}"], identifier = "{BASE_URL}/alice" }}]'
    return f'[[token]]\nvalue = "{value}"\nclient = "{client}"\njwk_file = "{jwk_file}"\nrights = {rights}\n{more}\n'


@contextmanager
def bank_in(folder: Path, scene: Scene, port: int) -> Iterator[Bank]:
    """Run `serve` with the configuration in `folder`."""
    with serving([*COMMAND, "serve", "--config", folder / CONFIGURATION], port, folder / "log"):
        yield Bank(port, folder, scene)


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    """Run the server for most attacks, with a payment of the client that they try to read."""
    folder, port = tmp_path_factory.mktemp("bank"), free_port()
    scene = configure(folder, port)
    with bank_in(folder, scene, port) as bank:
        yield evolve(bank, scene=evolve(scene, url=created(bank)))
    assert "Traceback" not in (folder / "log").read_text("utf-8")


def created(bank: Bank) -> str:
    """Return the URL of a new payment of the client."""
    answer = exchange(bank.port, as_bytes(bank.scene.signed_post(), BASE_URL))
    payment = json.loads(answer.partition(b"\r\n\r\n")[2])
    return str(payment["id"])


# --- attacks on signatures -------------------------------------------------------------------------

ROWS: Final = [attack.id for attack in attacks(SCENE)]


@pytest.fixture(scope="module")
def live(bank: Bank) -> dict[str, Attack]:
    """Return the same attacks, made for the running server."""
    return {attack.id: attack for attack in attacks(bank.scene)}


@pytest.mark.parametrize("row", ROWS)
def test_attack_on_a_signature(bank: Bank, live: dict[str, Attack], row: str) -> None:
    """The answer is 401 with the code of the row, or that of its `OverHttp`. Nothing is stored."""
    attack = live[row]
    before = bank.rows()
    answered = bank.send(as_bytes(attack.request, BASE_URL), ends_early=attack.over_http is ENDS_EARLY)
    assert answered == [answer for answer in attack.answers if answer[0] is not None]
    assert bank.rows() == before


# --- attacks on tokens, and in bytes ---------------------------------------------------------------


def attempts(at: Scene) -> dict[str, Attempt]:
    """Return the attacks on tokens, with tokens and in bytes."""
    return {attempt.id: attempt for attempt in (*on_tokens.attempts(at), *on_the_wire.attempts(at))}


@pytest.fixture(scope="module")
def live_attempts(bank: Bank) -> dict[str, Attempt]:
    """Return the same attacks, made for the running server."""
    return attempts(bank.scene)


@pytest.mark.parametrize("row", attempts(SCENE))
def test_attempt(bank: Bank, live_attempts: dict[str, Attempt], row: str) -> None:
    """The answers are those of the row, and nothing is stored."""
    attempt = live_attempts[row]
    before = bank.rows()
    data = attempt.sent if isinstance(attempt.sent, bytes) else as_bytes(attempt.sent, BASE_URL)
    assert bank.send(data) == list(attempt.answers)
    assert bank.rows() == before


# --- replays --------------------------------------------------------------------------

REPLAYS: Final = list(replays(SCENE))


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Answer]]:
    """Return the answers to both requests of each replay, and to both after a restart of the server."""
    folder, port = tmp_path_factory.mktemp("replays"), free_port()
    scene = configure(folder, port, limits="allow_identical = false")
    with bank_in(folder, scene, port) as bank:
        rows = {replay.id: replay for replay in replays(evolve(scene, url=created(bank)))}
        answered = {id: [bank.answer(row.first)] for id, row in rows.items()}
        good = bank.rows()
        for id, row in rows.items():
            answered[id].append(bank.answer(row.second))
        assert bank.rows() == good
    with bank_in(folder, scene, port) as bank:
        for id, row in rows.items():
            answered[id] += [bank.answer(row.second), bank.answer(row.first)]
        assert bank.rows() == good
    assert "Traceback" not in (folder / "log").read_text("utf-8")
    return answered


@pytest.mark.parametrize("row", REPLAYS, ids=[row.id for row in REPLAYS])
def test_replay(replayed: dict[str, list[Answer]], row: Replay) -> None:
    """The first request is accepted. Every repeat is refused, also after a restart."""
    first, *again = replayed[row.id]
    assert first in [(200, None), (201, None)]
    assert again == [*row.answers] * 3


def test_equal_nonces_at_the_same_time_are_accepted_once(bank: Bank) -> None:
    """Of many equal requests at the same time, the service accepts one."""
    data = as_bytes(bank.scene.signed_post(nonce="same time"), BASE_URL)
    with ThreadPoolExecutor(16) as pool:
        found = [answer for answers in pool.map(bank.send, [data] * 16) for answer in answers]
    assert sorted(found, key=str) == [(201, None), *[(401, "nonce_used")] * 15]


# --- bad keys --------------------------------------------------------------------------------------

KEYS: Final = list(bad_keys())


@pytest.fixture(scope="module")
def unchecked_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    """Run a server whose authorization server binds tokens to unchecked keys. A token is named after its row."""
    folder, port = tmp_path_factory.mktemp("keys"), free_port()
    scene = evolve(configure(folder, port), key=KEY, tokens=("GOOD", "GOOD"))
    tokens = {"GOOD": KEY.public_jwk(), **{f"BAD-{number}": row.jwk for number, row in enumerate(KEYS)}}
    (folder / "tokens.json").write_text(json.dumps(tokens), "utf-8")
    program = ROOT / "tests" / "kits" / "careless_service.py"
    command: list[str | Path] = [sys.executable, program, folder / CONFIGURATION, folder / "tokens.json"]
    with serving(command, port, folder / "log"):
        bank = Bank(port, folder, scene)
        yield evolve(bank, scene=evolve(scene, url=created(bank)))
    assert "Traceback" not in (folder / "log").read_text("utf-8")


@pytest.mark.parametrize("number", range(len(KEYS)), ids=[row.id for row in KEYS])
def test_bad_key(unchecked_keys: Bank, number: int) -> None:
    """A token that is bound to the key is refused, with any signature."""
    at = evolve(unchecked_keys.scene, tokens=(f"BAD-{number}", "GOOD"))
    before = unchecked_keys.rows()
    for request in (at.get_by(KEYS[number].sign), at.signed_post()):
        assert (unchecked_keys.answer(request),) == KEYS[number].answers
    assert unchecked_keys.rows() == before


@pytest.mark.parametrize("row", KEYS, ids=[row.id for row in KEYS])
def test_bad_key_in_the_configuration(row: BadKey, tmp_path_factory: pytest.TempPathFactory) -> None:
    """`serve` does not start with the key, and names the setting."""
    folder = tmp_path_factory.mktemp("key")
    (folder / CONFIGURATION).write_text(
        f'base_url = "{BASE_URL}"\nauth_server = "{BASE_URL}"\ndatabase = "payments.sqlite3"\n'
        f'[[wallet_address]]\nurl = "{BASE_URL}/alice"\nasset_code = "USD"\nasset_scale = 2\n'
        '[ilp]\naddress = "test.bank"\nsecret_files = ["secret"]\n' + token_table("TOKEN", write_jwk(folder, row.jwk)),
        "utf-8",
    )
    (folder / "secret").write_text("5f" * 32, "ascii")
    with pytest.raises(ConfigurationError) as refused:
        load_settings(folder / CONFIGURATION)
    assert refused.value.details["setting"] == "token[0].jwk_file"


# --- all of them, and honest requests --------------------------------------------------------------


def test_rows_are_unique_and_numerous() -> None:
    """Names of rows are unique, each class is in one family, and no `OverHttp` repeats the usual answer."""
    rows = list(all_rows())
    kinds = {(row.family, row.kind) for row in rows}
    assert len({row.id for row in rows}) == len(rows) > 600
    assert len({kind for _, kind in kinds}) == len(kinds) > 140
    on_signatures = [row for row in rows if isinstance(row, Attack)]
    assert len({row.kind for row in on_signatures}) >= 80
    assert all(row.answers != ((401, row.code.value),) for row in on_signatures if row.over_http)


def test_honest_requests_are_still_answered(bank: Bank, unchecked_keys: Bank) -> None:
    """After all attacks, the client can read and create with each of its keys."""
    for at in (bank.scene, *(bank.scene.by(other) for other in OTHERS)):
        assert bank.answer(at.signed_get()) == (200, None)
        assert bank.answer(at.signed_post()) == (201, None)
    assert unchecked_keys.answer(unchecked_keys.scene.signed_get()) == (200, None)


def test_forged_request_without_an_attack_is_accepted(bank: Bank) -> None:
    """Forged requests without an attack are accepted, so each row fails only because of its attack."""
    at = bank.scene
    for request in (
        at.get_with(at.params()),
        at.get_covering(('"x-a"', "1"), headers=[("X-A", "1")]),
        at.get_covering(url=f"{at.url}?x=1"),
        at.meant_for(at.url),
        at.get_by(at.key.sign),
    ):
        assert bank.answer(request) == (200, None)
    for names in (["content-digest"], ["content-digest", "content-length", "content-type"]):
        assert bank.answer(at.post_covering(at.digested(), *names)) == (201, None)
