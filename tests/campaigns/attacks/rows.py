"""The rows of the tables of attacks.

Each table is made for a `Scene`, so that each attack runs twice: against the verifier alone with a fixed clock, and
over HTTP against a running server. A table is a family of attacks in classes. A class is one idea of an attacker, and
its rows are ways to try that idea.

A row ends with an `OverHttp` if HTTP or a rule of the service refuses the request before the verifier sees it.
"""

from collections.abc import Callable
from typing import Final

from attrs import frozen

from incoming_payments.httpsig import Code, PrivateKey, RequestMessage

Answer = tuple[int | None, str | None]  # HTTP status, and the code in the error body if it is one of ours


@frozen
class OverHttp:
    """The answer over HTTP where it is not 401 with the code of the attack, and the reason.

    `code` is None for an answer without a body of ours, and `status` for no answer at all.
    """

    status: int | None
    code: str | None
    why: str


@frozen
class Row:
    """The common part of every attack: its class and its name."""

    family: str
    kind: str
    name: str

    @property
    def id(self) -> str:
        """Return the name of the row in a test report."""
        return f"{self.kind}: {self.name}"


@frozen
class Attack(Row):
    """An attack on a signature: the verifier refuses `request` with `code`. The token is bound to `key`."""

    request: RequestMessage
    code: Code
    key: PrivateKey
    over_http: OverHttp | None = None

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Return the status and the error code over HTTP."""
        if self.over_http is None:
            return ((401, self.code.value),)
        return ((self.over_http.status, self.over_http.code),)


@frozen
class Attempt(Row):
    """An attack on the whole service: the request or its bytes, and the answers."""

    sent: RequestMessage | bytes
    answers: tuple[Answer, ...]


@frozen
class Replay(Row):
    """A good request, and a second one that is refused only because of the first."""

    first: RequestMessage
    second: RequestMessage
    code: str

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Return the answer to the second request over HTTP."""
        return ((401, self.code),)


@frozen
class BadKey(Row):
    """A JWK that a token must not be bound to, and a signature that a verifier might accept for it."""

    jwk: dict[str, object]
    sign: Callable[[bytes], bytes]
    answers: tuple[Answer, ...] = ((401, "key_unusable"),)


AnyRow = Attack | Attempt | Replay | BadKey


SignatureRow = tuple[str, RequestMessage, Code] | tuple[str, RequestMessage, Code, OverHttp]
Family = dict[str, list[SignatureRow]]  # by class


def title(table: Callable[..., object]) -> str:
    """Return the title of a family: the first line of its docstring."""
    return (table.__doc__ or "").partition("\n")[0].rstrip(".")


# --- reasons for another answer over HTTP -----------------------------------------------------------------------

NO_CONTROLS: Final = OverHttp(400, None, "the HTTP server refuses control characters in a field")
NEWLINE: Final = OverHttp(400, None, "for the HTTP server a newline ends the field, and no valid field follows")
NO_SUCH_LINE: Final = OverHttp(400, None, "the HTTP server refuses the request line")
NO_SUCH_NAME: Final = OverHttp(400, None, "the HTTP server refuses the field name")
NO_SUCH_LENGTH: Final = OverHttp(400, None, "the HTTP server accepts a single number as Content-Length")
NO_SUCH_PATH: Final = OverHttp(404, "not_found", "the service compares paths in the form in which they are sent")
NO_SUCH_METHOD: Final = OverHttp(405, "method_not_allowed", "the path does not have this method")
NO_BODY_HERE: Final = OverHttp(400, "unexpected_body", "the service refuses a GET with a body")
NO_SUCH_TYPE: Final = OverHttp(415, "unsupported_media_type", "the service requires one Content-Type, JSON")
NO_TOKEN: Final = OverHttp(401, "token_missing", "the service checks the token before the signature")
NOT_A_TOKEN: Final = OverHttp(401, "invalid_token", "the service checks the token before the signature")
FIELD_TOO_LARGE: Final = OverHttp(431, "headers_too_large", "each field has a limit")
HEADERS_WITHOUT_END: Final = OverHttp(None, None, "the server closes a connection that sends this much without an end")
OUR_OWN_TARGET: Final = OverHttp(
    401, "signature_invalid", "the service builds the target from the configured base URL and the path of the request"
)
ENDS_EARLY: Final = OverHttp(None, None, "the connection ends before the body does, so no response is possible")
BODY_AS_LONG_AS_IT_SAYS: Final = OverHttp(
    401, "digest_mismatch", "the HTTP server cuts the body at its Content-Length, so the digest is wrong"
)
NO_FRAGMENT: Final = OverHttp(200, None, "the HTTP server removes a fragment, so the target is the signed one")
SAME_TARGET: Final = OverHttp(
    200, None, "the HTTP server ignores spaces around a target, so the target is the signed one"
)
