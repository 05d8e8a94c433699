"""`incoming-payments sign`: a real shell runs its output, and the signatures are verified."""

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve, frozen
from cryptography.hazmat.primitives.asymmetric import ed25519

from incoming_payments.httpsig import Algorithm, Policy, PrivateKey, Proof, RequestMessage, load_jwk, verify
from incoming_payments.limits import COMMAND_BODY_BYTES_MAX, SIGNED_BODY_BYTES_MAX
from incoming_payments.server.command import main
from incoming_payments.server.init import CLIENT_JWK, CLIENT_KEY, CONFIGURATION
from kits.processes import COMMAND, free_port, run_command, serving, token_in
from kits.shell import Recorder, needs_curl, recording, sh
from kits.signing_keys import pem, private, rsa_key, useless_keys

pytestmark: Final = pytest.mark.usefixtures("folder")  # each test runs in one that `init` has filled
URL: Final = "http://127.0.0.1:9002/incoming-payments"
NO_CONFIGURATION: Final = "/nowhere/incoming-payments.toml"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, which `init` has filled."""
    monkeypatch.chdir(tmp_path)
    with redirect_stdout(io.StringIO()):
        assert main(["init", ".", "--port", "9002"]) == 0
    return tmp_path


@frozen
class Signer:
    """Return a function that runs `sign` in this process."""

    capture: pytest.CaptureFixture[bytes]

    def __call__(self, *arguments: str, warning: str = "") -> bytes:
        """Return the output of a successful run without warnings."""
        status = main(["sign", *arguments])
        printed = self.capture.readouterr()
        assert (status, printed.err.decode()) == (0, warning)
        return printed.out

    def request(self, *arguments: str) -> RequestMessage:
        """The request that it prints."""
        head, _, body = self(*arguments, "--format", "http").partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = line.split(" ")
        fields = tuple((name, value) for name, _, value in (each.partition(": ") for each in lines))
        host = next(value for name, value in fields if name == "Host")
        return RequestMessage(method, f"http://{host}{target}", fields, body)


@pytest.fixture
def sign(capsysbinary: pytest.CaptureFixture[bytes]) -> Signer:
    """Return the command of a shell that runs in `folder`."""
    return Signer(capsysbinary)


@pytest.fixture(scope="module")
def server() -> Iterator[Recorder]:
    """Run a server that records its requests."""
    with recording() as recorder:
        yield recorder


def proof_of(request: RequestMessage, folder: Path, **policy: Any) -> Proof:
    """Return the proof of the request under the client's key, now."""
    key = load_jwk((folder / CLIENT_JWK).read_bytes())
    return verify(request, {key.kid: key}, policy=Policy(**policy), now=datetime.now(UTC))


def warning_of(base_url: str) -> str:
    """Return the warning for a URL that is not below `base_url`."""
    text = f"the URL is not below {base_url}, the base_url in {CONFIGURATION}"
    return f"incoming-payments: warning: {text}, so the service would refuse the signature\n"


def covered(request: RequestMessage) -> str:
    """Return the covered components, as the signature lists them."""
    [field] = request.values("signature-input")
    return field[field.index("(") + 1 : field.index(")")]


# --- against the service ---------------------------------------------------------------------------


def answer(command: str | bytes) -> tuple[int, Any]:
    """Run the command in a shell, and return the status and the JSON of the response."""
    text = command if isinstance(command, str) else command.decode()
    done = sh(f"{text.rstrip()} -w '\\n%{{http_code}}'")
    assert (done.returncode, done.stderr) == (0, b"")
    body, _, status = done.stdout.rpartition(b"\n")
    return int(status), json.loads(body)


@pytest.fixture
def collection(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the URL of the collection of a service that runs in the current folder."""
    folder, port = tmp_path_factory.mktemp("bank"), free_port()
    monkeypatch.chdir(folder)
    assert run_command("init", ".", "--port", str(port)).returncode == 0
    with serving([*COMMAND, "serve"], port, folder / "log"):
        yield f"http://127.0.0.1:{port}/incoming-payments"


@needs_curl
def test_signed_commands_create_and_read_a_payment(sign: Signer, collection: str) -> None:
    """After `init` and `serve`, the output of `sign` creates a payment with any body, and reads it."""
    odd = 'it\'s "odd"\n$HOME `id` !! \\ € %s'
    body = {"walletAddress": collection.replace("incoming-payments", "alice"), "metadata": {"note": odd}}
    text = json.dumps(body, indent=1, ensure_ascii=False)
    Path("the body.json").write_text(text, "utf-8")

    whole_process = run_command("sign", "POST", collection, "--data", text)
    created = answer(whole_process.stdout)
    from_file = answer(sign("POST", collection, "--data", "@the body.json", "--digest", "sha-256"))
    payment = created[1]["id"]
    read = answer(sign("GET", payment))
    options = ["--nonce", "--expires", "60", "--header", "X-A: é", "--cover", "x-a;bs", "--alg", "--tag", "t"]
    with_options = answer(sign("GET", payment, *options))
    head = sh(sign("HEAD", payment))

    assert whole_process.stderr == ""
    assert [(201, odd)] * 2 == [(status, made["metadata"]["note"]) for status, made in (created, from_file)]
    assert [(200, created[1])] * 2 == [read, with_options]
    assert head.stdout.startswith(b"HTTP/1.1 200 ")


def warn(text: str) -> str:
    """Return the line of a warning."""
    return f"incoming-payments: warning: {text}\n"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ('{"walletAddress": }', "(Expecting value: line 1 column 19 (char 18)): the service would refuse this body"),
        (
            "{'walletAddress': 'a'}",
            "(Expecting property name enclosed in double quotes: line 1 column 2 (char 1)): the service would refuse",
        ),
        (
            "client-key.jwk",
            "(Expecting value: line 1 column 1 (char 0)): write --data @client-key.jwk for the file of ",
        ),
        ("@client-key.pem", "(Expecting value: line 1 column 1 (char 0)): the service would refuse this"),
        ("@latin-1", "('utf-8' codec can't decode byte 0xe9 in position 1: "),
    ],
)
def test_body_that_is_not_json_gets_a_warning(
    folder: Path, capfd: pytest.CaptureFixture[str], data: str, why: str
) -> None:
    """The body is signed nevertheless, to try how a service refuses it."""
    (folder / "latin-1").write_bytes(b'"\xe9"')
    assert main(["sign", "POST", URL, "--data", data]) == 0
    printed = capfd.readouterr()
    assert printed.err.startswith(f"incoming-payments: warning: --data is not JSON {why}")
    assert printed.err.count("\n") == 1
    assert printed.out.startswith("curl ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--data", '{"a": 1}'],
        ["--data", "@client-key.jwk"],
        ["--data", ""],
        ["--data", "a=1", "--header", "content-type: application/x-www-form-urlencoded"],
    ],
)
def test_body_that_is_json_or_of_another_type_gets_no_warning(sign: Signer, arguments: list[str]) -> None:
    """`--data` is JSON unless a Content-Type is given."""
    sign("POST", URL, *arguments)


def test_expired_token_gets_a_warning(folder: Path, sign: Signer) -> None:
    """The service would refuse a configured token that has expired. Another token may be valid."""
    path = folder / CONFIGURATION
    text = path.read_text("utf-8")
    path.write_text(text.replace("# expires_at = 2027-", "expires_at = 2020-"), "utf-8")
    warning = warn(f"the token has expired (expires_at in {CONFIGURATION}), so the service would refuse it")
    sign("GET", URL, warning=warning)
    sign("GET", URL, "--token", token_in(folder), warning=warning)
    sign("GET", URL, "--token", "OTHER")
    sign("GET", URL, "--no-token")
    path.write_text(text.replace("# expires_at = 2027-", "expires_at = 9998-"), "utf-8")
    sign("GET", URL)


# --- the request ------------------------------------------------------------------------------------


@needs_curl
@pytest.mark.parametrize(
    ("suffix", "arguments"),
    [
        ("/", ["GET"]),
        ("/a/../b/%2e/{1,2}[3-4]?a=$HOME&b='\"", ["GET"]),
        ("/", ["HEAD"]),
        ("/", ["DELETE", "--header", "X-Empty:", "--cover", "x-empty"]),
        ("/", ["POST", "--data", ""]),
        ("/", ["POST", "--data", "@file", "--header", "Content-Type: x/y"]),
        ("/", ["PUT", "--data", "it's !! $HOME `id`\n\\ € \t\x1b", "--header", "Content-Type: x/y"]),
        ("/?b=1&a", ["GET", "--cover", '"@query-param";name="b"', "--cover", "@authority"]),
        ("/", ["GET", "--header", "X-A: é", "--header", "x-a:  2 ", "--cover", "x-a;bs"]),
        ("/", ["POST", "--data", "x=1", "--header", "content-type: application/x-www-form-urlencoded"]),
    ],
)
def test_received_request_is_the_signed_one(
    folder: Path, sign: Signer, server: Recorder, suffix: str, arguments: list[str]
) -> None:
    """The signature is valid for the received request, which is the same as in `--format http`."""
    (folder / "file").write_bytes(b"\r\n\xff\0\n")
    arguments = [arguments[0], f"{server.base_url}{suffix}", *arguments[1:]]
    arguments += ["--key", CLIENT_KEY, "--key-id", "client-key-1", "--token", "T0", "--created", "1"]
    shown = sign.request(*arguments)
    done = sh(sign(*arguments), folder)
    assert (done.returncode, done.stderr) == (0, b"")
    got = server.taken()

    assert (shown.method, shown.target_uri, shown.body) == (got.method, got.target_uri, got.body)
    assert {*shown.headers, *proof_fields(got)} == {*shown.headers}
    assert proof_of(got, folder, max_age_s=2**40).key_id == "client-key-1"


def proof_fields(request: RequestMessage) -> list[tuple[str, str]]:
    """Return the fields of a request that the signature can cover."""
    by_curl = {"user-agent", "accept", "connection"}
    return [field for field in request.headers if field[0].lower() not in by_curl]


def test_command_has_the_documented_form(folder: Path, sign: Signer) -> None:
    """The command has one field a line, and the body last."""
    lines = sign("POST", URL, "--data", '{"a": 1}').decode().splitlines()
    fields = [f"Authorization: GNAP {token_in(folder)}", "Content-Type: application/json"]
    assert [f"curl -sS -X POST {URL} \\", *(f"  -H '{field}' \\" for field in fields)] == lines[:3]
    assert [line.split(":")[0] for line in lines[3:6]] == [
        "  -H 'Content-Digest",
        "  -H 'Signature-Input",
        "  -H 'Signature",
    ]
    assert lines[6:] == ["  --data-raw '{\"a\": 1}'"]


def test_format_headers_prints_the_fields(folder: Path, sign: Signer) -> None:
    """`--format headers` prints each field on a line, for other clients."""
    lines = sign("POST", URL, "--data", "{}", "--format", "headers").decode().splitlines()
    names = ["Authorization", "Content-Type", "Content-Length", "Content-Digest", "Signature-Input", "Signature"]
    assert names == [line.partition(": ")[0] for line in lines]
    headers = tuple((name, value) for name, _, value in (line.partition(": ") for line in lines))
    assert proof_of(RequestMessage("POST", URL, headers, b"{}"), folder).signature_input.label == "sig1"


def test_given_host_and_connection_replace_the_defaults(sign: Signer) -> None:
    """A whole request has one Host and one Connection, with the given values."""
    request = sign.request("GET", URL, "--header", "Host: other.example", "--header", "Connection: keep-alive")
    assert (request.values("host"), request.values("connection")) == (("other.example",), ("keep-alive",))


def test_body_from_standard_input(folder: Path, sign: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--data @-` puts the bytes of standard input into the command, unchanged."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"a":\t1}\r\n')))
    request = sign.request("POST", URL, "--data", "@-")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"a":\t1}\r\n')))
    command = sign("POST", URL, "--data", "@-").decode()

    assert request.body == b'{"a":\t1}\r\n'
    assert proof_of(request, folder).key_id == "client-key-1"
    assert command.startswith("printf '{\"a\":\\0111}\\015\\012' |\ncurl ")


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such files")
def test_body_from_a_pipe(sign: Signer) -> None:
    """A body from a pipe becomes part of the command, because a pipe can be read only once."""
    reading, writing = os.pipe()
    os.write(writing, b"{}")
    os.close(writing)
    try:
        command = sign("POST", URL, "--data", f"@/dev/fd/{reading}").decode()
    finally:
        os.close(reading)
    assert command.endswith(" \\\n  --data-raw '{}'\n")


# --- the signature -------------------------------------------------------------------------

WITH_BODY: Final = '"@method" "@target-uri" "authorization" "content-digest" "content-length" "content-type"'


@pytest.mark.parametrize(
    ("arguments", "components"),
    [
        (["GET", URL], '"@method" "@target-uri" "authorization"'),
        (["POST", URL, "--data", "{}"], WITH_BODY),
        (["POST", URL, "--data", "{}", "--header", 'Idempotency-Key: "a"'], f'{WITH_BODY} "idempotency-key"'),
        (["POST", URL, "--data", ""], '"@method" "@target-uri" "authorization"'),
        (["GET", URL, "--no-token"], '"@method" "@target-uri"'),
        (["GET", URL, "--cover", "@query", "--cover", "@method"], '"@method" "@target-uri" "authorization" "@query"'),
        (["GET", URL, "--only", "--cover", "@path"], '"@path"'),
        (["GET", URL, "--only"], ""),
        (["GET", f"{URL}?a=1", "--only", "--cover", '@query-param;name="a"'], '"@query-param";name="a"'),
        (["GET", URL, "--only", "--header", "X-A: 1", "--cover", '"x-a";bs'], '"x-a";bs'),
        *(
            (
                ["POST", URL, "--data", "{}", "--only", "--cover", f"content-digest;key={name}", *options],
                f'"content-digest";key={name}',
            )
            for name, options in (('"sha-512"', []), ('"sha-256"', ["--digest", "sha-256"]))
        ),
    ],
)
def test_covered_components(sign: Signer, arguments: list[str], components: str) -> None:
    """The defaults are those of Open Payments clients. `--cover` adds components, `--only` drops the defaults."""
    assert components == covered(sign.request(*arguments))


@pytest.mark.parametrize(
    ("arguments", "parameters"),
    [
        ([], ""),
        (["--expires", "30"], ";expires=1000030"),
        (["--alg"], ';alg="ed25519"'),
        (["--tag", 'a"b'], ';tag="a\\"b"'),
        (["--key-id", "other"], ""),
    ],
)
def test_signature_parameters(sign: Signer, arguments: list[str], parameters: str) -> None:
    """The signature has exactly the parameters that the options request."""
    [field] = sign.request("GET", URL, "--created", "1000000", "--label", "a", *arguments).values("signature-input")
    key_id = "other" if "other" in arguments else "client-key-1"
    assert f'a=("@method" "@target-uri" "authorization");keyid="{key_id}";created=1000000{parameters}' == field


def test_default_time_and_nonce(folder: Path, sign: Signer) -> None:
    """`created` is the current time, and each signature with `--nonce` has a new nonce."""
    proofs = [proof_of(sign.request("GET", URL, "--nonce"), folder) for _ in range(2)]
    assert proofs[0].signature_input.nonce != proofs[1].signature_input.nonce
    assert all(re.fullmatch(r"[\w-]{22}", proof.signature_input.nonce or "") for proof in proofs)
    assert proof_of(sign.request("GET", URL), folder).signature_input.nonce is None


# --- key and token ---------------------------------------------------------------------------------------


def second_token(folder: Path, key: Any, alg: str = "EdDSA") -> PrivateKey:
    """Add a second `[[token]]`, TOKEN2, with a key of its own in second.pem."""
    private = PrivateKey.from_pem(pem(key), kid="second", algorithm=Algorithm(alg))
    (folder / "second.pem").write_bytes(pem(key))
    (folder / "second.jwk").write_text(json.dumps(private.public_jwk()), "utf-8")
    with (folder / CONFIGURATION).open("a", encoding="utf-8") as file:
        file.write('\n[[token]]\nvalue = "TOKEN2"\nclient = "second"\njwk_file = "second.jwk"\n')
        file.write('rights = [{ actions = ["create"] }]\n')
    return private


def authorization(request: RequestMessage) -> str:
    """Return the value of the only `Authorization` field."""
    [value] = request.values("authorization")
    return value


def test_token_selects_its_key(folder: Path, sign: Signer) -> None:
    """The default is the first token; `--token` selects another one. The key is that of the token's client."""
    second = second_token(folder, rsa_key(), "PS256")
    first, other = sign.request("GET", URL), sign.request("GET", URL, "--token", "TOKEN2")

    assert authorization(first) == f"GNAP {token_in(folder)}"
    assert proof_of(first, folder).key_id == "client-key-1"
    assert authorization(other) == "GNAP TOKEN2"
    proof = verify(other, {"second": second.public_key()}, policy=Policy(), now=datetime.now(UTC))
    assert proof.algorithm is Algorithm.PS256


def test_unknown_token_is_signed_with_the_first_key(folder: Path, sign: Signer) -> None:
    """A token that is not in the configuration is sent with a signature by the first key."""
    request = sign.request("GET", URL, "--token", "UNKNOWN")
    assert authorization(request) == "GNAP UNKNOWN"
    assert proof_of(request, folder).key_id == "client-key-1"


def test_given_authorization_replaces_the_token(sign: Signer) -> None:
    """An Authorization from `--header` replaces the token, and the signature covers it."""
    request = sign.request("GET", URL, "--header", "authorization: Bearer x")
    assert authorization(request) == "Bearer x"
    assert covered(request) == '"@method" "@target-uri" "authorization"'


@pytest.mark.parametrize("algorithm", list(Algorithm), ids=lambda each: each.value)
def test_each_kind_of_key(folder: Path, sign: Signer, algorithm: Algorithm) -> None:
    """With key, key id and token no configuration is read. An RSA key uses the given algorithm."""
    key = evolve(private(algorithm), kid="k")
    (folder / "other.pem").write_bytes(key.to_pem())
    key_options = ["--config", NO_CONFIGURATION, "--key", "other.pem", "--key-id", "k", "--algorithm", algorithm.value]
    request = sign.request("GET", URL, *key_options, "--token", "T0")

    proof = verify(request, {"k": key.public_key()}, policy=Policy(), now=datetime.now(UTC))
    assert (proof.algorithm, authorization(request)) == (algorithm, "GNAP T0")


@pytest.mark.parametrize("arguments", [["--no-token"], ["--header", "Authorization: Bearer x"]])
def test_request_without_a_token_needs_no_configuration(sign: Signer, arguments: list[str]) -> None:
    """If no token is needed, `--key` and `--key-id` are enough."""
    key_options = ["--config", NO_CONFIGURATION, "--key", CLIENT_KEY, "--key-id", "k"]
    assert sign.request("GET", URL, *key_options, *arguments).values("signature") != ()


def test_another_key_for_a_configured_token_is_used(folder: Path, sign: Signer) -> None:
    """`--key` alone signs with that key and the configured key id. A service must refuse the signature."""
    (folder / "other.pem").write_bytes(pem(ed25519.Ed25519PrivateKey.generate()))
    request = sign.request("GET", URL, "--key", "other.pem")
    assert authorization(request) == f"GNAP {token_in(folder)}"
    assert 'keyid="client-key-1"' in request.values("signature-input")[0]


@pytest.mark.parametrize("form", ["curl", "headers", "http"])
def test_private_key_is_not_printed(folder: Path, sign: Signer, form: str) -> None:
    """Each format contains the token, and nothing of the private key."""
    printed = sign("POST", URL, "--data", "{}", "--format", form)
    secret = "".join((folder / CLIENT_KEY).read_text("ascii").splitlines()[1:-1])
    assert token_in(folder).encode() in printed
    assert secret[-43:].encode() not in printed


def test_url_of_another_service_gets_a_warning(sign: Signer) -> None:
    """A URL that is not below `base_url` is signed, with a warning that the configured service will refuse it."""
    for url in ("http://localhost:9002/incoming-payments", "http://127.0.0.1:9003/"):
        assert sign("GET", url, warning=warning_of("http://127.0.0.1:9002")).startswith(b"curl ")


# --- wrong files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["complete", "complete?a=b", "cancel"])
def test_operation_on_a_payment_needs_no_data(operation: str, sign: Signer, folder: Path) -> None:
    """A request about a payment has no body, so its length is zero."""
    request = sign.request("POST", f"{URL}/019b76da-a800-7000-8000-000000000000/{operation}")
    assert (request.body, request.values("content-length")) == (b"", ("0",))
    assert proof_of(request, folder).key_id == "client-key-1"


def write_files(folder: Path) -> None:
    """Write files that cannot be used."""
    for name, content in useless_keys().items():
        (folder / name).write_bytes(content)
    with (folder / "huge").open("wb") as file:
        file.truncate(SIGNED_BODY_BYTES_MAX + 1)
    text = (folder / CONFIGURATION).read_text("utf-8")
    without = re.sub(r"(?ms)^\[\[token\]\]$.*?^(?=\[ilp\])", "", text)
    (folder / "no-token.toml").write_text(without, "utf-8")
    (folder / "wrong.toml").write_text(text.replace("asset_scale = 2", "asset_scale = 2.0"), "utf-8")


NEEDS_DATA: Final = "needs --data: give the body, @FILE or @-, or --data '' for an empty body"
INSTEAD: Final = "give --key, --key-id and --token"
NO_KEY: Final = "is not a private key in PEM, which begins with -----BEGIN PRIVATE KEY-----"
ENCRYPTED: Final = "is encrypted: remove the password with `openssl pkey -in ENCRYPTED.pem -out PLAIN.pem`"
KINDS: Final = "Ed25519 signs with EdDSA, P-256 with ES256, P-384 with ES384, and RSA with the other algorithms"
TIMES: Final = "gives a time outside the years 1970 to 9999: give another number of seconds"
TAG: Final = "--tag must be 1 to 256 printable ASCII characters"
METHOD: Final = "cannot be signed: give GET, POST or another method in upper case"
NO_COMPONENT: Final = "is not a component: write a component such as @query, x-a or 'x-a;bs'"
LABEL: Final = (
    "label must consist of lower case letters, digits and _-.* (RFC 9651 §3.1.2), and must not be the label of "
    "another signature"
)
TOKEN: Final = (
    "--token: the access token must be 1 to 4096 letters, digits and -._~+/, with = only at the end (RFC 9110 §11.2); "
    "give only the token, without the word GNAP"
)
MANY: Final = [f"a{number}" for number in range(62)]

WRONG: Final = [
    # the request
    (["get", URL], f"'get' {METHOD}"),
    (["CONNECT", URL], f"'CONNECT' {METHOD}"),
    (["GE T", URL], f"'GE T' {METHOD}"),
    (["G" * 63 + "\n\n", URL], f"'{'G' * 61}...' {METHOD}"),
    (["GET", "127.0.0.1:9002/"], "the URL does not begin with http:// or https://: add the scheme"),
    (["GET", f"{URL}#a"], "the URL has a fragment, which is never sent: leave out # and the text after it"),
    (["POST", URL], f"POST {NEEDS_DATA}"),
    (["PUT", URL], f"PUT {NEEDS_DATA}"),
    (["PATCH", URL], f"PATCH {NEEDS_DATA}"),
    (["HEAD", URL, "--data", "{}"], "HEAD has no body: leave out --data"),
    (["POST", URL, "--data", "@none"], "--data @none cannot be read (No such file or directory): give another file"),
    (["POST", URL, "--data", "@"], "--data @ cannot be read (No such file or directory): give another file"),
    (["POST", URL, "--data", "@."], "--data @. cannot be read (Is a directory): give another file"),
    (["POST", URL, "--data", "@a\nb"], r"--data: curl cannot read a file with the name 'a\nb': rename the file"),
    (["POST", URL, "--data", "@huge"], "--data: the body is longer than 16777216 bytes: give a shorter one"),
    (
        ["POST", URL, "--data", "a" * (COMMAND_BODY_BYTES_MAX + 1)],
        f"a body of more than {COMMAND_BODY_BYTES_MAX} bytes is too long for a command: put it in a file",
    ),
    (["GET", URL, "--header", "X-A"], "--header 'X-A' must be of the form 'Name: value'"),
    (["GET", URL, "--header", "@f: a"], "--header '@f: a' must be of the form 'Name: value'"),
    (["GET", URL, "--header", ": a"], "--header ': a' must be of the form 'Name: value'"),
    (
        ["GET", URL, "--header", "X-A: a\r\nX-B: b"],
        "--header: the value of X-A must be printable characters, on one line",
    ),
    (["GET", URL, "--header", "X-A: \udcff"], "--header: the value of X-A must be printable characters, on one line"),
    *(
        (["GET", URL, "--header", f"{name}: 1"], f"--header: sign computes {name} itself: leave out this field")
        for name in ("Content-Length", "CONTENT-DIGEST", "Transfer-Encoding")
    ),
    # key and token
    (
        ["GET", URL, "--config", "none.toml"],
        f"none.toml does not exist: give another file with --config, or {INSTEAD}",
    ),
    (
        ["GET", URL, "--config", "none.toml", "--key", CLIENT_KEY, "--token", "T0"],
        f"none.toml does not exist: give another file with --config, or {INSTEAD}",
    ),
    (["GET", URL, "--config", "no-token.toml"], f"no-token.toml has no [[token]] to sign with: add one, or {INSTEAD}"),
    (
        ["GET", URL, "--config", "wrong.toml"],
        "wrong.toml: wallet_address[0].asset_scale must be an integer, not a float",
    ),
    (
        ["GET", URL, "--key", "none.pem"],
        "none.pem: the private key cannot be read (No such file or directory): give its file with --key",
    ),
    (["GET", URL, "--key", "."], ".: the private key cannot be read (Is a directory): give its file with --key"),
    (["GET", URL, "--key", CLIENT_JWK], f"{CLIENT_JWK} {NO_KEY}"),
    (["GET", URL, "--key", "public.pem"], f"public.pem {NO_KEY}"),
    (["GET", URL, "--key", "encrypted.pem"], f"encrypted.pem {ENCRYPTED}"),
    (["GET", URL, "--key", "traditional.pem"], f"traditional.pem {ENCRYPTED}"),
    (
        ["GET", URL, "--key", "damaged.pem"],
        "damaged.pem cannot be read as a private key: check that the file is complete, and in PKCS #8",
    ),
    (["GET", URL, "--key", "x25519.pem"], f"x25519.pem: a key of this type cannot sign here: {KINDS}"),
    (["GET", URL, "--key", "k1.pem"], f"k1.pem: a key of this type cannot sign here: {KINDS}"),
    (["GET", URL, "--algorithm", "PS256"], f"{CLIENT_KEY}: a key of this type cannot sign with PS256: {KINDS}"),
    (
        ["GET", URL, "--key", "weak.pem"],
        "weak.pem cannot be used: the JWK's n must have 2048 to 8192 bits, not 1024",
    ),
    (["GET", URL, "--key-id", "é"], "--key-id must be 1 to 256 printable ASCII characters"),
    (["GET", URL, "--token", "a b"], TOKEN),
    (["GET", URL, "--token", ""], TOKEN),
    # parameters of the signature
    (
        ["GET", URL, "--cover", "x-a"],
        "--cover: x-a is covered but absent: send this component, or do not cover it (RFC 9421 §2.5)",
    ),
    (
        ["GET", URL, "--cover", ""],
        "--cover: a covered component is not a field name in lower case: write the name in lower case (RFC 9421 §2.1)",
    ),
    (
        ["GET", URL, "--cover", "X-A"],
        "--cover: X-A is not a field name in lower case: write the name in lower case (RFC 9421 §2.1)",
    ),
    (
        ["GET", URL, "--header", "X-A: é", "--cover", "x-a"],
        (
            "--cover: x-a has control characters or is not ASCII: send plain ASCII, or cover the field with ;bs "
            "(RFC 9421 §2.1.3)"
        ),
    ),
    *(
        (["GET", URL, "--cover", text], f"--cover {text!r} {NO_COMPONENT}")
        for text in ('a"', '"a" "b"', '"a");x', '"a"),b=("c"', "a;B", "a b;=", '"a', "é")
    ),
    (
        ["GET", f"{URL}?{'&'.join(MANY)}", *(f'--cover=@query-param;name="{name}"' for name in MANY)],
        "the signature covers more than 64 components: cover fewer",
    ),
    (["GET", URL, "--created", "-1"], f"--created {TIMES}"),
    (["GET", URL, "--created", "253402300800"], f"--created {TIMES}"),
    (["GET", URL, "--created", "5", "--expires", "-6"], f"--expires {TIMES}"),
    (["GET", URL, "--expires", "9" * 30], f"--expires {TIMES}"),
    (["GET", URL, "--label", "Sig"], LABEL),
    (["GET", URL, "--label", "sig1", "--header", "Signature: sig1=:AAAA:"], LABEL),
    (["GET", URL, "--tag", ""], TAG),
    (["GET", URL, "--tag", "a" * 257], TAG),
    (["GET", URL, "--tag", "é"], TAG),
]


@pytest.mark.parametrize(("arguments", "why"), WRONG, ids=lambda value: "" if isinstance(value, list) else value[:40])
def test_mistake_is_explained(folder: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], why: str) -> None:
    """Each mistake exits with status 1, no output, and one line with the change to make."""
    write_files(folder)
    assert main(["sign", *arguments]) == 1
    assert capfd.readouterr() == ("", f"incoming-payments: {why}\n")


def test_alg_without_a_registered_name_is_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The parameter alg of an algorithm that has no registered name is refused."""
    (folder / "rsa.pem").write_bytes(pem(rsa_key()))
    assert main(["sign", "GET", URL, "--key", "rsa.pem", "--algorithm", "PS256", "--alg"]) == 1
    says = "PS256 has no registered name for the alg parameter (RFC 9421 §6.2): leave out alg_param"
    assert f"incoming-payments: {says}\n" == capfd.readouterr().err


def test_key_that_does_not_match_the_public_key_is_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A private key that does not match the client's public key is refused before a request is signed."""
    for key in (ed25519.Ed25519PrivateKey.generate(), rsa_key()):
        (folder / CLIENT_KEY).write_bytes(pem(key))
        assert main(["sign", "GET", URL]) == 1
        says = f"{CLIENT_KEY} is not the private key of {CLIENT_JWK}: give the file of the private key with --key"
        assert f"incoming-payments: {says}\n" == capfd.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such terminals")
def test_body_from_a_terminal_is_refused(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`--data @-` does not wait for a terminal, and does not read a closed input."""
    says = (
        "--data @- reads standard input, but standard input is a terminal or closed: pipe the body in, or give a file"
    )
    controller, terminal = os.openpty()
    with os.fdopen(terminal) as stdin:
        for each in (stdin, None):
            monkeypatch.setattr(sys, "stdin", each)
            assert main(["sign", "POST", URL, "--data", "@-"]) == 1
            assert f"incoming-payments: {says}\n" == capfd.readouterr().err
    os.close(controller)


@pytest.mark.parametrize(
    "arguments",
    [
        ["GET"],
        ["GET", URL, "--expires", "soon"],
        ["GET", URL, "--token", "T0", "--no-token"],
        ["GET", URL, "--dat", "{}"],
    ],
)
def test_wrong_usage_exits_with_status_2(capfd: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """Wrong options exit with status 2 and print the usage. No option can be abbreviated."""
    with pytest.raises(SystemExit) as ended:
        main(["sign", *arguments])
    assert ended.value.code == 2
    assert capfd.readouterr().err.startswith("usage: incoming-payments")
