"""README and docs: their examples run, their generated parts are up to date, and what they point to is there."""

import ast
import asyncio
import importlib.util
import inspect
import re
import subprocess
import sys
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import flask
import httpx
import pytest

from incoming_payments.server import command
from processes import ROOT

PAGES: Final = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))}
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINTS: Final = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)


def blocks(page: str, language: str) -> list[tuple[int, str]]:
    """The code blocks of one language, each with the number of lines above it."""
    text = PAGES[page].read_text("utf-8")
    return [(text[: found.start(2)].count("\n"), found[2]) for found in _BLOCK.finditer(text) if found[1] == language]


# --- the examples ----------------------------------------------------------------------------------


async def _close(store: Any) -> None:
    if inspect.isawaitable(closing := store.close()):
        await closing


def run_page(page: str) -> dict[str, Any]:
    """Run the Python blocks of a page, one after the other in one namespace, which is returned."""
    namespace: dict[str, Any] = {"__name__": f"docs of {page}"}
    for above, block in blocks(page, "python"):
        code = compile("\n" * above + block, PAGES[page], "exec")  # so that a traceback shows the line of the page
        exec(code, namespace)  # noqa: S102 - our own documentation
    return namespace


def close_stores(namespace: dict[str, Any]) -> None:
    """Close the stores that a page has opened."""
    for value in namespace.values():
        store = getattr(value, "store", None)
        if hasattr(store, "close"):
            asyncio.run(_close(store))


@pytest.mark.parametrize("page", [page for page in sorted(PAGES) if blocks(page, "python")])
def test_the_examples_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every Python block of a page runs, in order, and prints what the page says it prints."""
    monkeypatch.chdir(tmp_path)
    close_stores(run_page(page))

    printed = [comment for _, block in blocks(page, "python") for comment in _PRINTS.findall(block)]
    assert printed == capsys.readouterr().out.splitlines()


def test_the_readme_embeds_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Flask and the Starlette application of the README answer for the service."""
    monkeypatch.chdir(tmp_path)
    namespace = run_page("README.md")
    path = "/incoming-payments/019b76da-a800-7000-8000-000000000000"
    app: flask.Flask = namespace["app"]
    in_flask = app.test_client().get(path)

    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(namespace["starlette_app"])
        async with httpx.AsyncClient(transport=transport, base_url="https://bank.example") as client:
            return await client.get(path)

    in_starlette = asyncio.run(get())
    created = app.test_client().post("/incoming-payments", json={})
    close_stores(namespace)

    not_found = (404, "payment_not_found")
    assert not_found == (in_flask.status_code, in_flask.get_json()["error"]["code"])
    assert not_found == (in_starlette.status_code, in_starlette.json()["error"]["code"])
    assert (created.status_code, created.headers["WWW-Authenticate"]) == (401, "GNAP as_uri=https://auth.bank.example")


def test_the_middlewares_of_the_signatures_page_let_only_signed_requests_in() -> None:
    """Each hands the very bytes and what was proven to the application behind it, and answers who is not signed."""
    namespace = run_page("docs/signatures.md")
    signed = [
        namespace["sign"](namespace["order"], namespace["signer"], created=datetime.now(UTC), nonce=str(number))
        for number in range(2)
    ]

    def behind(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [environ["signature.proof"].key_id.encode(), environ["wsgi.input"].read()]

    async def behind_asgi(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["signature.proof"].key_id.encode() + message["body"]})

    wsgi = httpx.WSGITransport(namespace["SignedOnly"](behind))
    asgi = httpx.ASGITransport(namespace["SignedOnlyAsgi"](behind_asgi))
    order = {"url": "https://api.bank.example/orders", "content": signed[0].body}
    with httpx.Client(transport=wsgi) as client:
        answers = [client.post(**order, headers=signed[0].headers), client.post(**order)]

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=asgi) as client:
            return [await client.post(**order, headers=signed[1].headers), await client.post(**order)]

    answers += asyncio.run(ask())
    assert [answer.status_code for answer in answers] == [200, 401, 200, 401]
    assert [answer.content for answer in answers[::2]] == [b"partner-1" + signed[0].body] * 2
    assert [answer.json()["error"]["code"] for answer in answers[1::2]] == ["signature_missing"] * 2


def signed_fields(namespace: dict[str, Any], method: str, url: str) -> tuple[tuple[str, str], ...]:
    """The header fields of a request of the partner of the signatures page."""
    request = namespace["Request"](method, url, ())
    signed = namespace["sign"](
        request, namespace["signer"], created=datetime.now(UTC), nonce=namespace["token_urlsafe"]()
    )
    return tuple(signed.headers)


@pytest.mark.parametrize("target", [".example.net/orders", ":8443/orders", "", "*"])
def test_a_target_that_goes_on_with_the_host_is_not_let_in(target: str) -> None:
    """What was signed for another host is no request to ours, though servers take a target without its slash."""
    namespace = run_page("docs/signatures.md")
    fields = signed_fields(namespace, "GET", f"https://api.bank.example{target}")
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": target, "RAW_URI": target, "wsgi.input": BytesIO()}
    environ |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in fields}
    answers: list[str] = []
    namespace["SignedOnly"](None)(environ, lambda status, _: answers.append(status))
    assert answers == ["400 Refused"]


def asgi_answers(
    namespace: dict[str, Any], method: str, raw_path: str, fields: tuple[tuple[str, str], ...]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The scopes that get to the application behind the ASGI middleware, and the messages that are sent."""
    scopes: list[dict[str, Any]] = []
    sent: list[dict[str, Any]] = []

    async def behind(scope: Any, _receive: Any, _send: Any) -> None:
        scopes.append(scope)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": raw_path,
        "raw_path": raw_path.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in fields],
    }
    asyncio.run(namespace["SignedOnlyAsgi"](behind)(scope, receive, send))
    return scopes, sent


@pytest.mark.parametrize(
    ("target", "proved"), [("http://other.example/a%2Fb", "/a%2Fb"), ("admin", "/"), ("/a%2Fb", "/a%2Fb")]
)
def test_the_application_gets_the_path_that_was_proved(target: str, proved: str) -> None:
    """Whatever the target of the request is, the verifier and the application behind it go by one path."""
    namespace = run_page("docs/signatures.md")
    fields = signed_fields(namespace, "GET", f"https://api.bank.example{proved}")
    scopes, _ = asgi_answers(namespace, "GET", target, fields)
    assert [(proved.encode(), proved.replace("%2F", "/"))] == [(scope["raw_path"], scope["path"]) for scope in scopes]


def test_a_refused_head_has_no_body() -> None:
    """RFC 9110 §9.3.2: some servers would send it, and the client take it for the next response."""
    namespace = run_page("docs/signatures.md")
    environ = {"REQUEST_METHOD": "HEAD", "PATH_INFO": "/orders", "wsgi.input": BytesIO()}
    assert namespace["SignedOnly"](None)(environ, lambda *_: None) == []
    _, sent = asgi_answers(namespace, "HEAD", "/orders", ())
    assert [message.get("body") for message in sent] == [None, b""]


# --- what is generated -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The program that writes the generated parts."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted(PAGES))
def test_generated_parts_are_up_to_date(generate: ModuleType, page: str) -> None:
    """What is generated from the code says what the code says; `nox -s docs` writes it anew."""
    text = PAGES[page].read_text("utf-8")
    assert text == generate.regenerate(text)


def test_generated_parts_are_there(generate: ModuleType) -> None:
    """Each part that can be generated stands on one page, and a part that is out of date is replaced."""
    text = "".join(path.read_text("utf-8") for path in PAGES.values())
    names = re.findall(r"<!-- generated: (.+) -->", text)
    stale = "a\n<!-- generated: statuses -->\nold\n<!-- end of statuses -->\nb\n"
    fresh = generate.regenerate(stale)

    assert sorted(generate.PARTS) == sorted(names)
    assert fresh == stale.replace("old", generate.status_table())


def test_generating_rewrites_only_what_changed(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program writes the pages that are out of date, names them, and leaves the others alone."""
    stale = "<!-- generated: transitions -->\nold\n<!-- end of transitions -->\n"
    (tmp_path / "stale.md").write_text(stale, "utf-8")
    (tmp_path / "other.md").write_text("nothing is generated here\n", "utf-8")
    monkeypatch.setattr(generate, "DOCS", tmp_path)

    assert generate.main() == 0
    assert capsys.readouterr().out == "wrote stale.md\n"
    assert (tmp_path / "stale.md").read_text("utf-8") == generate.regenerate(stale)


# --- what is pointed to ----------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links write them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(PAGES))
def test_links_lead_somewhere(page: str) -> None:
    """A link to another file of the project, or to a heading in it, finds it."""
    links = re.findall(r"\]\(([^)]+)\)", PAGES[page].read_text("utf-8"))
    broken = []
    for link in links:
        name, _, anchor = link.partition("#")
        target = PAGES[page].parent / name if name else PAGES[page]
        if "://" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            broken.append(link)
    assert broken == []


def test_every_page_can_be_found() -> None:
    """The README leads to every page of the docs, and to every folder of programs."""
    text = PAGES["README.md"].read_text("utf-8")
    missing = [page for page in (*PAGES, "examples", "benchmarks") if page != "README.md" and f"]({page})" not in text]
    assert missing == []


def test_no_page_knows_a_machine() -> None:
    """Pages hold no absolute path of somebody's machine."""
    absolute = re.compile(r"(?<![\w.:/])(?:/(?:home|root|tmp|work|usr|var|opt|Users)/|[A-Z]:\\)")
    assert [page for page, path in PAGES.items() if absolute.search(path.read_text("utf-8"))] == []


def sessions() -> set[str]:
    """The sessions in noxfile.py."""
    tree = ast.parse((ROOT / "noxfile.py").read_text("utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name for node in functions if any("nox.session" in ast.unparse(made) for made in node.decorator_list)}


def test_the_commands_of_the_readme() -> None:
    """The README's two commands install nox themselves, and name a session that there is, or run the default one."""
    [(_, block)] = blocks("README.md", "console")
    commands = [line.partition("#")[0].strip() for line in block.splitlines()]
    install = "python -m pip install nox && python -m nox"

    assert [f"{install} -s demo", install] == commands
    assert {"demo", "tests"} <= sessions()
    assert 'nox.options.sessions = ["tests"]' in (ROOT / "noxfile.py").read_text("utf-8")


@pytest.mark.parametrize("page", ["noxfile.py", "docs/generate.py", *sorted(PAGES)])
def test_named_sessions_exist(page: str) -> None:
    """Wherever a nox session is named, there is one of that name."""
    named = set(re.findall(r"nox -s (\w+)", (ROOT / page).read_text("utf-8")))
    assert named <= sessions()


def test_every_command_is_documented() -> None:
    """The page about the server explains every command there is."""
    page = PAGES["docs/server.md"].read_text("utf-8")
    names = re.search(r"\{?(init .+ demo)", command.parser().format_usage())

    assert names is not None
    assert [name for name in names[1].split(" | ") if f"`incoming-payments {name}" not in page] == []


def test_the_suites_that_the_pages_show_run(tmp_path: Path) -> None:
    """The classes with which others prove their ports, put into a file as they stand, are found and pass."""
    page = (ROOT / "docs" / "ports.md").read_text("utf-8")
    blocks = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "Contract)" in block]
    assert len(blocks) == 2
    for number, block in enumerate(blocks):
        (tmp_path / f"test_shown_{number}.py").write_text(block, "utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert run.returncode == 0, run.stdout
    assert int(re.findall(r"(\d+) passed", run.stdout)[0]) > 30
