"""Writes the generated parts of the docs anew, from the code they describe. Run it with `nox -s docs`.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`.
"""

import itertools
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from attrs import evolve

sys.path.append(
    str(Path(__file__).resolve().parents[1] / "tests")
)  # for the attacks, which need nothing but the library

from attacks.everything import all_rows
from attacks.rows import Answer, AnyRow, Attack
from incoming_payments import api, errors
from incoming_payments.domain.lifecycle import EXCESSES, REFUSALS, STAYS, TRANSITIONS
from incoming_payments.httpsig import Evidence, Policy, PrivateKey, Request, sign, verify
from incoming_payments.httpsig.explain import HYPOTHESES, explain
from incoming_payments.ilp import receive

DOCS = Path(__file__).resolve().parent


def state_diagram() -> str:
    """The transition table as a Mermaid state diagram."""
    lines = ["```mermaid", "stateDiagram-v2"]
    for row in TRANSITIONS:
        start = row.state.value if row.state else "[*]"
        events = ", ".join(row.events)
        lines.append(f"    {start} --> {row.next.value}: {row.trigger.value} ({row.condition}) / {events}")
    return "\n".join([*lines, "```"])


def transition_table() -> str:
    """The transition table, and what the final states refuse."""
    lines = ["| state | trigger | condition | next state | events |", "|---|---|---|---|---|"]
    for row in TRANSITIONS:
        start = row.state.value if row.state else "(none)"
        events = ", ".join(row.events)
        lines.append(f"| {start} | {row.trigger.value} | {row.condition} | {row.next.value} | {events} |")
    for excess in EXCESSES:
        code = excess.refusal.code
        lines.append(f"| {excess.state.value} | {excess.trigger.value} | {excess.condition} | refused: `{code}` | |")
    for state, trigger in sorted(STAYS, key=lambda pair: (pair[0].value, pair[1].value)):
        lines.append(f"| {state.value} | {trigger.value} | always | {state.value}, as it was | |")
    for (state, trigger), refusal in REFUSALS.items():
        lines.append(f"| {state.value} | {trigger.value} | always | refused: `{refusal.code}` | |")
    return "\n".join(lines)


def status_table() -> str:
    """Which error class is answered with which status."""
    lines = ["| status | class | code in the body |", "|---|---|---|"]
    for cls, status in sorted(api.STATUS.items(), key=lambda row: (row[1], row[0].__name__)):
        reasons = "its `code`" if cls in {errors.TokenRefused, errors.SignatureRefused} else f"`{cls.code}`"
        lines.append(f"| {status} | `{cls.__name__}` | {reasons} |")
    return "\n".join(lines)


def packet_table() -> str:
    """With which ILP error a packet is answered that the payment, or the store, refuses."""
    lines = ["| refused with | error | message |", "|---|---|---|"]
    lines += [f"| `{cls.code}` | {code} | {message} |" for cls, (code, message) in receive.REFUSALS.items()]
    return "\n".join(lines)


def _shown(answer: Answer) -> str:
    """Status and code, as far as there are any."""
    status, code = answer
    return f"{status or 'no answer'} `{code}`" if code else f"{status or 'no answer'}"


def _refusals(rows: Iterable[AnyRow]) -> str:
    """Each answer to one of `rows`, the most frequent first; those that HTTP gives instead of the verifier last."""
    counted: Counter[tuple[bool, str]] = Counter()
    for row in rows:
        early = isinstance(row, Attack) and row.over_http is not None
        counted.update({(early, _shown(answer)) for answer in row.answers})
    return ", ".join(text for (_, text), _ in sorted(counted.items(), key=lambda item: (item[0][0], -item[1])))


def attack_table() -> str:
    """The classes of attacks, how many ways each is tried in, and how they are answered."""
    rows = list(all_rows())
    kinds = {(row.family, row.kind) for row in rows}
    lines = [f"{len(rows)} attacks of {len(kinds)} classes."]
    for family, of_family in itertools.groupby(rows, lambda row: row.family):
        lines += ["", f"**{family}**", "", "| class | attacks | answered with |", "|---|---|---|"]
        for kind, of_kind in itertools.groupby(of_family, lambda row: row.kind):
            tried = list(of_kind)
            lines.append(f"| {kind} | {len(tried)} | {_refusals(tried)} |")
    return "\n".join(lines)


def early_answers() -> str:
    """What HTTP or a rule of the service answers before the verifier sees the request, and why."""
    early = Counter(row.over_http for row in all_rows() if isinstance(row, Attack) and row.over_http is not None)
    lines = ["| answer | attacks | why |", "|---|---|---|"]
    for over_http, number in sorted(early.items(), key=lambda item: (item[0].status or 0, item[0].why)):
        lines.append(f"| {_shown((over_http.status, over_http.code))} | {number} | {over_http.why} |")
    return "\n".join(lines)


def report() -> str:
    """What the log says of a create request that a client signed for http, and that arrived at a service on https."""
    key, now = PrivateKey.generate_ed25519("client-key-1"), datetime(2030, 1, 1, tzinfo=UTC)
    body = b'{"walletAddress":"https://bank.example/alice"}'
    headers = (
        ("Authorization", "GNAP OS9M2PMHKUR64TB8N6BW7OZB8CDFONP219RP1LT0"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
    )
    sent = sign(Request("POST", "http://bank.example/op/incoming-payments", headers, body), key, created=now)
    received = evolve(sent, target_uri=sent.target_uri.replace("http:", "https:"))
    evidence = Evidence(received, {key.kid: key.public_key()}, Policy(), now + timedelta(seconds=2))
    try:
        verify(evidence.request, evidence.keys, policy=evidence.policy, now=evidence.now)
    except errors.SignatureRefused as refusal:
        return f"```text\n{explain(refusal, evidence)}\n```"
    raise AssertionError("the request was not refused")


def hypothesis_table() -> str:
    """The mistakes that are looked for, in the order in which they are."""
    lines = ["| name | what the report says |", "|---|---|"]
    for row in HYPOTHESES:
        words = row.words.format(said="...").replace("|", "\\|")
        lines.append(f"| `{row.name}` | {words} |")
    return "\n".join(lines)


PARTS = {
    "state diagram": state_diagram,
    "transitions": transition_table,
    "statuses": status_table,
    "packet refusals": packet_table,
    "attacks": attack_table,
    "early answers": early_answers,
    "report": report,
    "hypotheses": hypothesis_table,
}


def regenerate(text: str) -> str:
    """`text` with its generated parts made anew."""
    for name, make in PARTS.items():
        start, end = f"<!-- generated: {name} -->\n", f"<!-- end of {name} -->"
        before, found, rest = text.partition(start)
        if found:
            after = rest.partition(end)[2]
            text = f"{before}{start}{make()}\n{end}{after}"
    return text


def main() -> int:
    """Rewrite every page that is out of date."""
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text("utf-8")
        if (made := regenerate(text)) != text:
            page.write_text(made, "utf-8")
            print(f"wrote {page.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
