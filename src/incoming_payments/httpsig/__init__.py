"""HTTP message signatures (RFC 9421) and content digests (RFC 9530), usable without the rest of this library.

`verify` returns what a signed request proves, or raises `SignatureRefused` with a `Code`. `sign` signs a request.
`load_jwk` reads a public key. This package reads no clock and opens no connection: the time and the keys are arguments.
"""

from incoming_payments.httpsig.algorithms import Algorithm
from incoming_payments.httpsig.base import Component, signature_base
from incoming_payments.httpsig.codes import Code
from incoming_payments.httpsig.digest import content_digest, verify_digest
from incoming_payments.httpsig.fields import SignatureInput, parse_signature, parse_signature_input, parse_string
from incoming_payments.httpsig.keys import PrivateKey, PublicKey, load_jwk, load_private_jwk
from incoming_payments.httpsig.message import RequestMessage, ResponseMessage
from incoming_payments.httpsig.replay import fresh_until, replay_key
from incoming_payments.httpsig.shapes import Shape
from incoming_payments.httpsig.sign import sign
from incoming_payments.httpsig.verify import Evidence, Policy, Proof, key_ids, verify

__all__ = [
    "Algorithm",
    "Code",
    "Component",
    "Evidence",
    "Policy",
    "PrivateKey",
    "Proof",
    "PublicKey",
    "RequestMessage",
    "ResponseMessage",
    "Shape",
    "SignatureInput",
    "content_digest",
    "fresh_until",
    "key_ids",
    "load_jwk",
    "load_private_jwk",
    "parse_signature",
    "parse_signature_input",
    "parse_string",
    "replay_key",
    "sign",
    "signature_base",
    "verify",
    "verify_digest",
]
