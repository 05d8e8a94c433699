"""Every bound, with its unit last and the reason beside it. Nothing is imported here.

A limit is on everything that comes from outside, and each is refused with a message that names it. The relations
between them are checked when this module is imported, also under `python -O`.
"""

from typing import Final

# --- amounts: contract sections 2.1 and 8 ---

UINT64_MAX: Final = 2**64 - 1  # `value` is an unsigned 64-bit integer
UINT64_DIGITS_MAX: Final = 20  # so that a megabyte of digits is never converted
ASSET_SCALE_MAX: Final = 255  # contract section 2.1
ASSET_CODE_CHARS_MAX: Final = 32  # ISO 4217 needs 3; tokens and loyalty points somewhat more

# --- resource ---

URL_CHARS_MAX: Final = 2048  # what browsers and proxies agree to carry
URLS_REMEMBERED_MAX: Final = 1024  # URLs whose checked spelling is kept at hand: at most 4 MB
CLIENT_ID_CHARS_MAX: Final = URL_CHARS_MAX  # often the URL of the client's own wallet address
CREDIT_ID_CHARS_MAX: Final = 200  # a hash, a UUID, or a core banking reference with room to spare
METADATA_BYTES_MAX: Final = 8 * 1024  # the default; enough for an invoice reference, too little to abuse as storage
METADATA_DEPTH_MAX: Final = 8  # the default; people's metadata is one or two deep
EXPIRY_S_MAX: Final = 366 * 24 * 3600  # the default for how far ahead `expiresAt` may be: a year, leap day included
METHODS_MAX: Final = 8  # one a payment method type, and there is one type today

# --- ILP: contract section 2.3, RFC 15 ---

ILP_ADDRESS_CHARS_MAX: Final = 1023
ILP_ADDRESSES_REMEMBERED_MAX: Final = 1024  # addresses whose checked spelling is kept at hand: at most 2 MB
ILP_DATA_BYTES_MAX: Final = 32_767  # RFC 27: end-to-end data of one packet
ILP_MESSAGE_CHARS_MAX: Final = 8191  # RFC 27: the message of a Reject, for people
ILP_PREPARE_BYTES_MAX: Final = 34 * 1024  # the largest Prepare there can be has 33,857
SHARED_SECRET_CHARS_MAX: Final = 256  # STREAM uses 43; room for a host's own allocator
SERVER_SECRET_BYTES_MIN: Final = 32  # as strong as the keys derived from it
SERVER_SECRETS_MAX: Final = 8  # a packet for an unknown address costs one decryption a secret
PEER_TOKEN_CHARS_MIN: Final = 16  # 96 bits in base64: who guesses a peer's token makes money out of nothing
PEER_TOKENS_MAX: Final = 8  # of one peer: two while one is replaced by another, and some to spare

# --- STREAM: RFC 29 ---

STREAM_FRAMES_MAX: Final = 256  # in one packet: senders put in some ten, and thousands would fit
STREAM_FRAMES_REMEMBERED_MAX: Final = 1024  # frames that are not read anew: they come with every packet
STREAM_FRAME_REMEMBERED_BYTES_MAX: Final = 32  # a frame about money has at most 28 bytes of contents
STREAMS_ANSWERED_MAX: Final = 10  # streams of one packet that get frames in the reply: those of RFC 29 §3.3 at a time
STREAM_KEYS_REMEMBERED_MAX: Final = 4096  # payments whose derived keys are kept at hand: some 2 KB each
EXCESS_UNITS_MAX: Final = 1  # the default for what a packet may bring too much, in minor units: rounding of a rate
EXCESS_BASIS_POINTS_MAX: Final = 100  # the default for the same, of incomingAmount: coarser assets still finish
PREPARE_MARGIN_MS_MIN: Final = 1000  # the default for what a Prepare must have left: to commit, and for the way back

# --- the sender for tests ---

SENDER_IN_FLIGHT_MAX: Final = 64  # packets that may be unanswered: each is a thread and a connection
SENDER_PATIENCE_S_MAX: Final = 30.0  # the default for how long nothing may be fulfilled: a service restarts in two
SENDER_BACKOFF_S_MAX: Final = 1.0  # before a packet is sent again: so soon a service that is back is noticed

# --- JSON ---

BODY_BYTES_MAX: Final = 64 * 1024  # a create request with full metadata needs a quarter of it
JSON_DEPTH_MAX: Final = 32  # for the body as a whole; also keeps the parser off its recursion limit
JSON_NUMBER_CHARS_MAX: Final = 64  # integers of any size are quadratic to convert

# --- HTTP, RFC 9421, RFC 9651 ---

TARGET_CHARS_MAX: Final = 4096  # path and query
HEADERS_MAX: Final = 100  # fields in a request, each repeat counted
HEADER_BYTES_MAX: Final = 16 * 1024  # one field's value, all its lines together
HEADERS_BYTES_MAX: Final = 64 * 1024  # all names and values
SF_MEMBERS_MAX: Final = 32  # members of one dictionary: labels or digests
SIGNATURES_MAX: Final = 4  # candidates whose signature is computed: what a hostile header can make us pay
COMPONENTS_MAX: Final = 64  # covered components of one signature
COVERAGES_REMEMBERED_MAX: Final = 64  # lists of covered components kept at hand: one a kind of request; at most 7 MB
SF_FIELDS_BYTES_MAX: Final = 4 * 1024  # parsed for `;sf` and `;key`, all fields together: 5 ms; real ones have some 200
SF_PARAMETERS_MAX: Final = 16  # on one member or item; RFC 9421 defines six
KEY_ID_CHARS_MAX: Final = 256
NONCE_CHARS_MAX: Final = 256

SIGNATURE_AGE_S_MAX: Final = 300  # the default freshness window: slow networks and retries, not archives
CLOCK_SKEW_S_MAX: Final = 60  # the default for how far ahead a client's clock may be
SIGNATURE_AGE_SETTING_S_MAX: Final = 24 * 3600  # what a configuration may ask for: no replays of last week
CLOCK_SKEW_SETTING_S_MAX: Final = 3600  # what a configuration may ask for: an hour off is a wrong time zone, not skew

# --- explaining a refusal, for the log ---

EXPLAIN_VERIFICATIONS_MAX: Final = 128  # trials of a diagnosis: some 80 for one signature; 0.1 s at worst
EXPLAIN_CAUSES_MAX: Final = 6  # the first few tell a reader enough
EXPLAIN_CHARS_MAX: Final = 8 * 1024  # of one diagnosis: an honest request needs some 1,000
EXPLAIN_VALUE_CHARS_MAX: Final = 200  # of one value in it: a target URI, a keyid
EXPLAINED_A_MINUTE_MAX: Final = 10  # of one host: enough to find a mistake, too few to fill a log or load a core

# --- keys ---

RSA_BITS_MIN: Final = 2048  # NIST SP 800-131A
RSA_BITS_MAX: Final = 8192  # verification cost grows with the square
RSA_EXPONENT_MAX: Final = 2**32 - 1  # larger ones only serve to burn time
KEYS_REMEMBERED_MAX: Final = 4096  # Ed25519 keys known to be sound: 32 bytes each, and a check costs 90 us
JWK_CHARS_MAX: Final = 8 * 1024

# --- GNAP ---

TOKEN_CHARS_MAX: Final = 4096  # structured tokens are long
ACCESS_RIGHTS_MAX: Final = 64  # rights in one token

# --- flows ---

SWEEP_PAYMENTS_MAX: Final = 500  # expired payments announced by one call
FLOW_STEPS_MAX: Final = 1000  # effects in one flow; a sweep takes one a payment, the others six

# --- adapters and the server ---

BODY_S_MAX: Final = 10  # for a whole body to arrive: the largest needs 52 kbit/s; a proxy that buffers needs no time
BACKLOG_CONNECTIONS_MAX: Final = 128  # waiting to be accepted: the event loop accepts all of them in one turn
KEEP_ALIVE_S_MAX: Final = 75  # of silence between two requests: longer than a proxy keeps its connection (nginx: 60)
SHUTDOWN_S_MAX: Final = 15  # for the requests in flight when the server stops: the body, and the store's own wait

# --- the log of a host ---

LOGGED_A_MINUTE_MAX: Final = 10  # of one kind: enough to see what is wrong, too few to fill the disk of the database

# --- the command that signs ---

SIGNED_BODY_BYTES_MAX: Final = 16 * 1024 * 1024  # read into memory to be digested: what tries a server's own limit
COMMAND_BODY_BYTES_MAX: Final = 24 * 1024  # quoted it can be five times that, and Linux takes 128 KiB as one argument

# --- stores ---

STORE_BATCH_MAX: Final = 256  # updates in one commit: bounds how long one waits behind the others
STORE_QUEUE_MAX: Final = 10_000  # updates waiting; past it callers are refused rather than queued without end
STORE_READERS_MAX: Final = 8  # connections kept for reading, and threads that read for asyncio
STORE_LOG_FRAMES_MAX: Final = 1_000  # pages in SQLite's log when it is copied into the database: SQLite's own default
STORE_LOG_KEPT_BYTES_MAX: Final = 8 * 1024 * 1024  # SQLite shortens the log to this when it begins to write it again
STORE_LOG_BYTES_MAX: Final = 32 * 1024 * 1024  # past it the writer waits for readers, so that the log ends somewhere
STORE_TRUNCATE_MS_MAX: Final = 250  # how long it waits for them: callers of the next batch wait as long
STORE_BUSY_S_MAX: Final = 5.0  # how long another process may hold the file
NONCES_MAX: Final = 100_000  # the default: 250 signed requests a second for a whole window; in memory some 30 MB
NONCES_SWEPT_MAX: Final = 2  # expired nonces removed for one that comes: more than come, and never a long wait

for _smaller, _larger, _why in (
    (METADATA_BYTES_MAX, BODY_BYTES_MAX, "metadata has to fit its body"),
    (METADATA_DEPTH_MAX, JSON_DEPTH_MAX, "metadata has to fit its body"),
    (HEADER_BYTES_MAX, HEADERS_BYTES_MAX, "one field has to fit all fields"),
    (TOKEN_CHARS_MAX, HEADER_BYTES_MAX, "a token has to fit its header"),
    (SIGNATURES_MAX, SF_MEMBERS_MAX, "candidates are members"),
    (EXPLAIN_VALUE_CHARS_MAX, EXPLAIN_CHARS_MAX, "a value has to fit its report"),
    (CLOCK_SKEW_S_MAX, SIGNATURE_AGE_S_MAX, "a window smaller than the skew accepts nothing"),
    (SIGNATURE_AGE_S_MAX, SIGNATURE_AGE_SETTING_S_MAX, "the default age has to be allowed"),
    (CLOCK_SKEW_S_MAX, CLOCK_SKEW_SETTING_S_MAX, "the default skew has to be allowed"),
    (RSA_BITS_MIN, RSA_BITS_MAX, "some RSA key has to be acceptable"),
    (1 + SWEEP_PAYMENTS_MAX, FLOW_STEPS_MAX, "a full sweep has to end: one effect finds, one more a payment"),
    (COMMAND_BODY_BYTES_MAX, SIGNED_BODY_BYTES_MAX, "a body in a command was read"),
    (BODY_S_MAX + STORE_BUSY_S_MAX, SHUTDOWN_S_MAX, "a request in flight has to end before the server stops"),
    (STORE_BATCH_MAX, STORE_QUEUE_MAX, "a batch comes out of the queue"),
    (STORE_LOG_KEPT_BYTES_MAX, STORE_LOG_BYTES_MAX, "a log that is kept must not be too long"),
    (len(str(UINT64_MAX)), UINT64_DIGITS_MAX, "the largest amount has to be writable"),
    (ILP_DATA_BYTES_MAX + ILP_ADDRESS_CHARS_MAX, ILP_PREPARE_BYTES_MAX, "a Prepare holds data and an address"),
    (STREAMS_ANSWERED_MAX, STREAM_FRAMES_MAX, "a reply is a packet as well"),
    (SENDER_BACKOFF_S_MAX, SENDER_PATIENCE_S_MAX, "a packet has to be sent again before the sender gives up"),
):
    if _smaller > _larger:
        raise RuntimeError(f"limits.py: {_smaller} is more than {_larger}, but {_why}")
