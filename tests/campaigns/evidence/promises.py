"""The promises of the docs, each with the command that checks it and the lines of its output that tell the result.

`campaign` runs the commands, and `page` shows the results in docs/evidence.md. A command is text, as a reader types it.
"""

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from attrs import frozen

SHORT_S_MAX: Final = 600.0  # for a command of the short form, on a busy machine
LONG_S_MAX: Final = 4 * 3600.0  # for a command of the long form; the mutants take longest

Tell = Callable[[str], tuple[str, ...]]


class Form(StrEnum):
    """How much is run: the short form takes about 15 minutes in all."""

    SHORT = "short"
    LONG = "long"


class Part(StrEnum):
    """The parts of the page."""

    CONTRACT = "Contract"
    SECURITY = "Security"
    DURABILITY = "Durability"
    TESTS = "The tests themselves"
    SPEED = "Speed"


@frozen
class Promise:
    """One row: a promise, the pages that make it, and the commands that check it.

    Without a command for the short form, only the long form has the row. `needs` names entries of `needs.NEEDS`. `tell`
    returns the lines of the output that tell the result.
    """

    name: str
    part: Part
    text: str
    pages: str
    short: str | None
    long: str
    tell: Tell
    needs: tuple[str, ...] = ()

    def command(self, form: Form) -> str | None:
        """Return the command of a form."""
        return self.short if form is Form.SHORT else self.long


def lines(*patterns: str, shown: str = "{0}") -> Tell:
    """Return a function that finds each line, or part of a line, that matches a pattern, and shows it as `shown`.

    `shown` formats the groups of the match, or the whole match if the pattern has no group. A pattern without a match
    is a `LookupError`, because a command that prints no result has checked nothing.
    """

    def tell(output: str) -> tuple[str, ...]:
        found = []
        for pattern in patterns:
            matches = list(re.finditer(pattern, output, re.MULTILINE))
            if not matches:
                raise LookupError(f"its output has no line like {pattern}")
            found += [shown.format(*(match.groups() or [match[0]])) for match in matches]
        return tuple(" ".join(line.split()) for line in found)

    return tell


passed: Final = lines(r"\d+ passed(?:, \d+ skipped)?")

PROMISES: Final = (
    Promise(
        name="contract",
        part=Part.CONTRACT,
        text="Each operation gives the statuses, members and refusals of the specification",
        pages="[HTTP reference](http.md), [conformance](conformance.md)",
        short="pytest -q tests/unit/endpoints",
        long="pytest -q tests/unit/endpoints",
        tell=passed,
    ),
    Promise(
        name="hosts",
        part=Part.CONTRACT,
        text="The service answers alike in WSGI and ASGI, and in each framework",
        pages="[frameworks](frameworks.md)",
        short="pytest -q tests/unit/hosts",
        long="pytest -q tests/unit/hosts",
        tell=passed,
    ),
    Promise(
        name="openapi",
        part=Part.CONTRACT,
        text="Every answer is one that the OpenAPI document describes",
        pages="[the OpenAPI document](openapi.md)",
        short="nox -s openapi -- --cases 1000 --seed 7",
        long="nox -s openapi -- --cases 10000 --seed 7",
        tell=lines(r"\d+ +requests, and every answer .*$"),
    ),
    Promise(
        name="senders",
        part=Part.CONTRACT,
        text="The published Node client creates payments, and the npm senders pay them, to the last unit",
        pages="[senders](peers.md#senders-that-can-pay)",
        short="pytest -q tests/campaigns/interop/test_node_client.py tests/campaigns/interop/test_real_senders.py",
        long="pytest -q tests/campaigns/interop",
        tell=passed,
        needs=("node",),
    ),
    Promise(
        name="vectors",
        part=Part.SECURITY,
        text="The messages of RFC 9421, Appendix B.2, are judged as the RFC says",
        pages="[report](reports/security-tests.md)",
        short="pytest -q tests/unit/vectors/test_rfc9421.py",
        long="pytest -q tests/unit/vectors/test_rfc9421.py",
        tell=passed,
    ),
    Promise(
        name="suites",
        part=Part.SECURITY,
        text="Signatures and structured fields are judged as Wycheproof and the HTTP working group say",
        pages="[report](reports/security-tests.md)",
        short="pytest -q tests/unit/vectors/test_wycheproof.py tests/unit/vectors/test_structured_fields.py",
        long="pytest -q tests/unit/vectors/test_wycheproof.py tests/unit/vectors/test_structured_fields.py",
        tell=passed,
        needs=("vectors",),
    ),
    Promise(
        name="interop",
        part=Part.SECURITY,
        text="The library and other implementations accept each other's signatures, and refuse changed requests",
        pages="[report](reports/security-tests.md#cross-checks-with-other-implementations)",
        short="nox -s interop -- --rounds 300 --seed 1",
        long="nox -s interop -- --rounds 20000 --seed 1",
        tell=passed,
        needs=("node",),
    ),
    Promise(
        name="attacks",
        part=Part.SECURITY,
        text="`serve` refuses each attack with the right code, stores nothing, and still answers honest requests",
        pages="[report](reports/attacks.md)",
        short="pytest -q tests/campaigns/interop/test_attacks_over_http.py",
        long="pytest -q tests/campaigns/interop/test_attacks_over_http.py",
        tell=passed,
    ),
    Promise(
        name="nonces",
        part=Part.SECURITY,
        text="A nonce is good once, in all processes on one database",
        pages="[security](security.md#the-promises)",
        short="pytest -q tests/unit/server/test_workers.py tests/unit/stores/sqlite/test_processes.py -k nonce",
        long="pytest -q tests/unit/server tests/unit/stores tests/unit/flows tests/campaigns/disk -k nonce",
        tell=passed,
    ),
    Promise(
        name="fuzz",
        part=Part.SECURITY,
        text="Every parser ends with a value or with one typed error, whatever the bytes",
        pages="[report](reports/security-tests.md)",
        short="nox -s fuzz -- --seconds 8",
        long="nox -s fuzz -- --seconds 300",
        tell=lines(r"^total +([\d,]+) +(\d+)$", shown="{0} executions, {1} crashes"),
        needs=("atheris",),
    ),
    Promise(
        name="cost",
        part=Part.SECURITY,
        text="Refusing a request takes time linear in its size",
        pages="[security](security.md#the-promises)",
        short="nox -s cost -- --bodies 20 --pieces 2 --repeats 2",
        long="nox -s cost -- --bodies 2000 --pieces 60 --repeats 3",
        tell=lines(r"^the most expensive .*$", r"^the greatest growth .*$"),
    ),
    Promise(
        name="edge",
        part=Part.SECURITY,
        text="Behind nginx, an honest peer is paid during attacks",
        pages="[in production](production.md)",
        short="nox -s edge -- --seconds 1 --turns 1",
        long="nox -s edge -- --seconds 5 --turns 3",
        tell=lines(r"^the lowest ratio .*$"),
        needs=("nginx",),
    ),
    Promise(
        name="demo",
        part=Part.DURABILITY,
        text="A payment completes although the server is killed halfway, and the totals of payer and payee agree",
        pages="[server](server.md)",
        short="nox -s demo",
        long="nox -s demo",
        tell=lines(r"^\d+ of \d+ checks held"),
    ),
    Promise(
        name="kill-points",
        part=Part.DURABILITY,
        text="At each moment of a crash, the sender, the file and the peer have what the table says",
        pages="[receiving](receiving.md)",
        short="pytest -q tests/campaigns/crash/test_kill_points.py",
        long="pytest -q tests/campaigns/crash/test_kill_points.py",
        tell=passed,
    ),
    Promise(
        name="crash",
        part=Part.DURABILITY,
        text="No credit is lost or counted twice when `serve` is killed at any time",
        pages="[receiving](receiving.md), [report](reports/crash-and-simulation.md)",
        short="nox -s crash -- --kills 30 --seed 3",
        long="nox -s crash -- --kills 200 --seed 3",
        tell=lines(r"^seed \d+, (\d+ kills)$", r"^packets .*$", r"^fulfilled .*$", r"^credits .*$", r"^violations .*$"),
    ),
    Promise(
        name="feed",
        part=Part.DURABILITY,
        text="Each event reaches each consumer and each webhook at least once, in order, when any process is killed",
        pages="[events](events.md), [webhooks](webhooks.md)",
        short="nox -s crash -- --feed --kills 15 --seed 23",
        long="nox -s crash -- --feed --kills 200 --seed 23",
        tell=lines(r"^processes killed .*$", r"^arrivals at .*$", r"^payments audited .*$", r"^violations .*$"),
    ),
    Promise(
        name="disk",
        part=Part.DURABILITY,
        text="No acknowledged credit is missing after a failed sync and a power cut",
        pages="[receiving](receiving.md), [report](reports/crash-and-simulation.md)",
        short="nox -s disk -- --images 60 --runs 2 --seed 6",
        long="nox -s disk -- --images 1000 --runs 20 --seed 6",
        tell=lines(r"^\d+ images, .*$"),
        needs=("compiler",),
    ),
    Promise(
        name="syncs",
        part=Part.DURABILITY,
        text="No acknowledged credit is missing when workers are killed inside a sync, and then the power is cut",
        pages="[SQLite](sqlite.md#after-a-process-was-killed), [report](reports/crash-and-simulation.md)",
        short="nox -s syncs -- --rounds 12 --seed 501",
        long="nox -s syncs -- --rounds 200 --seed 501",
        tell=lines(r"^seed \d+, (\d+ rounds), \d+ workers$", r"^fulfilled .*$", r"^credits .*$", r"^violations .*$"),
        needs=("compiler",),
    ),
    Promise(
        name="postgres",
        part=Part.DURABILITY,
        text="No credit is lost or counted twice when PostgreSQL, its clients and their connections are killed",
        pages="[PostgreSQL](postgres.md#durability-of-a-write)",
        short="nox -s postgres -- --rounds 15 --seed 23",
        long="nox -s postgres -- --rounds 100 --seed 23",
        tell=lines(r"^seed \d+, (\d+ rounds)$", r"^calls .*$", r"^acknowledged credits .*$", r"^violations .*$"),
        needs=("postgres",),
    ),
    Promise(
        name="linearizable",
        part=Part.DURABILITY,
        text="One order of the calls of each payment explains every answer (linearizability), under SERIALIZABLE too",
        pages="[PostgreSQL](postgres.md#durability-of-a-write)",
        short="nox -s postgres -- --rounds 8 --seed 24 --isolation serializable",
        long="nox -s postgres -- --rounds 50 --seed 24 --isolation serializable",
        tell=lines(
            r"^seed \d+, (\d+ rounds)$", r"^payments .*$", r"^calls .*$", r"^longest history .*$", r"^violations .*$"
        ),
        needs=("postgres",),
    ),
    Promise(
        name="failover",
        part=Part.DURABILITY,
        text="No acknowledged credit is lost when the primary dies and its synchronous standby is promoted",
        pages="[PostgreSQL](postgres.md#synchronous-standbys)",
        short="nox -s failover -- --rounds 4 --seed 23",
        long="nox -s failover -- --rounds 20 --seed 23",
        tell=lines(
            r"^seed \d+, (\d+ rounds)$", r"^acknowledged credits .*$", r"^interrupted commits .*$", r"^violations .*$"
        ),
        needs=("postgres",),
    ),
    Promise(
        name="served",
        part=Part.DURABILITY,
        text="The same holds for `serve` with four workers on PostgreSQL, and its audit finds no difference",
        pages="[serve on PostgreSQL](serve-postgres.md)",
        short="nox -s served -- --rounds 15 --seed 32",
        long="nox -s served -- --rounds 100 --seed 32",
        tell=lines(
            r"^seed \d+, (\d+ rounds)$", r"^packets .*$", r"^fulfilled .*$", r"^credits .*$", r"^violations .*$"
        ),
        needs=("postgres",),
    ),
    Promise(
        name="exactly-once",
        part=Part.DURABILITY,
        text="A handler's own change and the acknowledgement of its delivery are durable together, or not at all",
        pages="[PostgreSQL](postgres.md#exactly-once)",
        short="pytest -q tests/unit/stores/postgres/test_acknowledging.py",
        long="pytest -q tests/unit/stores/postgres/test_acknowledging.py",
        tell=passed,
        needs=("postgres",),
    ),
    Promise(
        name="simulate",
        part=Part.DURABILITY,
        text="No promise breaks under random crashes, repeats, lost answers, wrong clocks and store failures",
        pages="[report](reports/crash-and-simulation.md#simulation-of-the-whole-service)",
        short="nox -s simulate -- --steps 100000 --first 1",
        long="nox -s simulate -- --steps 1000000 --first 5000000",
        tell=lines(r"^ *[\d,]+ +steps over .*$"),
    ),
    Promise(
        name="explore",
        part=Part.DURABILITY,
        text="No state of the small scenarios breaks a promise, in any order and with a crash at any effect",
        pages="[report](reports/crash-and-simulation.md#every-order-and-a-crash-at-every-effect)",
        short="nox -s explore -- --small",
        long="nox -s explore",
        tell=lines(r"^[\d,]+ states in all.*$"),
    ),
    Promise(
        name="audit",
        part=Part.DURABILITY,
        text="The audit finds each damage to a row, except the kinds on the list of damage that stays hidden",
        pages="[audit](audit.md#damage-that-stays-hidden)",
        short="pytest -q tests/unit/audit",
        long="pytest -q tests/unit/audit",
        tell=passed,
        needs=("postgres",),
    ),
    Promise(
        name="faults",
        part=Part.TESTS,
        text="The exploration finds code that is broken on purpose",
        pages="[report](reports/crash-and-simulation.md#every-order-and-a-crash-at-every-effect)",
        short="nox -s explore -- --faults",
        long="nox -s explore -- --faults",
        tell=lines(r"^\d+ of \d+ faults .*$"),
    ),
    Promise(
        name="broken-stores",
        part=Part.TESTS,
        text="The checks of the crash campaigns find stores and servers that are broken on purpose",
        pages="[report](reports/crash-and-simulation.md)",
        short="pytest -q tests/campaigns/crash/test_check.py tests/campaigns/postgres/test_check.py",
        long="pytest -q tests/campaigns/crash tests/campaigns/postgres tests/campaigns/disk tests/campaigns/simulation",
        tell=passed,
    ),
    Promise(
        name="mutants",
        part=Part.TESTS,
        text="In each package of the report, the tests notice at least 95 % of small changes to the code",
        pages="[report](reports/security-tests.md#mutants)",
        short=None,
        long="nox -s mutants -- --sample 150",
        tell=lines(r"^\w+ +\d+\.\d % killed$"),
    ),
    Promise(
        name="verify",
        part=Part.SPEED,
        text="The checks of a signed request take little time beside its Ed25519 verification",
        pages="[report](reports/speed.md#verified-signatures)",
        short=None,
        long="nox -s bench -- verify",
        tell=lines(r"^(?:times_raw|vs)_\w+ .*$"),
        needs=("node",),
    ),
)
