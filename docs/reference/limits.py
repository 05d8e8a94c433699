"""The limits of `docs/limits.md`, from `limits.py`: name, value, reason, and what happens past each limit."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from attrs import frozen

from incoming_payments import limits
from reference.markdown import table

SOURCE: Final = Path(limits.__file__)

# What happens past a limit, with the limits that have this effect.
_EFFECTS: Final[Mapping[str, str]] = {
    "the request gets 400 `invalid_body`, and a call raises `InvalidValue`": "UINT64_MAX UINT64_DIGITS_MAX "
    "ASSET_SCALE_MAX ASSET_CODE_CHARS_MAX",
    "the request gets 400 `invalid_body`, and a call or a setting with the URL is refused": "URL_CHARS_MAX",
    "the request gets 400 `invalid_body`": "JSON_DEPTH_MAX JSON_BRACKETS_MAX JSON_NUMBER_CHARS_MAX "
    "PULL_ERROR_CHARS_MAX METADATA_BYTES_DEFAULT METADATA_DEPTH_DEFAULT",
    "the request gets 400 `invalid_terms`": "EXPIRY_S_MAX_DEFAULT",
    "the request gets 401 `signature_stale`": "SIGNATURE_AGE_S_DEFAULT",
    "the request gets 401 `created_in_future`": "CLOCK_SKEW_S_DEFAULT",
    "the request gets 503 `store_unavailable`": "NONCES_DEFAULT",
    "the request gets 503 `acceptance_unavailable`, and a packet T00": "APPROVAL_S_DEFAULT",
    "the request gets 503 `authorization_server_unavailable`": "INTROSPECTION_S_DEFAULT",
    "the service forgets the key": "IDEMPOTENCY_KEY_S_DEFAULT",
    "the packet is refused with F08": "EXCESS_UNITS_DEFAULT EXCESS_BASIS_POINTS_DEFAULT",
    "a packet with less time is refused with R00": "PREPARE_MARGIN_MS_DEFAULT",
    "the delivery becomes a dead letter": "RETRY_ATTEMPTS_DEFAULT",
    "the attempt fails": "ATTEMPT_S_DEFAULT WEBHOOK_S_DEFAULT",
    "the fetch fails": "DOCUMENT_FETCH_S_DEFAULT",
    "the document is fetched again": "DOCUMENT_AGE_S_DEFAULT",
    "the endpoint is down": "WEBHOOK_DOWN_S_DEFAULT",
    "the endpoint is disabled": "WEBHOOK_DISABLE_S_DEFAULT",
    "further deliveries wait": "RELAY_CONCURRENCY_DEFAULT PULLED_DELIVERIES_DEFAULT",
    "another consumer process may get the deliveries": "PULL_LEASE_S_DEFAULT",
    "the record of an acknowledged delivery is deleted": "DELIVERIES_KEPT_S_DEFAULT",
    "further calls wait for a connection": "STORE_CONNECTIONS_DEFAULT",
    "further payments are on the next page": "PAGE_PAYMENTS_DEFAULT",
    "the request gets 400 `invalid_query`, and a call raises `InvalidValue`": "PAGE_PAYMENTS_MAX",
    "the request gets 400 `invalid_idempotency_key`": "IDEMPOTENCY_KEY_CHARS_MAX SF_STRING_BYTES_MAX",
    "the request gets 406 `not_acceptable`": "ACCEPT_CHARS_MAX",
    "the request gets 408 `body_timeout`": "BODY_START_S_MAX BODY_S_MAX",
    "the request gets 413 `body_too_large`": "BODY_BYTES_MAX ILP_PREPARE_BYTES_MAX PULL_BODY_BYTES_MAX",
    "the request gets 414 `target_too_long`": "TARGET_CHARS_MAX",
    "the request gets 431 `headers_too_large`": "HEADERS_MAX HEADER_BYTES_MAX HEADERS_BYTES_MAX",
    "the request gets 401 `too_many_signatures`": "SIGNATURES_MAX",
    "the request gets 401 with the code of the malformed field": "SF_MEMBERS_MAX COMPONENTS_MAX SF_PARTS_MAX "
    "SF_CHARS_MAX SF_PARAMETERS_MAX KEY_ID_CHARS_MAX NONCE_CHARS_MAX",
    "the request gets 401 `component_value`": "SF_STRICT_CHARS_MAX QUERY_PARAMETERS_MAX",
    "the request gets 401 `invalid_token`": "TOKEN_CHARS_MAX",
    "the key is refused with `MalformedKey`, and a request signed with it gets 401 `key_unusable`": "RSA_BITS_MIN "
    "RSA_BITS_MAX RSA_EXPONENT_MAX JWK_CHARS_MAX",
    "the request of a consumer gets 400 `invalid_body`": "PULL_LEASE_S_MIN",
    "the call raises `InvalidValue`": "CLIENT_ID_CHARS_MAX CREDIT_ID_CHARS_MAX SHARED_SECRET_CHARS_MAX "
    "CONSUMER_NAME_CHARS_MAX CONSUMERS_MAX DEAD_LETTERS_MAX SWEEP_PAYMENTS_MAX SENDER_IN_FLIGHT_MAX",
    "the setting is refused": "SERVER_SECRET_BYTES_MIN SERVER_SECRETS_MAX PEER_TOKEN_CHARS_MIN PEER_TOKENS_MAX "
    "WEBHOOK_SECRETS_MAX WEBHOOK_SECRET_BYTES_MIN WEBHOOK_SECRET_BYTES_MAX QUOTA_REQUESTS_MAX QUOTA_UNPAID_MAX "
    "PORT_MAX WORKERS_MAX DRAIN_S_MAX KEPT_S_MAX STORE_CONNECTIONS_MAX FETCHES_MAX",
    "the call raises `ConfigurationError`, because it is the answer of your port": "METHODS_MAX",
    "the file is refused": "CONFIGURATION_BYTES_MAX",
    "the command refuses the body": "SIGNED_BODY_BYTES_MAX COMMAND_BODY_BYTES_MAX",
    "the value of the member is no reference, so the payment is not found by it": "REFERENCE_CHARS_MAX",
    "a packet for the address gets F01, and a call with it raises `InvalidValue`": "ILP_ADDRESS_CHARS_MAX",
    "the packet is refused with F01": "ILP_DATA_BYTES_MAX",
    "the packet is refused with F06": "STREAM_FRAMES_MAX",
    "a reply with the message raises `InvalidValue`": "ILP_MESSAGE_CHARS_MAX",
    "the reply leaves out the other streams": "STREAMS_ANSWERED_MAX",
    "the rest is cut off": "REFUSAL_CHARS_MAX DELIVERY_ERROR_CHARS_MAX LOGGED_PATH_CHARS_MAX EXPLAIN_CHARS_MAX "
    "EXPLAIN_VALUE_CHARS_MAX",
    "shorter pieces are shown": "SECRET_PIECE_CHARS_MIN",
    "the diagnosis tries no further mistakes, and says so": "EXPLAIN_VERIFICATIONS_MAX",
    "the diagnosis leaves out further causes": "EXPLAIN_CAUSES_MAX",
    "further lines are suppressed and counted": "LOGGED_A_MINUTE_MAX EXPLAINED_A_MINUTE_MAX",
    "the oldest entries leave the cache": "INTROSPECTIONS_CACHED_DEFAULT STREAM_KEYS_REMEMBERED_MAX "
    "COVERAGES_REMEMBERED_MAX KEYS_REMEMBERED_MAX "
    "ACTIVE_TOKENS_MAX ACTIVE_TOKENS_OF_CLIENT_MAX DOCUMENTS_MAX MISSING_DOCUMENTS_MAX QUOTA_CLIENTS_MAX",
    "the answer is not cached": "INTROSPECTION_CACHED_BYTES_MAX",
    "the rest is ignored": "CLIENT_KEYS_MAX ACCESS_RIGHTS_MAX LOOK_UP_ADDRESSES_MAX",
    "the answer is refused: the port is unavailable, or the attempt fails": "ANSWER_VALUES_MAX INTROSPECTION_BYTES_MAX "
    "ANSWER_OVERHEAD_BYTES_MAX ANSWER_LINES_MAX ANSWER_PIECES_MAX INTERIM_RESPONSES_MAX DOCUMENT_BYTES_MAX "
    "WEBHOOK_ANSWER_BYTES_MAX",
    "the request to the other system fails, and the port is unavailable": "CLIENT_RETRIES_MAX LOOK_UPS_MAX "
    "LOOK_UPS_OF_DOMAIN_MAX FETCHES_OF_DOMAIN_MAX WALLET_FETCHES_MAX",
    "the client does not try further addresses": "REQUEST_SOCKETS_MAX",
    "further requests wait": "CLIENT_CONNECTIONS_MAX",
    "the client stops sending for a pause, and then probes": "BREAKER_FAILURES_MAX",
    "the document is dropped, and the port is unavailable": "DOCUMENT_STALE_S_MAX",
    "further events wait for a later delivery": "DELIVERY_EVENTS_MAX",
    "impossible: a body names at most one credit": "DELIVERY_BYTES_MAX",
    "the claim returns fewer deliveries": "DELIVERIES_CLAIMED_MAX CLAIM_EVENTS_MAX",
    "another batch follows": "FEED_ROWS_MAX ERASED_PAYMENTS_MAX STORE_BATCH_MAX STORE_SLICE_PAYMENTS_MAX "
    "AUDIT_SLICE_S_MAX",
    "a longer pause is cut to this length": "RETRY_PAUSE_S_MAX RETRY_LONGEST_S_DEFAULT PROBE_S_MAX CLIENT_RETRY_S_MAX "
    "BREAKER_OPEN_S_MAX WEBHOOK_RETRY_AFTER_S_MAX QUOTA_RETRY_S_MAX STORE_RETRY_S_MAX SENDER_BACKOFF_S_MAX",
    "no pause is shorter": "RELAY_TROUBLE_S_MIN PROBE_S_MIN BREAKER_OPEN_S_MIN DOCUMENT_COOL_DOWN_S_MIN "
    "WEBHOOK_THROTTLE_S_MIN STORE_RETRY_S_MIN AUDIT_PAUSE_S_MIN",
    "the value is fixed": "PROBE_SHARE_DEFAULT",
    "the attempt has this much time more": "WEBHOOK_MARGIN_S_MIN",
    "the call waits for a thread, and fails when as many calls wait": "PORT_THREADS_MAX",
    "the reservation no longer counts": "QUOTA_RESERVED_S_MAX",
    "the process tells the other processes": "QUOTA_UNSENT_PERCENT_MAX",
    "further old rows wait for the next insert": "QUOTA_COUNTS_SWEPT_MAX NONCES_SWEPT_MAX IDEMPOTENCY_KEYS_SWEPT_MAX",
    "the log has a warning": "PORT_BLOCKS_S_MAX",
    "the flow ends with `FlowStuck`": "FLOW_STEPS_MAX",
    "`serve` answers 400 and closes the connection": "FIELDS_READ_MAX BODY_PARTS_MAX",
    "the operating system holds further connections back": "BACKLOG_CONNECTIONS_MAX",
    "`serve` closes the connection": "KEEP_ALIVE_S_MAX HEADER_SECTION_BYTES_MAX PIPELINED_REQUESTS_MAX",
    "the requests and tasks in flight are cancelled": "SHUTDOWN_S_MAX TASKS_STOP_S_MAX",
    "the worker is killed and replaced": "WORKER_SILENT_S_MAX",
    "the call raises `StoreUnavailable`": "STORE_QUEUE_MAX STORE_BUSY_S_MAX STORE_STATEMENT_S_MAX STORE_ANSWER_S_MAX",
    "in asyncio, further reads wait": "STORE_READERS_MAX",
    "the read counts as slow": "STORE_SLOW_READ_S_MIN",
    "further reads run in other threads": "STORE_SLOW_READS_SHARE_MAX STORE_SLOW_READS_S_MAX",
    "the log is copied into the database": "STORE_LOG_FRAMES_MAX",
    "the log is shortened": "STORE_LOG_KEPT_BYTES_MAX",
    "the log is emptied": "STORE_LOG_BYTES_MAX",
    "the log is emptied at a later commit": "STORE_TRUNCATE_MS_MAX",
    "the migration fails, and can be repeated": "MIGRATION_S_MAX",
    "further differences are only counted": "AUDIT_DIFFERENCES_MAX",
}
_FIXED: Final = {"PROBE_SHARE_DEFAULT"}  # a default that no setting changes
_OF: Final = {name: effect for effect, names in _EFFECTS.items() for name in names.split()}
_UNITS: Final = {
    "BASIS_POINTS": "basis points", "BITS": "bits", "BYTES": "bytes", "CHARS": "characters", "DIGITS": "digits",
    "FRAMES": "frames", "MS": "ms", "PERCENT": "%", "S": "s", "UNITS": "minor units",
}  # fmt: skip


@frozen
class Limit:
    """One limit: its section of the module, its name, its value, and its reason."""

    section: str
    name: str
    value: int | float
    reason: str


def _limits() -> Iterator[Limit]:
    """Yield the limits of the module, in its order."""
    section = ""
    for line in SOURCE.read_text("utf-8").splitlines():
        if heading := re.fullmatch(r"# --- (.*) ---", line):
            section = heading[1].partition(":")[0]
        elif found := re.match(r"([A-Z0-9_]+): Final = [^#]+(?:# (.*))?$", line):
            yield Limit(section, found[1], getattr(limits, found[1]), found[2] or "")


def _value(one: Limit) -> str:
    """Return the value with its unit, as the name says it."""
    name = re.sub(r"(?<!^)_(MAX|MIN|DEFAULT)\b", "", one.name)
    name = name.removesuffix("_MAX")  # of EXPIRY_S_MAX_DEFAULT
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(f"_{end}")), "")
    number = f"{one.value:,}" if isinstance(one.value, int) else f"{one.value:,g}"
    return f"{number} {unit}{_in_words(one.value, unit)}".strip()


def _in_words(value: float, unit: str) -> str:
    """Return a large value in a larger unit, if it is a whole number of them."""
    larger = {"s": (("days", 86_400), ("hours", 3_600), ("minutes", 60)), "bytes": (("MiB", 2**20), ("KiB", 2**10))}
    for name, size in larger.get(unit, ()):
        if value >= 2 * size and value % size == 0:
            return f" ({value / size:,g} {name})"
    return ""


def _reason(one: Limit) -> str:
    """Return the reason, without references to the contract of the project."""
    return re.sub(r" \(spec section[^)]*\)", "", one.reason)


def _effect(one: Limit) -> str:
    """Return what happens past the limit. Raises `ValueError` for a new limit without a text."""
    is_default = one.name.endswith("_DEFAULT") and one.name not in _FIXED
    if one.name in _OF:
        return _OF[one.name] + ("; you can set another value" if is_default else "")
    if is_default:
        return "you can set another value"
    if one.reason.startswith("the largest setting"):
        return "the setting is refused"
    raise ValueError(f"reference/limits.py: say in _EFFECTS what happens past {one.name}")


def limit_tables() -> str:
    """Return a table for each section of `limits.py`."""
    sections: dict[str, list[Limit]] = {}
    for one in _limits():
        sections.setdefault(one.section, []).append(one)
    return "\n\n".join(
        f"## {name[:1].upper()}{name[1:]}\n\n"
        + table(
            ["limit", "value", "meaning and reason", "past the limit"],
            [(f"`{one.name}`", _value(one), _reason(one), _effect(one)) for one in found],
        )
        for name, found in sections.items()
    )
