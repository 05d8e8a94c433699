"""The generated parts of `compatibility.md`: the clients, their requests, and the answers of the service.

`tests/campaigns/interop/test_clients.py` sends these requests. `generate.py` writes the parts.
"""

import re
from pathlib import Path

from campaigns.attacks.rows import Answer
from campaigns.interop.clients.everything import CLIENTS
from campaigns.interop.clients.recipe import CALLS, Call, Client

NODE_TEST = Path(__file__).resolve().parents[1] / "tests" / "campaigns" / "interop" / "test_node_client.py"


def clients_table() -> str:
    """Return the answers to the requests of each client, with the settings that it needs."""
    lines = [
        f"| client | version | {' | '.join(CALLS)} | setting | tests in `tests/campaigns/interop` |",
        f"|{'---|' * (len(CALLS) + 4)}",
        _node_row(),
    ]
    for client in CLIENTS:
        cells = [client.name, client.version, *(_answer_cell(client, call) for call in CALLS)]
        setting = ", ".join(f"`{line}`" for line in client.settings) or "-"
        lines.append(f"| {' | '.join(cells)} | {setting} | `test_clients.py -k {client.id}` |")
    return "\n".join(lines)


def _node_row() -> str:
    """Return the row of the client that runs in the tests. `NODE_TEST` expects its calls to succeed."""
    package, version = re.findall(r'^(?:PACKAGE|VERSION): Final = "(.+)"$', NODE_TEST.read_text("utf-8"), re.MULTILINE)
    return f"| Node, `{package}` | {version} | 201 | 200 | 200 | 200 | 200 | - | `{NODE_TEST.name}` |"


def _answer_cell(client: Client, call: Call) -> str:
    case = client.cases.get(call)
    if case is None:
        return "-"
    shown = _shown(case.tuned)
    return f"**{shown}**" if case.note else shown


def _shown(answer: Answer) -> str:
    status, code = answer
    return f"{status} `{code}`" if code else f"{status}"


def difficulties() -> str:
    """Return what does not work, and why."""
    lines = ["| client | request | answer | why |", "|---|---|---|---|"]
    for client in CLIENTS:
        for call, case in client.cases.items():
            if case.note:
                lines.append(f"| {client.name} | {call} | {_shown(case.tuned)} | {case.note} |")
    return "\n".join(lines)


def refusals_by_default() -> str:
    """Return the answers of a service without the settings."""
    lines = ["| client | requests | answer without the setting |", "|---|---|---|"]
    for client in CLIENTS:
        changed: dict[Answer, list[str]] = {}
        for call, case in client.cases.items():
            if case.default != case.tuned:
                changed.setdefault(case.default, []).append(call)
        lines += [f"| {client.name} | {', '.join(calls)} | {_shown(answer)} |" for answer, calls in changed.items()]
    return "\n".join(lines)


def sources() -> str:
    """Return the files from which the requests were built."""
    lines = ["| client | repository and commit | files | run by hand |", "|---|---|---|---|"]
    for client in CLIENTS:
        files = ", ".join(f"`{'/'.join(path.split('/')[-2:])}`" for path in client.files)
        commit = f"[{client.repository}](https://github.com/{client.repository}/tree/{client.commit})"
        lines.append(f"| {client.name} | {commit} | {files} | {client.tried or 'not run'} |")
    return "\n".join(lines)
