"""The result of a simulation: a report that counts the situations in the run, or a failure with its trace."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import field, frozen

from incoming_payments.flows.machinery.effects import (
    AllocateMethods,
    DrawRandomness,
    FindCreation,
    FindExpired,
    FindPayments,
    FindWalletAddress,
    InsertPayment,
    IntrospectToken,
    LoadPayment,
    RequestApproval,
    UpdatePayment,
    UseNonce,
)

_EFFECTS: Final = (
    DrawRandomness,
    FindWalletAddress,
    IntrospectToken,
    UseNonce,
    FindCreation,
    AllocateMethods,
    InsertPayment,
    LoadPayment,
    RequestApproval,
    UpdatePayment,
    FindExpired,
    FindPayments,
)


def _kinds() -> Iterator[str]:
    for effect in _EFFECTS:
        yield f"call abandoned before {effect.__name__}"
        yield f"call abandoned after {effect.__name__}"
    for source in ("credit", "packet"):
        for before in ("pending", "processing"):
            for after in ("processing", "completed"):
                yield f"{source}: {before} -> {after}"
        yield f"{source}: duplicate"
        for reason in ("completed", "expired", "wrong asset", "duplicate with another amount"):
            yield f"{source} refused: {reason}"
    yield "credit refused: overflow"
    yield from ("packet refused: too large", "packet refused: expired while waiting", "packet of amount 0")
    yield "packet needs the approval of the host"
    yield from (f"packet of amount 0 refused: {reason}" for reason in ("wrong asset", "duplicate with another amount"))
    yield "update refused: no such payment"
    for before in ("pending", "processing"):
        yield f"complete: {before} -> completed"
        yield f"expire: {before} -> expired"
    yield from ("complete: already completed", "complete refused: expired", "expire: nothing to announce")
    yield from ("page of a list", "cursor refused")
    yield from ("created", "create refused: the id exists", "load", "load refused: no such payment")
    yield from ("key found", "key not found", "create: the key was used in the meantime")
    yield "create refused: the key was used for another request"
    yield from ("create repeated", "create repeated while the first is in flight")
    yield from (f"packet answered {code}" for code in ("fulfilled", "F01", "F02", "F03", "F06", "F07", "F08", "F99"))
    yield from ("approval refused", "approval pending", "approval port failed", "approval port hung", "approval late")
    yield from ("client reached its quota of requests", "packet answered T99")
    yield from ("packet answered R00", "packet answered T00", "packet answered T00 although it was credited")
    yield from ("packet repeated", "packet repeated with another amount", "packet repeated with another expiry")
    yield from ("packet repeated while the first is in flight", "packet repeated after a crash")
    yield "packet with a used sequence number"
    yield from ("credit repeated", "credit repeated with another amount", "credit repeated after a crash")
    yield from ("answer lost", "clock jumped", "clock of a process changed")
    yield from ("store unavailable", "store unavailable, with an unknown outcome")
    yield "store committed, then lost its answer"
    yield from ("store committed late, after an error", "store committed late, after a crash")
    yield from ("store lost a late commit", "store rolled back", "store decided twice")
    for outage in ("read-only", "full"):
        yield f"store became {outage}"
        yield f"write refused: the store is {outage}"
    yield from ("delivery arrived", "delivery arrived again", "credits joined in a delivery")
    yield from (f"result: {result}" for result in ("delivered", "failed", "released"))
    yield from ("result refused: the lease was claimed again", "dead letter sent again")
    yield from ("consumer crashed between claim and result", "consumer lost a delivery")
    yield from ("store committed a batch", "store lost a batch", "two concurrent updates of one payment")


KINDS: Final[tuple[str, ...]] = tuple(_kinds())
"""The keys of `Report.met`. Runs with many seeds must meet each of these situations at least once."""


class SimulationFailed(AssertionError):
    """A guarantee was broken. The text contains the difference, the seed, the step and the trace.

    `trace` lists the events that led to the failure, oldest first.
    """

    def __init__(self, text: str, *, seed: int, step: int, trace: Sequence[str]) -> None:
        lines = "\n  ".join(trace)
        super().__init__(f"{text}\nin step {step} of simulate({seed}, ...); the last events, oldest first:\n  {lines}")
        self.seed = seed
        self.step = step
        self.trace = tuple(trace)


@frozen
class Report:
    """The result of one run, with the number of `steps`, and the number of times that it `met` each of `KINDS`."""

    seed: int
    steps: int
    met: Mapping[str, int] = field(repr=False)
