"""The clients in Java and .NET, and the browser extension of Web Monetization. See `sdks` for what a recipe has."""

from typing import Final
from urllib.parse import quote

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

_NOT_FOUND: Final = (404, "not_found")


# --- Java of Fliqa: a slash behind each target without a query; the JDK sorts the fields --------------


def _fliqa(account: Account, method: str, url: str, body: bytes = b"", *, over_http: bool = False) -> RequestMessage:
    url += "/"
    own = {"Accept": JSON, "Authorization": account.authorization}
    values = {"@method": method, "@target-uri": url, "authorization": account.authorization}
    names = ["@method", "@target-uri", "authorization"]
    if body:
        own |= {"Content-Digest": sha512(body), "Content-Type": JSON}
        values |= {"content-digest": sha512(body), "content-length": str(len(body)), "content-type": JSON}
        names = ["@method", "content-digest", "content-length", "content-type", "@target-uri", "authorization"]
    written, signature = account.sign(names, values, account.keyid + account.created)
    own |= {"Signature": f"sig1=:{signature}:", "Signature-Input": f"sig1={written}"}
    framing: Fields = (("Content-Length", str(len(body))), ("Host", account.host))
    if over_http:
        settings = ("HTTP2-Settings", "AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA")
        framing = (("Connection", "Upgrade, HTTP2-Settings"), *framing, settings, ("Upgrade", "h2c"))
    agent = ("User-Agent", "Java-http-client/17.0.15")
    return RequestMessage(method, url, (*framing, agent, *sorted(own.items())), body)


def _fliqa_create(account: Account, *, over_http: bool = False) -> RequestMessage:
    body = {
        "walletAddress": account.wallet_address,
        "incomingAmount": amount("assetCode", "assetScale", "value"),
        "expiresAt": expires(account, fraction=".391293042"),
    }
    return _fliqa(account, "POST", account.collection, compact(body), over_http=over_http)


FLIQA: Final = Client(
    id="java-fliqa",
    name="Java, `io.fliqa:interledger`",
    version="1.0.2",
    repository="fliqa-io/interledger",
    commit="44d8faa1df2611cfa091a99da23d4824b35d9bf4",
    files=(
        "src/main/java/io/fliqa/client/interledger/signature/SignatureRequestBuilder.java",
        "src/main/java/io/fliqa/client/interledger/InterledgerApiClientImpl.java",
        "src/main/java/io/fliqa/client/interledger/model/PaymentRequest.java",
    ),
    settings=("trailing_slash = true",),
    tried="its `SignatureRequestBuilder` on OpenJDK 17, over http; its recorded requests are the same",
    cases={
        "create": needs(_fliqa_create, _NOT_FOUND, 201),
        "get": needs(lambda account: _fliqa(account, "GET", account.payment), _NOT_FOUND),
        "create over http": Case(
            build=lambda account: _fliqa_create(account, over_http=True),
            default=(400, "incomplete_body"),
            tuned=(400, "incomplete_body"),
            note="without TLS, the HTTP client of the JDK asks for HTTP/2 with `Upgrade`, and `serve` does not read "
            "the body of such a request. Use https with a [proxy](production.md), as in production",
        ),
    },
)


# --- Java of zm.hashcode: neither a token nor a signature ---------------------------------------------


def _hashcode(account: Account, method: str, url: str, body: bytes = b"") -> RequestMessage:
    fields: Fields = (("Host", account.host), ("User-Agent", "OpenPayments-Java-SDK/1.0"), ("Accept", JSON))
    fields += (("Content-Type", JSON), ("Content-Length", str(len(body)))) if body else ()
    return RequestMessage(method, url, fields, body)


def _hashcode_create(account: Account) -> RequestMessage:
    body = {"walletAddress": account.wallet_address, "incomingAmount": amount("value", "assetCode", "assetScale")}
    return _hashcode(account, "POST", f"{account.wallet_address}/incoming-payments", compact(body))


_UNSIGNED: Final = "the client sends neither a token nor a signature with requests for incoming payments"
HASHCODE: Final = Client(
    id="java-hashcode",
    name="Java, `zm.hashcode:open-payments-java`",
    version="0.1.0",
    repository="boniface/open-payments-java",
    commit="33ad4e1876ac3e09d95d238794c867a1e5b62d98",
    files=(
        "src/main/java/zm/hashcode/openpayments/payment/incoming/DefaultIncomingPaymentService.java",
        "src/main/java/zm/hashcode/openpayments/client/DefaultOpenPaymentsClientBuilder.java",
        "src/main/java/zm/hashcode/openpayments/http/impl/ApacheHttpClient.java",
    ),
    cases={
        "create": fails(
            _hashcode_create,
            _NOT_FOUND,
            "the client sends the request to a path below the wallet address, not to the resource server",
        ),
        "get": fails(
            lambda account: _hashcode(account, "GET", account.payment),
            (200, None),
            f"{_UNSIGNED}, so it gets the public view, which has no `id`",
        ),
        "list": fails(
            lambda account: _hashcode(account, "GET", f"{account.wallet_address}/incoming-payments?first=20"),
            _NOT_FOUND,
            "as for create, and the query has no `wallet-address`",
        ),
        "complete": fails(
            lambda account: _hashcode(account, "POST", f"{account.payment}/complete", b"{}"),
            (401, "token_missing"),
            _UNSIGNED,
        ),
    },
)


# --- .NET: the base URL gets a slash, which the client also does for the URL of a payment -------------


def _dotnet(
    account: Account, method: str, url: str, body: bytes | None = None, media_type: str = JSON
) -> RequestMessage:
    fields: Fields = (("Host", account.host), ("Accept", JSON), ("Authorization", account.authorization))
    names = ["@method", "@target-uri", "authorization"]
    values = {"@method": method, "@target-uri": url, "authorization": account.authorization}
    content: Fields = ()
    if body is not None:
        content = (("Content-Type", media_type), ("Content-Length", str(len(body))))
    if body:
        content = (content[0], ("Content-Digest", sha512(body)), content[1])
        names += ["content-digest", "content-length", "content-type"]
        values |= {name.lower(): value for name, value in content}
    written, signature = account.sign(names, values, f'{account.created}{account.keyid};alg="ed25519"')
    signed: Fields = (("Signature", f"sig1=:{signature}:"), ("Signature-Input", f"sig1={written}"))
    return RequestMessage(method, url, (*fields, *signed, *content), body or b"")


def _dotnet_create(account: Account) -> RequestMessage:
    body = {
        "walletAddress": account.wallet_address,
        "incomingAmount": amount("value", "assetCode", "assetScale"),
        "expiresAt": expires(account, offset="+00:00"),
        "metadata": METADATA,
    }
    return _dotnet(account, "POST", account.collection, compact(body))


def _dotnet_list(account: Account) -> RequestMessage:
    query = f"wallet-address={quote(account.wallet_address, safe='')}&first=10"
    return _dotnet(account, "GET", f"{account.collection}?{query}")


def _dotnet_complete(account: Account) -> RequestMessage:
    return _dotnet(account, "POST", f"{account.payment}//complete", b"", f"{JSON}; charset=utf-8")


def _dotnet_public(account: Account) -> RequestMessage:
    return RequestMessage("GET", account.payment, (("Host", account.host), ("Accept", JSON)))


DOTNET: Final = Client(
    id="dotnet",
    name=".NET, `Interledger.OpenPayments`",
    version="1.0.1",
    repository="interledger/open-payments-dotnet",
    commit="16a21c6202cea8f94a9286cfdde60cf8ef1009ef",
    files=(
        "OpenPayments.Sdk.HttpSignatureUtils/HttpRequestSigner.cs",
        "OpenPayments.Sdk/Clients/ResourceClientBase.cs",
        "OpenPayments.Sdk/Generated/Resource/ResourceServerClient.Methods.IncomingPayment.cs",
        "OpenPayments.Sdk/Generated/Resource/ResourceServerClient.g.cs",
    ),
    settings=("trailing_slash = true",),
    cases={
        "create": works(_dotnet_create, 201),
        "get": needs(lambda account: _dotnet(account, "GET", f"{account.payment}/"), _NOT_FOUND),
        "list": works(_dotnet_list),
        "complete": fails(
            _dotnet_complete,
            _NOT_FOUND,
            "the client appends `/complete` to a URL to which it has already appended a slash. The path has two "
            "slashes in a row, which no setting accepts",
        ),
        "public get": works(_dotnet_public),
    },
)


# --- the browser extension: the Node client with a signer of its own, in a browser --------------------


def _extension_create(account: Account) -> RequestMessage:
    body = compact(
        {
            "walletAddress": account.wallet_address,
            "expiresAt": expires(account, fraction=".123"),
            "metadata": {"source": "Web Monetization"},
        }
    )
    fields: Fields = (
        ("Host", account.host),
        ("Content-Length", str(len(body))),
        ("accept", JSON),
        ("authorization", account.authorization),
        ("content-digest", sha512(body)),
        ("content-type", JSON),
    )
    names = ["@method", "@target-uri", "authorization", "content-digest", "content-length", "content-type"]
    values = {"@method": "POST", "@target-uri": account.collection, **{name.lower(): value for name, value in fields}}
    written, signature = account.sign(names, values, account.keyid + account.created)
    browser: Fields = (
        ("Origin", "chrome-extension://oiabcfomehhigdepbbclppomkhlknpii"),
        ("Sec-Fetch-Site", "none"),
        ("Sec-Fetch-Mode", "cors"),
        ("Sec-Fetch-Dest", "empty"),
        ("Accept-Encoding", "gzip, deflate, br, zstd"),
        ("Accept-Language", "en-US,en;q=0.9"),
    )
    signed: Fields = (("signature", f"sig1=:{signature}:"), ("signature-input", f"sig1={written}"))
    return RequestMessage("POST", account.collection, (*fields, *signed, *browser), body)


EXTENSION: Final = Client(
    id="web-monetization",
    name="Web Monetization extension",
    version="1.3.2",
    repository="interledger/web-monetization-extension",
    commit="47379a697557d4820bf7d9db76b1b8cb7f2a65f3",
    files=(
        "src/background/services/openPayments.ts",
        "src/background/services/paymentSession.ts",
        "src/shared/crypto.ts",
    ),
    cases={"create": works(_extension_create, 201)},
)
