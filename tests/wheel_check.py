"""Check that the package works in a fresh environment, which has only the wheel and its dependencies.

This is no test module: nox runs it by the interpreter of that environment, isolated from the checkout.
"""

import importlib.metadata
import importlib.util
import pkgutil
import subprocess
import sys

import incoming_payments
from incoming_payments.endpoints.openapi import openapi_document, pull_document, webhook_schema

OPTIONAL = [
    "aiohttp", "django", "fastapi", "flask", "http_sfv", "httptools", "hypothesis", "nacl", "opentelemetry",
    "prometheus_client", "psycopg", "psycopg_pool", "pytest", "starlette", "uvicorn", "yarl",
]  # fmt: skip
MAY_NEED_MORE = (  # modules, and packages of modules, that may import an optional dependency
    "incoming_payments.audit._postgres",
    "incoming_payments.copying",
    "incoming_payments.hosts.",
    "incoming_payments.observers.otel",
    "incoming_payments.observers.prometheus",
    "incoming_payments.outbound._aiohttp",
    "incoming_payments.server.protocol",
    "incoming_payments.stores.postgres",
    "incoming_payments.testing.",
)


def main() -> None:
    """Import every module and start the command. A failed assertion or an exit status names the fault."""
    assert "site-packages" in incoming_payments.__file__, incoming_payments.__file__
    present = [name for name in OPTIONAL if importlib.util.find_spec(name)]
    assert not present, f"this environment is not bare: {present}"
    for name in incoming_payments.__all__:
        assert getattr(incoming_payments, name) is not None, name
    for module in pkgutil.walk_packages(incoming_payments.__path__, "incoming_payments."):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            missing = error.__cause__ or error
            if not (module.name.startswith(MAY_NEED_MORE) and getattr(missing, "name", None) in OPTIONAL):
                raise
    files = {str(path) for path in importlib.metadata.files("incoming-payments") or ()}
    assert "incoming_payments/py.typed" in files
    assert "incoming_payments/endpoints/openapi.json" in files
    policy = incoming_payments.ServicePolicy(base_url="https://bank.example", auth_server="https://auth.bank.example")
    assert openapi_document(policy)["servers"] == [{"url": "https://bank.example"}]
    assert pull_document()["info"]["title"] == "Events of incoming payments"
    assert webhook_schema()["title"] == "Webhooks of incoming payments"
    assert any(path.endswith("licenses/LICENSE") for path in files), files
    command = [sys.executable, "-m", "incoming_payments.server.command", "--help"]
    assert "serve" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    print(f"incoming-payments {importlib.metadata.version('incoming-payments')} works without optional dependencies")


if __name__ == "__main__":
    main()
