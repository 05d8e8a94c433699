"""Run `serve` with tokens that are bound to unchecked keys, as a faulty authorization server would bind them.

    python tests/kits/careless_service.py CONFIGURATION TOKENS

TOKENS is a JSON object with a JWK for each token.
"""

import json
import sys
from pathlib import Path

from attrs import evolve

from incoming_payments import AccessRight, AccessToken, AccessTokenInfo, StaticIntrospector
from incoming_payments.server.config.settings import load_settings
from incoming_payments.server.serve import serve


def main(configuration: str, tokens: str) -> int:
    """Serve until the process is stopped."""
    rights = [AccessRight(("create", "read"), None)]
    introspector = StaticIntrospector(
        (AccessToken(token), AccessTokenInfo("https://shop.example/", jwk, rights))
        for token, jwk in json.loads(Path(tokens).read_text("utf-8")).items()
    )
    return serve(evolve(load_settings(configuration), introspector=introspector))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
