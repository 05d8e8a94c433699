"""README and docs: examples run, generated parts are up to date, and every link has an existing target."""

import ast
import asyncio
import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest

import incoming_payments
from incoming_payments import errors, gnap, ilp
from incoming_payments.endpoints.open_payments import Request, Response
from incoming_payments.gnap import AccessRight, AccessToken, AccessTokenInfo, StaticIntrospector
from incoming_payments.httpsig import PrivateKey, RequestMessage, sign
from incoming_payments.limits import SHUTDOWN_S_MAX
from incoming_payments.server import command
from incoming_payments.server.config.setting import REQUIRED
from incoming_payments.server.config.tables import TABLES
from incoming_payments.server.init import CONFIGURATION
from kits.http_servers import over_http, serving_asgi, serving_wsgi
from kits.odd_answers import OVER_HTTP, Answered, Serve, authorization_server
from kits.postgres import new_database
from kits.processes import COMMAND, ROOT, free_port, run_command, serving
from kits.service_kit import PATH, Service, header, refusal

PAGES: Final = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))}
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINTS: Final = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)


def blocks(page: str, language: str) -> list[tuple[int, str]]:
    """Return the code blocks of one language, each with the number of lines above it."""
    text = PAGES[page].read_text("utf-8")
    return [(text[: found.start(2)].count("\n"), found[2]) for found in _BLOCK.finditer(text) if found[1] == language]


# --- the examples ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def server_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment variable of the server secret, which the examples read."""
    monkeypatch.setenv("SERVER_SECRET", "5f" * 32)


async def _close(store: Any) -> None:
    if inspect.isawaitable(closing := store.close()):
        await closing


def run_page(page: str) -> dict[str, Any]:
    """Run the Python blocks of a page in order, in one namespace, and return the namespace."""
    namespace: dict[str, Any] = {"__name__": f"docs of {page}"}
    for above, block in blocks(page, "python"):
        code = compile("\n" * above + block, PAGES[page], "exec")  # a traceback shows the line of the page
        exec(code, namespace)  # noqa: S102 - our own documentation
    return namespace


def close_stores(namespace: dict[str, Any]) -> None:
    """Close the stores that the code of a page opened."""
    for value in namespace.values():
        store = getattr(value, "store", None)
        if hasattr(store, "close"):
            asyncio.run(_close(store))


WITH_PYTHON: Final = [page for page in sorted(PAGES) if blocks(page, "python")]


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_examples_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every Python block of a page runs, in order, and prints the text in its comments."""
    monkeypatch.syspath_prepend(ROOT / "examples")  # for imports of the example above them
    monkeypatch.chdir(tmp_path)
    if "DATABASE_URL" in PAGES[page].read_text("utf-8"):
        monkeypatch.setenv("DATABASE_URL", new_database("docs"))
    close_stores(run_page(page))

    printed = [comment for _, block in blocks(page, "python") for comment in _PRINTS.findall(block)]
    assert printed == capsys.readouterr().out.splitlines()


def test_example_without_its_folder_says_what_to_do(tmp_path: Path) -> None:
    """An example that is started in a wrong folder ends with one line, and no traceback."""
    command = [sys.executable, str(ROOT / "examples" / "bank.py")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert run.returncode == 1
    assert run.stderr == (
        "incoming-payments.toml cannot be read: No such file or directory; create a folder with `incoming-payments "
        "init`, and set the environment variable FOLDER to it\n"
    )


def write_modules(folder: Path) -> list[str]:
    """Write the Python blocks of each page as one module, with the line numbers of the page. Return the files.

    A block that quotes an example is a module of its own, which other blocks can import.
    """
    quoted = {path.read_text("utf-8"): path.name for path in (ROOT / "examples").glob("*.py")}
    modules: dict[str, str] = {}
    for page in WITH_PYTHON:
        own = re.sub(r"\W", "_", page.removesuffix(".md")) + ".py"
        for above, block in blocks(page, "python"):
            name = quoted.get(block, own)
            text = modules.get(name, "")
            modules[name] = text + "\n" * (above - text.count("\n")) + block
    for name, text in modules.items():
        (folder / name).write_text(text, "utf-8")
    return list(modules)


def check_types(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a type checker on the modules of the pages."""
    line = [sys.executable, "-m", *command, *write_modules(folder)]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, cwd=folder)


def test_examples_pass_mypy(tmp_path: Path) -> None:
    """The Python blocks of every page pass `mypy --strict`, without the settings of this project."""
    pytest.importorskip("mypy")
    cache = f"--cache-dir={ROOT / '.mypy_cache' / 'docs'}"
    run = check_types(tmp_path, "mypy", "--strict", "--config-file=", "--no-error-summary", cache)
    assert (run.returncode, run.stdout + run.stderr) == (0, "")


def test_examples_pass_pyright(tmp_path: Path) -> None:
    """The Python blocks of every page pass pyright with its own settings."""
    pytest.importorskip("pyright")
    run = check_types(tmp_path, "pyright", "--outputjson", "--pythonpath", sys.executable)
    try:
        report = json.loads(run.stdout[run.stdout.index("{") :])
    except ValueError:
        pytest.skip(f"pyright cannot run, because it needs Node and the npm registry: {run.stderr.strip()[-200:]}")
    found = [
        f"{Path(one['file']).name}:{one['range']['start']['line'] + 1}: {one['message']}"
        for one in report["generalDiagnostics"]
    ]
    assert found == []
    assert report["summary"]["filesAnalyzed"] >= len(WITH_PYTHON)


def test_the_readme_embeds_every_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Flask and the Starlette application of the README answer each operation of a client, and the preflight."""
    key = PrivateKey.generate_ed25519("key-1")
    right = AccessRight(["create", "read", "list", "complete"])
    known = [(AccessToken("TOKEN"), AccessTokenInfo("https://shop.example", key.public_jwk(), [right]))]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(incoming_payments, "StaticIntrospector", lambda _: StaticIntrospector(known))
    namespace = run_page("README.md")

    def call_every_operation(port: int) -> list[tuple[str, int]]:
        def call(method: str, path: str, query: str = "", body: bytes = b"", *, signed: bool = True) -> Response:
            headers = [("Content-Type", "application/json")] if body else []
            target = f"https://bank.example{path}{'?' * bool(query)}{query}"
            if signed:
                message = RequestMessage(method, target, (("Authorization", "GNAP TOKEN"), *headers), body)
                headers = [*sign(message, key, created=datetime.now(UTC)).headers]
            return over_http(port, Request(method, path, query, tuple(headers), body))

        paid_into = "https://bank.example/alice"
        created = call("POST", PATH, body=json.dumps({"walletAddress": paid_into}).encode())
        payment = f"{PATH}/{json.loads(created.body)['id'].rpartition('/')[2]}"
        answers = {
            "create": created,
            "get": call("GET", payment),
            "list": call("GET", PATH, f"wallet-address={quote(paid_into, safe='')}"),
            "complete": call("POST", f"{payment}/complete"),
            "public get": call("GET", payment, signed=False),
            "preflight": call("OPTIONS", payment, signed=False),
        }
        origins = [header(answers[name], "Access-Control-Allow-Origin") for name in ("public get", "preflight")]
        assert origins == ["*", "*"]
        return [(name, answer.status) for name, answer in answers.items()]

    with serving_wsgi(namespace["app"]) as flask_port, serving_asgi(namespace["starlette_app"]) as starlette_port:
        found = [call_every_operation(port) for port in (flask_port, starlette_port)]
    close_stores(namespace)
    assert (
        found
        == [[("create", 201), ("get", 200), ("list", 200), ("complete", 200), ("public get", 200), ("preflight", 200)]]
        * 2
    )


def test_middlewares_of_the_signatures_page_admit_only_signed_requests() -> None:
    """Each middleware passes the received bytes and the proof on, and refuses an unsigned request with 401."""
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

    async def post_asgi() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=asgi) as client:
            return [await client.post(**order, headers=signed[1].headers), await client.post(**order)]

    answers += asyncio.run(post_asgi())
    assert [answer.status_code for answer in answers] == [200, 401, 200, 401]
    assert [answer.content for answer in answers[::2]] == [b"partner-1" + signed[0].body] * 2
    assert [answer.json()["error"]["code"] for answer in answers[1::2]] == ["signature_missing"] * 2


def signed_fields(namespace: dict[str, Any], method: str, url: str) -> tuple[tuple[str, str], ...]:
    """Return the header fields of a request that the partner of the signatures page signs."""
    request = namespace["RequestMessage"](method, url, ())
    signed = namespace["sign"](
        request, namespace["signer"], created=datetime.now(UTC), nonce=namespace["token_urlsafe"]()
    )
    return tuple(signed.headers)


@pytest.mark.parametrize("target", [".example.net/orders", ":8443/orders", "", "*"])
def test_target_that_continues_the_host_is_refused(target: str) -> None:
    """A target without a leading slash is refused with 400: it would change the host in the URL that is verified."""
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
    """Return the scopes that reach the application behind the ASGI middleware, and the messages that are sent."""
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
        "http_version": "1.1",
        "raw_path": raw_path.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in fields],
    }
    asyncio.run(namespace["SignedOnlyAsgi"](behind)(scope, receive, send))
    return scopes, sent


@pytest.mark.parametrize(
    ("target", "proved"), [("http://other.example/a%2Fb", "/a%2Fb"), ("admin", "/"), ("/a%2Fb", "/a%2Fb")]
)
def test_application_gets_the_verified_path(target: str, proved: str) -> None:
    """The verifier and the application behind it use the same path, for every form of the request target."""
    namespace = run_page("docs/signatures.md")
    fields = signed_fields(namespace, "GET", f"https://api.bank.example{proved}")
    scopes, _ = asgi_answers(namespace, "GET", target, fields)
    assert [(proved.encode(), proved.replace("%2F", "/"))] == [(scope["raw_path"], scope["path"]) for scope in scopes]


def test_refused_head_has_no_body() -> None:
    """RFC 9110 §9.3.2: with a body, the client could mistake it for the start of the next response."""
    namespace = run_page("docs/signatures.md")
    environ = {"REQUEST_METHOD": "HEAD", "PATH_INFO": "/orders", "wsgi.input": BytesIO()}
    assert namespace["SignedOnly"](None)(environ, lambda *_: None) == []
    _, sent = asgi_answers(namespace, "HEAD", "/orders", ())
    assert [message.get("body") for message in sent] == [None, b""]


def test_framework_page_shows_the_programs() -> None:
    """The page about frameworks shows each program as it is, without its docstring."""
    programs = [path.read_text("utf-8") for path in sorted((ROOT / "examples").glob("*_app.py"))]
    shown = [block for _, block in blocks("docs/frameworks.md", "py")]
    assert len(programs) == 6
    assert [text for text in programs if text.partition('"""\n\n')[2] not in shown] == []


# --- generated parts -------------------------------------------------------------------------------


def program(name: str) -> ModuleType:
    """Return a program of the docs as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """Return the program that writes the generated parts."""
    return program("generate")


@pytest.mark.parametrize("page", sorted(PAGES))
def test_generated_parts_are_up_to_date(generate: ModuleType, page: str) -> None:
    """The generated parts of each page match the code; `nox -s docs` writes them again."""
    text = PAGES[page].read_text("utf-8")
    assert text == generate.regenerate(text)


def test_table_of_the_settings_holds_every_setting(generate: ModuleType) -> None:
    """Each setting has one row, with its bounds and its default."""
    rows = generate.settings_table().splitlines()[2:]
    settings = [setting for table in TABLES for setting in table.settings]
    for setting, row in zip(settings, rows, strict=True):
        assert f"| `{setting.name}` |" in row
        assert row.endswith("| error |") == (setting.default is REQUIRED)
        assert row.count("|") == 6
    port, _ = [row for row in rows if "| `port` |" in row]  # of [listen] and [events]
    assert port.endswith("| integer | the port; from 1 to 65535 | `8080` |")


def test_every_generated_part_is_on_a_page(generate: ModuleType) -> None:
    """Each part that can be generated is on exactly one page, and an outdated part is replaced."""
    text = "".join(path.read_text("utf-8") for path in PAGES.values())
    names = re.findall(r"<!-- generated: (.+) -->", text)
    stale = "a\n<!-- generated: statuses -->\nold\n<!-- end of statuses -->\nb\n"
    fresh = generate.regenerate(stale)

    assert sorted(generate.PARTS) == sorted(names)
    assert fresh == stale.replace("old", generate.status_table())


def test_generating_rewrites_only_what_changed(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program writes and names the outdated pages, and leaves the others unchanged."""
    stale = "<!-- generated: transitions -->\nold\n<!-- end of transitions -->\n"
    (tmp_path / "stale.md").write_text(stale, "utf-8")
    (tmp_path / "other.md").write_text("no generated part\n", "utf-8")
    monkeypatch.setattr(generate, "DOCS", tmp_path)

    assert generate.main() == 0
    assert capsys.readouterr().out == "wrote stale.md\n"
    assert (tmp_path / "stale.md").read_text("utf-8") == generate.regenerate(stale)


# --- the unit of systemd --------------------------------------------------------------------------

UNIT: Final = ROOT / "docs" / "incoming-payments.service"


def unit_with(command: str | Path) -> str:
    """Return the unit with another path of the `incoming-payments` command."""
    return UNIT.read_text("utf-8").replace("/opt/incoming-payments/bin/incoming-payments", str(command))


def unit_settings() -> dict[str, str]:
    """Return the settings in the section `[Service]` of the unit."""
    lines = UNIT.read_text("utf-8").partition("[Service]\n")[2].partition("\n[")[0].splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze` finds no unknown setting and no wrong value."""
    (tmp_path / UNIT.name).write_text(unit_with(sys.executable), "utf-8")
    found = subprocess.run(["systemd-analyze", "verify", tmp_path / UNIT.name], capture_output=True, text=True)
    assert [line for line in (found.stdout + found.stderr).splitlines() if UNIT.stem in line] == []


def test_unit_starts_and_reloads_the_service(tmp_path: Path) -> None:
    """`ExecStart` serves the configuration, `ExecReload` makes it read the file again, and SIGTERM ends it with 0."""
    settings, port, log = unit_settings(), free_port(), tmp_path / "log"
    assert run_command("init", tmp_path, "--port", str(port)).returncode == 0
    program, *arguments = settings["ExecStart"].split()
    assert (program, arguments[-1]) == (
        "/opt/incoming-payments/bin/incoming-payments",
        f"/etc/incoming-payments/{CONFIGURATION}",
    )
    with serving([*COMMAND, *arguments[:-1], tmp_path / CONFIGURATION], port, log) as process:
        reload = settings["ExecReload"].removeprefix("/bin/").replace("$MAINPID", str(process.pid)).split()
        assert subprocess.run(reload).returncode == 0
        deadline = time.monotonic() + 30
        while "configuration_read" not in log.read_text("utf-8"):
            assert time.monotonic() < deadline, log.read_text("utf-8")
            time.sleep(0.01)
    assert process.returncode == 0
    assert int(settings["TimeoutStopSec"]) > SHUTDOWN_S_MAX
    assert settings["KillMode"] == "mixed"  # a second SIGTERM from systemd would end the drain of each worker


# --- links and names ------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Return the names in a page that a link can lead to: its headings, and its `<a id="...">`."""
    text = page.read_text("utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([a-z-]+)">', text))


@pytest.mark.parametrize("page", sorted(PAGES))
def test_links_have_a_target(page: str) -> None:
    """Every link to a file of the project, or to a heading in it, has an existing target."""
    links = re.findall(r"\]\(([^)]+)\)", PAGES[page].read_text("utf-8"))
    broken = []
    for link in links:
        name, _, anchor = link.partition("#")
        target = PAGES[page].parent / name if name else PAGES[page]
        if "://" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            broken.append(link)
    assert broken == []


def test_broken_links_of_the_site_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The check of the built site names each link without a target, and accepts every other link."""
    (tmp_path / "api").mkdir()
    good = '<h2 id="a"></h2><a href="#a"></a><a href="api/b.html#c"></a><a href="https://bank.example/"></a>'
    (tmp_path / "a.html").write_text(good, "utf-8")
    (tmp_path / "api" / "b.html").write_text('<img id="c" src="../a.html">', "utf-8")
    main = program("check_site").main
    assert main(str(tmp_path)) == 0
    (tmp_path / "a.html").write_text(good + '<a href="#b"></a><a href="api/b.html#d"></a><img src="no.svg">', "utf-8")
    capsys.readouterr()
    assert main(str(tmp_path)) == 1
    assert capsys.readouterr().out.splitlines() == ["a.html: #b", "a.html: api/b.html#d", "a.html: no.svg"]


def test_readme_links_to_the_index() -> None:
    """The README links to the index, which links to every page, and to every folder of programs."""
    text = PAGES["README.md"].read_text("utf-8")
    assert [page for page in ("docs/index.md", "examples", "benchmarks") if f"]({page})" not in text] == []


def test_index_links_to_every_page() -> None:
    """The index links to every other page of the docs."""
    text = PAGES["docs/index.md"].read_text("utf-8")
    pages = [page.removeprefix("docs/") for page in PAGES if page not in {"README.md", "docs/index.md"}]
    assert [page for page in pages if f"]({page})" not in text] == []


def test_reference_has_every_public_name() -> None:
    """The API reference names everything that `incoming_payments` exports."""
    pages = {path.stem: path.read_text("utf-8") for path in ROOT.glob("docs/api/*.rst")}
    named = set(
        re.findall(r"^\.\. auto\w+:: (\w+)$", pages["service"] + pages["values"] + pages["ports"], re.MULTILINE)
    )
    whole = (errors, gnap, ilp)  # modules of which the reference has everything
    assert [module for module in whole if f"automodule:: {module.__name__}\n" not in "".join(pages.values())] == []
    assert [name for name in incoming_payments.__all__ if name not in named.union(*map(vars, whole))] == []


def test_pages_hold_no_absolute_path() -> None:
    """No page holds an absolute path of a machine. The unit of systemd names the two folders of an installation."""
    installed = r"/(?:opt|var/lib)/incoming-payments\b"
    absolute = re.compile(rf"(?<![\w.:/])(?!{installed})(?:/(?:home|root|tmp|work|usr|var|opt|Users)/|[A-Z]:\\)")
    assert absolute.search("ExecStart=/opt/other/bin/python")
    assert absolute.search("`/var/lib/mine`")
    assert [page for page, path in PAGES.items() if absolute.search(path.read_text("utf-8"))] == []


def sessions() -> set[str]:
    """Return the names of the sessions in noxfile.py."""
    tree = ast.parse((ROOT / "noxfile.py").read_text("utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name for node in functions if any("nox.session" in ast.unparse(made) for made in node.decorator_list)}


def test_commands_of_the_readme() -> None:
    """The two commands of the README install nox, and run an existing session or the default one."""
    [(_, block)] = blocks("README.md", "console")
    commands = [line.partition("#")[0].strip() for line in block.splitlines()]
    install = "python -m pip install nox && python -m nox"

    assert [f"{install} -s demo", install] == commands
    assert {"demo", "tests"} <= sessions()
    assert 'nox.options.sessions = ["tests"]' in (ROOT / "noxfile.py").read_text("utf-8")


@pytest.mark.parametrize("page", [page for page in sorted(PAGES) if page.startswith("docs/reports/")])
def test_every_section_of_a_report_names_its_command(page: str) -> None:
    """Each section of a report begins with the command that prints its figures."""
    sections = re.split(r"^## ", PAGES[page].read_text("utf-8"), flags=re.MULTILINE)[1:]
    assert sections
    for section in sections:
        title, _, text = section.partition("\n\n")
        assert re.match(r"```console\n.*\bnox\b", text), title


@pytest.mark.parametrize("page", ["noxfile.py", "docs/generate.py", *sorted(PAGES)])
def test_named_sessions_exist(page: str) -> None:
    """Every nox session that a page names exists."""
    named = set(re.findall(r"nox -s (\w+)", (ROOT / page).read_text("utf-8")))
    assert named <= sessions()


def test_every_command_is_documented() -> None:
    """The page about the server explains every command."""
    page = PAGES["docs/server.md"].read_text("utf-8")
    names = re.findall(r"(?m)^    ([a-z-]+)", command.parser().format_help())
    assert {"init", "remove-consumer", "demo"} <= set(names)
    assert [name for name in names if f"`incoming-payments {name}" not in page] == []


def test_contract_suites_on_the_pages_pass(tmp_path: Path) -> None:
    """pytest collects the contract suites of two pages from files, and they pass.

    `test_postgres_store` runs the suite that needs a database.
    """
    shown = [block for page in ("docs/ports.md", "docs/stores.md") for _, block in blocks(page, "python")]
    suites = [block for block in shown if "Contract)" in block and "database" not in block]
    assert len(suites) == 2
    for number, block in enumerate(suites):
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


@pytest.fixture(scope="module")
def introspection() -> Any:
    """Return the introspector of the ports page."""
    return run_page("docs/ports.md")["Introspection"]


@pytest.mark.parametrize(("serve", "answered"), OVER_HTTP.values(), ids=OVER_HTTP)
def test_introspector_of_the_ports_page_survives_every_answer(
    introspection: Any, serve: Serve, answered: Answered
) -> None:
    """Its service answers a signed request with a status of its own, and never with 500 or with 401 in an outage."""
    service = Service()
    client = service.client()
    with authorization_server(serve) as connect:
        service.replace(introspector=introspection(connect, "/introspect"))
        response = client.create()
    assert answered == ((201, None) if response.status == 201 else refusal(response))


def test_conformance_page_names_existing_tests() -> None:
    """Each test that the page about conformance names exists."""
    named = set(re.findall(r"`(test_\w+)`", PAGES["docs/conformance.md"].read_text("utf-8")))
    source = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 15
    assert [name for name in sorted(named) if f"def {name}(" not in source] == []


def test_recipes_name_existing_files() -> None:
    """Every path on the page about extending exists, except the files that the reader adds."""
    text = PAGES["docs/extending.md"].read_text("utf-8")
    named = re.findall(r"`((?:src|tests|docs|examples)/[^`]+|\w+\.toml)`", text)
    added = {path for path in named if "FILE" in path}
    assert [path for path in named if path not in added and not (ROOT / path).exists()] == []
    assert [path for path in added if not (ROOT / path).parent.is_dir()] == []


def test_rules_name_existing_definitions() -> None:
    """Each name in parentheses on the page about extending is defined in the file in front of it."""
    found = re.findall(r"`([\w/]+\.py)` \((`[^)]+`)\)", PAGES["docs/extending.md"].read_text("utf-8"))
    named = [(path, name) for path, names in found for name in re.findall(r"`(\w+)`", names)]
    assert named

    def defines(path: str, name: str) -> bool:
        pattern = re.compile(rf"^(def |class )?{name}\b", re.MULTILINE)
        return pattern.search((ROOT / path).read_text("utf-8")) is not None

    assert [(path, name) for path, name in named if not defines(path, name)] == []


def test_recipes_show_the_present_code() -> None:
    """Each line of code on the page about extending begins a line of a file that the same step names."""
    wrong = []
    for step in re.split(r"^\d\. ", PAGES["docs/extending.md"].read_text("utf-8"), flags=re.MULTILINE):
        files = [ROOT / path for path in re.findall(r"`((?:src|tests)/[^`]+\.py)`", step)]
        code = {line.strip() for path in files if path.is_file() for line in path.read_text("utf-8").splitlines()}
        for block in re.findall(r"^ *```py\n(.*?)^ *```$", step, re.MULTILINE | re.DOTALL):
            shown = [line.strip() for line in block.splitlines() if line.strip() not in {"", "..."}]
            wrong += [line for line in shown if not any(existing.startswith(line) for existing in code)]
    assert wrong == []
