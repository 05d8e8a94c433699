"""The clients in Rust, PHP, Go and Python.

Each recipe has the names and the order of the header fields, the covered components and parameters in their order, the
form of the digest, and the members of the body in the order of the source. The time of `expiresAt` has the client's
form.
"""

from typing import Final
from urllib.parse import urlencode

from campaigns.interop.clients.recipe import (
    JSON,
    METADATA,
    Account,
    Case,
    Client,
    Fields,
    amount,
    compact,
    expires,
    fails,
    needs,
    sha512,
    works,
)
from incoming_payments.httpsig import RequestMessage

UPDATED_AT: Final = (
    "it requires `updatedAt`. The published OpenAPI document has no such member, and the Node client refuses it"
)


def _page(account: Account) -> str:
    """Return the query of a list in the form encoding, in which clients of several languages write it."""
    return urlencode({"wallet-address": account.wallet_address, "first": 10})


# --- Rust: reqwest writes the names in lower case; no quotes around the components -------------------


def _rust(account: Account, method: str, url: str, body: bytes = b"", *, is_public: bool = False) -> RequestMessage:
    fields: Fields = (("content-type", JSON),)
    if not is_public:
        fields += (("authorization", account.authorization),)
        names = ["@method", "@target-uri", "content-type", "authorization"]
        if body:
            fields += (("content-length", str(len(body))), ("content-digest", sha512(body)))
            names += ["content-digest", "content-length"]
        values = {"@method": method, "@target-uri": url, **dict(fields)}
        written, signature = account.sign(names, values, account.created + account.keyid, quote="")
        fields += (("signature", signature), ("signature-input", f"sig1={written}"))
    return RequestMessage(method, url, (*fields, ("accept", "*/*"), ("host", account.host)), body)


def _rust_create(account: Account) -> RequestMessage:
    body = {
        "walletAddress": account.wallet_address,
        "incomingAmount": amount("value", "assetCode", "assetScale"),
        "expiresAt": expires(account, fraction=".123456789"),
        "metadata": METADATA,
    }
    return _rust(account, "POST", account.collection, compact(body))


_RUST_REFUSED: Final = (401, "signature_input_malformed")
RUST: Final = Client(
    id="rust",
    name="Rust, crate `open-payments`",
    version="0.1.2",
    repository="interledger/open-payments-rust",
    commit="96051e06b8bb9624f8ffb1ff1c69ad6b6073534c",
    files=(
        "src/http_signature/signatures.rs",
        "src/client/request.rs",
        "src/client/payments.rs",
        "src/types/resource.rs",
    ),
    settings=('signature_shapes = ["rust-sdk"]',),
    cases={
        "create": needs(_rust_create, _RUST_REFUSED, 201),
        "get": needs(lambda account: _rust(account, "GET", account.payment), _RUST_REFUSED),
        "list": Case(
            build=lambda account: _rust(account, "GET", f"{account.collection}?{_page(account)}"),
            default=_RUST_REFUSED,
            tuned=(200, None),
            note=f"this version cannot read the page, because {UPDATED_AT}. "
            "The repository of this crate has a correction",
        ),
        "complete": Case(
            build=lambda account: _rust(account, "POST", f"{account.payment}/complete"),
            default=_RUST_REFUSED,
            tuned=(200, None),
            note=f"the payment is completed, but this version cannot read the answer, because {UPDATED_AT}. The "
            "repository of this crate has a correction",
        ),
        "public get": works(lambda account: _rust(account, "GET", account.payment, is_public=True)),
    },
)


# --- PHP: content fields on every request; `Host` without a port; no colons around the signature ------


def _php(account: Account, method: str, url: str, body: bytes = b"", *, is_public: bool = False) -> RequestMessage:
    length = str(len(body))
    fields: Fields = (
        ("User-Agent", "OP-PHP-SDK-Client"),
        ("Accept", JSON),
        ("Content-Type", JSON),
        ("Content-Length", length),
    )
    if not is_public:
        digest = sha512(body)
        names = ["@method", "@target-uri", "authorization"]
        names += ["content-digest", "content-length", "content-type"] if body else []
        values = {
            "@method": method,
            "@target-uri": url,
            "authorization": account.authorization,
            "content-digest": digest,
            "content-length": length,
            "content-type": JSON,
        }
        written, signature = account.sign(names, values, account.keyid + account.created)
        fields += (
            ("Authorization", account.authorization),
            ("Host", account.host.partition(":")[0]),
            ("Content-Digest", digest),
            ("Signature", f"sig1={signature}"),
            ("Signature-Input", f"sig1={written}"),
        )
    return RequestMessage(method, url, fields, body)


def _php_create(account: Account) -> RequestMessage:
    body = {
        "walletAddress": account.wallet_address,
        "incomingAmount": amount("value", "assetCode", "assetScale"),
        "expiresAt": expires(account),
        "metadata": METADATA,
    }
    return _php(account, "POST", account.collection, compact(body, ascii_only=True))


_PHP_REFUSED: Final = (401, "signature_malformed")
PHP: Final = Client(
    id="php",
    name="PHP, `interledger/open-payments-php`",
    version="1.1.0",
    repository="interledger/open-payments-php",
    commit="7cca666907f2376f8dd51d9f707e0a4da722f292",
    files=("lib/ApiClient.php", "lib/Utils/HttpSignature.php", "lib/Services/IncomingPaymentService.php"),
    settings=('signature_shapes = ["php-sdk"]',),
    cases={
        "create": needs(_php_create, _PHP_REFUSED, 201),
        "get": needs(lambda account: _php(account, "GET", account.payment), _PHP_REFUSED),
        "list": needs(lambda account: _php(account, "GET", f"{account.collection}?{_page(account)}"), _PHP_REFUSED),
        "complete": needs(lambda account: _php(account, "POST", f"{account.payment}/complete"), _PHP_REFUSED),
        "public get": works(lambda account: _php(account, "GET", account.payment, is_public=True)),
    },
)


# --- Go: net/http sorts the fields; a parameter `alg` -------------------------------------------------


def _go(account: Account, method: str, url: str, body: bytes = b"", *, is_public: bool = False) -> RequestMessage:
    fields: Fields = (("Host", account.host), ("User-Agent", "Go-http-client/1.1"))
    if method == "POST":
        fields += (("Content-Length", str(len(body))),)
    if not is_public:
        own: dict[str, str] = {"Authorization": account.authorization}
        names = ["@method", "@target-uri", "authorization"]
        values = {"@method": method, "@target-uri": url, "authorization": account.authorization}
        if body:
            own |= {"Content-Digest": sha512(body), "Content-Type": JSON}
            names += ["content-digest", "content-length", "content-type"]
            values |= {"content-digest": sha512(body), "content-length": str(len(body)), "content-type": JSON}
        written, signature = account.sign(names, values, f'{account.created}{account.keyid};alg="ed25519"')
        own |= {"Signature": f"sig1=:{signature}:", "Signature-Input": f"sig1={written}"}
        fields += tuple(sorted(own.items()))
    return RequestMessage(method, url, (*fields, ("Accept-Encoding", "gzip")), body)


def _go_create(account: Account) -> RequestMessage:
    body = {
        "expiresAt": expires(account, fraction=".123456789"),
        "incomingAmount": amount("assetCode", "assetScale", "value"),
        "metadata": METADATA,
        "walletAddress": account.wallet_address,
    }
    return _go(account, "POST", account.collection, compact(body))


def _go_list(account: Account) -> RequestMessage:
    query = urlencode(sorted({"wallet-address": account.wallet_address, "first": "10"}.items()))
    return _go(account, "GET", f"{account.collection}?{query}")


GO: Final = Client(
    id="go",
    name="Go, `open-payments-go`",
    version="0.2.0",
    repository="interledger/open-payments-go",
    commit="5434b934e29eb65d64b057ea2075d2d4ac3ca574",
    files=(
        "client.go",
        "incoming_payment.go",
        "httpsignatureutils/signature.go",
        "generated/resourceserver/types.go",
    ),
    cases={
        "create": works(_go_create, 201),
        "get": works(lambda account: _go(account, "GET", account.payment)),
        "list": works(_go_list),
        "complete": works(lambda account: _go(account, "POST", f"{account.payment}/complete")),
        "public get": works(lambda account: _go(account, "GET", account.payment, is_public=True)),
    },
)


# --- Python: httpx without default fields; recorded from the client, and the same as its source -------


def _python(account: Account, method: str, url: str, body: bytes = b"") -> RequestMessage:
    fields: Fields = (("Host", account.host),)
    names = ["authorization", "@method", "@target-uri"]
    if body:
        fields += (("Content-Type", JSON),)
    elif method == "POST":
        fields += (("Content-Length", "0"),)
    fields += (("Authorization", account.authorization),)
    if body:
        fields += (("Content-Length", str(len(body))), ("Content-Digest", sha512(body)))
        names = ["content-type", "content-digest", "content-length", *names]
    values = {"@method": method, "@target-uri": url, **{name.lower(): value for name, value in fields}}
    written, signature = account.sign(names, values, f'{account.created}{account.keyid};alg="ed25519"')
    fields += (("Signature-Input", f"sig1={written}"), ("Signature", f"sig1=:{signature}:"))
    return RequestMessage(method, url, fields, body)


def _python_create(account: Account) -> RequestMessage:
    body = {
        "walletAddress": account.wallet_address,
        "incomingAmount": amount("value", "assetCode", "assetScale"),
        "expiresAt": expires(account),
        "metadata": METADATA,
    }
    return _python(account, "POST", account.collection, compact(body))


def _python_create_without_terms(account: Account) -> RequestMessage:
    absent = {"incomingAmount": None, "expiresAt": None, "metadata": None}
    return _python(account, "POST", account.collection, compact({"walletAddress": account.wallet_address, **absent}))


def _python_list(account: Account) -> RequestMessage:
    query = urlencode({"walletAddress": account.wallet_address, "cursor": "", "first": 10, "last": ""})
    return _python(account, "GET", f"{account.collection}?{query}")


PYTHON: Final = Client(
    id="python",
    name="Python, `open-payments-sdk`",
    version="0.1.0, from its repository",
    repository="interledger/open-payments-python-sdk",
    commit="b855fab4045dd1eee1880e5b22a409f6bb153bcd",
    files=(
        "src/open_payments_sdk/api/resource.py",
        "src/open_payments_sdk/gnap_utils/security.py",
        "src/open_payments_sdk/models/resource.py",
    ),
    tried="the client itself, from its source, on Python 3.11; its recorded requests are the same",
    cases={
        "create": works(_python_create, 201),
        "get": works(lambda account: _python(account, "GET", account.payment)),
        "list": fails(
            _python_list,
            (400, "invalid_query"),
            "the client names the parameter `walletAddress`, and the specification names it `wallet-address`",
        ),
        "complete": fails(
            lambda account: _python(account, "POST", f"{account.payment}/complete"),
            (200, None),
            f"the payment is completed, but the client raises `ValidationError`, because {UPDATED_AT}",
        ),
        "create without terms": fails(
            _python_create_without_terms,
            (400, "invalid_body"),
            "the client sends `null` for each absent member. Give it an amount, an expiry and metadata",
        ),
    },
)
