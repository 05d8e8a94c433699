"""Common parts of the tables of attacks.

A table is made for a `Scene`, so that each attack is tried twice: on the verifier alone under a clock that stands
still, and over HTTP on a server that runs. It is a family of attacks, by class: a class is one idea of an
attacker's, and its rows are ways to try it, by the precedence of their reasons.

Where HTTP, or a rule of the service, refuses a request before the verifier sees it, its row ends with an `OverHttp`.
"""

from collections.abc import Callable
from typing import Final

from attrs import frozen

from incoming_payments.httpsig import Code, PrivateKey, RequestMessage

Answer = tuple[int | None, str | None]  # HTTP status, and the code in the error body if it is one of ours


@frozen
class OverHttp:
    """How an attack is answered over HTTP when it is not with 401 and its code, and why not.

    `code` is None where an answer has no body of ours, and `status` where there is no answer at all.
    """

    status: int | None
    code: str | None
    why: str


@frozen
class Row:
    """The common part of every attack: its idea, and one way to try it."""

    family: str
    kind: str
    name: str

    @property
    def id(self) -> str:
        """Its name in a report of tests."""
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
        """Status and error code over HTTP."""
        if self.over_http is None:
            return ((401, self.code.value),)
        return ((self.over_http.status, self.over_http.code),)


@frozen
class Attempt(Row):
    """An attack on the service as a whole: the bytes sent, and the answers."""

    sent: RequestMessage | bytes
    answers: tuple[Answer, ...]


@frozen
class Replay(Row):
    """A request that is good, and a second one that would be if the first had not been."""

    first: RequestMessage
    second: RequestMessage
    code: str

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer to the second, over HTTP."""
        return ((401, self.code),)


@frozen
class BadKey(Row):
    """A JWK that a token must not be bound to, and a signature that it might take for good."""

    jwk: dict[str, object]
    sign: Callable[[bytes], bytes]
    answers: tuple[Answer, ...] = ((401, "key_unusable"),)


AnyRow = Attack | Attempt | Replay | BadKey


SignatureRow = tuple[str, RequestMessage, Code] | tuple[str, RequestMessage, Code, OverHttp]
Family = dict[str, list[SignatureRow]]  # by class


def title(table: Callable[..., object]) -> str:
    """Return the title of a family: the beginning of its docstring."""
    return (table.__doc__ or "").partition("\n")[0].rstrip(".")


# --- why HTTP has another answer -----------------------------------------------------------------------

NO_CONTROLS: Final = OverHttp(400, None, "the HTTP server takes no control characters in a field")
NEWLINE: Final = OverHttp(400, None, "to the HTTP server a newline ends a field, and no other begins behind it")
NO_SUCH_LINE: Final = OverHttp(400, None, "the HTTP server takes no such request line")
NO_SUCH_NAME: Final = OverHttp(400, None, "the HTTP server takes no such field name")
NO_SUCH_LENGTH: Final = OverHttp(400, None, "the HTTP server takes one Content-Length, one number")
NO_SUCH_PATH: Final = OverHttp(404, "not_found", "paths are compared as they are sent")
NO_SUCH_METHOD: Final = OverHttp(405, "method_not_allowed", "there is no such method here")
NO_BODY_HERE: Final = OverHttp(400, "unexpected_body", "a GET has no body here")
NO_SUCH_TYPE: Final = OverHttp(415, "unsupported_media_type", "bodies are JSON, and say so once")
NO_TOKEN: Final = OverHttp(401, "token_missing", "the token is looked at before the signature")
NOT_A_TOKEN: Final = OverHttp(401, "invalid_token", "the token is looked at before the signature")
FIELD_TOO_LARGE: Final = OverHttp(431, "headers_too_large", "one field has a limit of its own")
OUR_OWN_TARGET: Final = OverHttp(
    401, "signature_invalid", "the target is made of the configured base URL, and of no other part of the request"
)
ENDS_EARLY: Final = OverHttp(None, None, "the connection ends before the body, so no response is possible")
BODY_AS_LONG_AS_IT_SAYS: Final = OverHttp(
    401, "digest_mismatch", "the HTTP server ends the body where Content-Length says: then its digest is wrong"
)
NO_FRAGMENT: Final = OverHttp(200, None, "the HTTP server leaves out a fragment: the target is the signed one")
SAME_TARGET: Final = OverHttp(
    200, None, "to the HTTP server spaces around a target are none of it: it is the one signed for"
)
