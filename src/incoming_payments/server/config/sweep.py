"""The settings of the sweep."""

from attrs import frozen

from incoming_payments.limits import DELIVERIES_KEPT_S_DEFAULT, KEPT_S_MAX, SWEEP_S_DEFAULT, SWEEP_S_MAX
from incoming_payments.server.config.setting import setting


@frozen(kw_only=True)
class SweepTable:
    """The sweep, which writes `expired` events, erases old metadata, and deletes old deliveries."""

    interval_s: int = setting(
        "the number of seconds between two sweeps. An `expired` event comes up to this much later",
        SWEEP_S_DEFAULT,
        bounds=(1, SWEEP_S_MAX),
    )
    metadata_kept_s: int | None = setting(
        "how many seconds after the completion or the expiry of a payment its metadata is erased for good",
        None,
        "never",
        bounds=(0, KEPT_S_MAX),
        usual=(24 * 3600, KEPT_S_MAX),
        unusual="the value is in seconds, and nothing brings erased metadata back",
        written="7776000",
    )
    deliveries_kept_s: int = setting(
        "how many seconds after the acknowledgement of a delivery its record is deleted",
        DELIVERIES_KEPT_S_DEFAULT,
        bounds=(0, KEPT_S_MAX),
    )
