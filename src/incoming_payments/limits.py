"""All limits and defaults, each with its reason on the same line. This module imports nothing.

The name of a bound ends with its unit and `_MAX` or `_MIN`. The name of a default ends with `_DEFAULT`. A host can
set another value.

Every input from outside has a limit, and the error for a larger input names the limit. The relations between limits
are checked when this module is imported, even under `python -O`.
"""

from typing import Final

# --- amounts: spec sections 2.1 and 8 ---
UINT64_MAX: Final = 2**64 - 1  # `value` is an unsigned 64-bit integer
UINT64_DIGITS_MAX: Final = 20  # the length of `value`; longer strings are refused before conversion
ASSET_SCALE_MAX: Final = 255  # the largest scale of an asset (spec section 2.1)
ASSET_CODE_CHARS_MAX: Final = 32  # ISO 4217 needs 3 characters, and tokens and loyalty points need more

# --- resource ---
URL_CHARS_MAX: Final = 2048  # browsers and proxies support this length
ACCEPT_CHARS_MAX: Final = 1024  # the length of all Accept fields of a request; browsers send 150 characters
CLIENT_ID_CHARS_MAX: Final = URL_CHARS_MAX  # a client id is often the URL of the client's wallet address
CREDIT_ID_CHARS_MAX: Final = 200  # the length of a hash, a UUID or a core banking reference, with a margin
REFERENCE_CHARS_MAX: Final = 255  # an invoice number, a UUID or a short URL
IDEMPOTENCY_KEY_CHARS_MAX: Final = 255  # a UUID has 36 characters, and an index entry stays small
IDEMPOTENCY_KEY_S_DEFAULT: Final = 24 * 3600  # apps retry for at most a day
IDEMPOTENCY_KEY_S_MAX: Final = 366 * 24 * 3600  # the largest setting, because the records stay in the database
METADATA_BYTES_DEFAULT: Final = 8 * 1024  # enough for an invoice reference, and not for a document
METADATA_DEPTH_DEFAULT: Final = 8  # typical metadata has one or two levels
EXPIRY_S_MAX_DEFAULT: Final = 366 * 24 * 3600  # the maximum for `expiresAt` is a leap year from now
PAGE_PAYMENTS_DEFAULT: Final = 20  # payments in one page of a list, which take 170 KB with the largest metadata
PAGE_PAYMENTS_MAX: Final = 100  # the largest page that Open Payments allows
METHODS_MAX: Final = 8  # the methods of one payment, which has one for each type; there is one type today

# --- ILP: spec section 2.3, RFC 15 ---
ILP_ADDRESS_CHARS_MAX: Final = 1023  # the length of an ILP address
ILP_DATA_BYTES_MAX: Final = 32_767  # the end-to-end data of one packet (RFC 27)
ILP_MESSAGE_CHARS_MAX: Final = 8191  # the length of the message of a Reject (RFC 27)
ILP_PREPARE_BYTES_MAX: Final = 34 * 1024  # the largest possible Prepare has 33,857 bytes
SHARED_SECRET_CHARS_MAX: Final = 256  # STREAM uses 43 characters, and a host's own allocator may use more
SERVER_SECRET_BYTES_MIN: Final = 32  # the size of the keys that are derived from the secret
SERVER_SECRETS_MAX: Final = 8  # a packet for an unknown address costs one decryption for each secret
PEER_TOKEN_CHARS_MIN: Final = 16  # 96 bits in base64, because a guessed token lets an attacker create money
PEER_TOKENS_MAX: Final = 8  # the tokens of one peer, which needs two of them during a change of tokens

# --- STREAM: RFC 29 ---
STREAM_FRAMES_MAX: Final = 256  # frames in one packet; senders use about ten, and thousands would fit
STREAMS_ANSWERED_MAX: Final = 10  # streams in one reply; RFC 29 §3.3 lets a client open 10 streams at first
STREAM_KEYS_REMEMBERED_MAX: Final = 4096  # payments with cached keys, which take about 2 KB each
EXCESS_UNITS_DEFAULT: Final = 1  # the excess of a packet over incomingAmount, for rounded exchange rates
EXCESS_BASIS_POINTS_DEFAULT: Final = 100  # the same excess as a share, for senders with larger minor units
EXCESS_BASIS_POINTS_MAX: Final = 5000  # the largest setting; half of incomingAmount is far more than rounding needs
PREPARE_MARGIN_MS_DEFAULT: Final = 1000  # the time that a Prepare must have left for the commit and the reply
PREPARE_MARGIN_MS_MAX: Final = 20_000  # the largest setting; a packet has about 30 s for its whole route

# --- the STREAM sender for tests ---
SENDER_IN_FLIGHT_MAX: Final = 64  # each packet in flight takes a thread and a connection
SENDER_PATIENCE_S_DEFAULT: Final = 30.0  # the sender gives up after this time without a Fulfill; a restart takes 2 s
SENDER_BACKOFF_S_MAX: Final = 1.0  # the longest pause before a retry, so that the sender notices a restart within 1 s

# --- the feed ---
CONSUMER_NAME_CHARS_MAX: Final = 64  # a host name or the name of a service; the name is part of each row
CONSUMERS_MAX: Final = 64  # consumers of one store, because each change looks at each of them
CREDIT_DELAY_S_MAX: Final = 3600.0  # the largest setting; a receiver cannot use a later notice of money
CONSUMER_DOWN_S_MAX: Final = 366 * 24 * 3600  # the largest setting for the time without success
DELIVERY_EVENTS_MAX: Final = 1000  # events of one delivery, which are in memory together
DELIVERY_BYTES_MAX: Final = 20_000  # the payload of one delivery (Standard Webhooks)
DELIVERY_ERROR_CHARS_MAX: Final = 500  # the reason of a failure, which an operator reads
DELIVERIES_CLAIMED_MAX: Final = 100  # deliveries of one claim, which one transaction writes
CLAIM_EVENTS_MAX: Final = 1000  # events that a claim reads before its last delivery, while other writes wait
FEED_ROWS_MAX: Final = 500  # rows of one batch of a registration or a clean-up, so that other writes wait for some ms

# --- the relay ---
RETRY_ATTEMPTS_DEFAULT: Final = 11  # attempts of one delivery, which take three days with the other defaults
RETRY_ATTEMPTS_MAX: Final = 1000  # the largest setting
RETRY_FIRST_S_DEFAULT: Final = 5.0  # seconds until the second attempt; a restart of the receiver takes that long
RETRY_FACTOR_DEFAULT: Final = 4.0  # the factor by which each pause is longer than the one before
RETRY_FACTOR_MAX: Final = 100.0  # the largest setting
RETRY_LONGEST_S_DEFAULT: Final = 24 * 3600.0  # the longest pause, so that a receiver gets one attempt a day
RETRY_PAUSE_S_MAX: Final = 7 * 24 * 3600.0  # the longest pause of all, which a handler can ask for
RETRY_JITTER_DEFAULT: Final = 0.2  # the share of a pause that is random, so that failed deliveries spread
RELAY_CONCURRENCY_DEFAULT: Final = 8  # attempts of one relay at the same time; each may take a thread
RELAY_CONCURRENCY_MAX: Final = 64  # the largest setting, for which there are enough threads
ATTEMPT_S_DEFAULT: Final = 30.0  # seconds for one attempt (Standard Webhooks)
ATTEMPT_S_MAX: Final = 3600.0  # the largest setting; after a crash, the lease of a delivery lasts even longer
LEASE_MARGIN_S_DEFAULT: Final = 30.0  # seconds of a lease after the longest attempt, to store its result
LEASE_S_MAX: Final = 2 * ATTEMPT_S_MAX  # the largest setting
POLL_S_DEFAULT: Final = 1.0  # seconds between two checks for changes of other processes; a check is one read
POLL_S_MAX: Final = 3600.0  # the largest setting
RELAY_TROUBLE_S_MIN: Final = 1.0  # seconds until the next call of a feed that did not answer
PROBE_SHARE_DEFAULT: Final = 0.1  # the share of its down time after which a consumer that is down gets the next attempt
PROBE_S_MIN: Final = 5.0  # the shortest pause between attempts for a consumer that is down
PROBE_S_MAX: Final = 300.0  # the longest pause, so that a consumer that works again gets its events within minutes
DEAD_LETTERS_MAX: Final = 1000  # dead letters in one answer

# --- pulling events over HTTP ---
PULL_BODY_BYTES_MAX: Final = 16 * 1024  # the body of a request, which has a lease and an error
PULLED_DELIVERIES_DEFAULT: Final = 10  # deliveries of one claim
PULL_LEASE_S_DEFAULT: Final = 60  # the time to handle one claim
PULL_LEASE_S_MIN: Final = 10  # the shortest lease, longer than a claim may wait for a lock of the store
PULL_ERROR_CHARS_MAX: Final = 2000  # the length of an error in a request; the store keeps its beginning

# --- JSON ---
BODY_BYTES_MAX: Final = 64 * 1024  # a create request with the largest metadata needs a quarter of this size
JSON_DEPTH_MAX: Final = 32  # levels of a whole body, so that the parser stays below its recursion limit
JSON_BRACKETS_MAX: Final = 16 * 1024  # opening brackets in a body, even in strings; each array or object takes memory
ANSWER_VALUES_MAX: Final = 2048  # brackets and commas of another system's object, up to 3 us each; 64 rights have 800
JSON_NUMBER_CHARS_MAX: Final = 64  # the length of a number, because converting an integer takes quadratic time

# --- HTTP, RFC 9421, RFC 9651 ---
TARGET_CHARS_MAX: Final = 4096  # the length of path and query together
HEADERS_MAX: Final = 100  # fields in a request; each repeated field counts
HEADER_BYTES_MAX: Final = 16 * 1024  # the size of the value of one field, with all its lines together
HEADERS_BYTES_MAX: Final = 64 * 1024  # the size of all header names and values
SF_MEMBERS_MAX: Final = 32  # members of one dictionary, such as labels or digests
SIGNATURES_MAX: Final = 4  # signatures verified for one request, up to 0.6 ms each; a change of keys needs two
COMPONENTS_MAX: Final = 64  # covered components of one signature
COVERAGES_REMEMBERED_MAX: Final = 64  # cached component lists, one for each kind of request, which take at most 7 MB
SF_PARTS_MAX: Final = 128  # items, parameters and escapes of a structured field, 3 us each; usual fields have 20
SF_CHARS_MAX: Final = 2 * 1024  # characters of one structured field, 0.2 us each; usual fields have 400
SF_STRICT_CHARS_MAX: Final = 1024  # all fields of a message with ;sf or ;key, 0.1 us a character for each use
SF_STRING_BYTES_MAX: Final = 1024  # a field with one string; an idempotency key of escaped characters has 512
SF_PARAMETERS_MAX: Final = 16  # parameters of one member or item; RFC 9421 defines six
QUERY_PARAMETERS_MAX: Final = 32  # parameters of a query for @query-param, 6 us each; a client could send 2,000
KEY_ID_CHARS_MAX: Final = 256  # the length of `keyid` and `alg`; a URL or a hash fits
NONCE_CHARS_MAX: Final = 256  # the length of `nonce` and `tag`; a random nonce has about 22 characters

SIGNATURE_AGE_S_DEFAULT: Final = 300  # an age that is enough for slow networks and retries
CLOCK_SKEW_S_DEFAULT: Final = 60  # the time by which a client's clock may be ahead
SIGNATURE_AGE_S_MAX: Final = 24 * 3600  # the largest setting, because a longer window helps only replays
CLOCK_SKEW_S_MAX: Final = 3600  # the largest setting; a clock that is an hour off has a wrong time zone

# --- diagnoses of refused signatures, for the log ---
EXPLAIN_VERIFICATIONS_MAX: Final = 128  # trials of one diagnosis, which take at most 0.1 s; a signature needs about 80
EXPLAIN_CAUSES_MAX: Final = 6  # causes in one diagnosis, because a person reads only the first few
EXPLAIN_CHARS_MAX: Final = 8 * 1024  # the length of one diagnosis; an honest request needs about 1,000 characters
SECRET_PIECE_CHARS_MIN: Final = 8  # the shortest piece of a secret that errors and diagnoses hide
EXPLAIN_VALUE_CHARS_MAX: Final = 200  # the length of one value in a diagnosis, such as a target URI or a keyid
EXPLAINED_A_MINUTE_MAX: Final = 10  # diagnoses of one host; ten are enough to find a mistake, and cannot fill a log

# --- keys ---
RSA_BITS_MIN: Final = 2048  # the least size of RSA keys in NIST SP 800-131A
RSA_BITS_MAX: Final = 8192  # the cost of a verification grows with the square of the size
RSA_EXPONENT_MAX: Final = 2**32 - 1  # larger exponents only cost time
KEYS_REMEMBERED_MAX: Final = 4096  # cached valid Ed25519 keys of 32 bytes each, because a check takes 90 us
JWK_CHARS_MAX: Final = 8 * 1024  # the length of a JWK; the largest RSA key has about 1,400 characters

# --- GNAP ---
TOKEN_CHARS_MAX: Final = 4096  # structured tokens, such as JWTs, are long
CLIENT_KEYS_MAX: Final = 16  # the keys of one client, which needs two of them during a change of keys
ACCESS_RIGHTS_MAX: Final = 64  # access rights in one token
INTROSPECTION_BYTES_MAX: Final = 64 * 1024  # an introspection answer with that many rights has about 10 KB

# --- clients that reach other systems over HTTP ---
INTROSPECTION_S_DEFAULT: Final = 3.0  # seconds for one introspection with its retries; a client waits 10 s or longer
INTROSPECTION_S_MAX: Final = 30.0  # the largest setting; clients give up before that time
INTROSPECTION_CACHE_S_MAX: Final = 300.0  # the largest setting, because a revoked token stays usable for that long
INTROSPECTIONS_CACHED_DEFAULT: Final = 10_000  # cached answers, which usually take 1 KB each, and at most 7 KB
INTROSPECTION_CACHED_BYTES_MAX: Final = 4 * 1024  # enough for some 20 rights; more could fill the memory
ACTIVE_TOKENS_MAX: Final = 10_000  # tokens that may use the reserved connections; the digest of each takes 500 bytes
ACTIVE_TOKENS_OF_CLIENT_MAX: Final = 100  # those of one client, so that no client displaces all others
CLIENT_RETRIES_MAX: Final = 2  # retries after a failed connection; the server may have closed it, or may restart
CLIENT_RETRY_S_MAX: Final = 0.1  # the longest pause before the first retry, which doubles for each further retry
ANSWER_OVERHEAD_BYTES_MAX: Final = 64 * 1024  # an answer without its body: headers, interim responses, chunk sizes
ANSWER_LINES_MAX: Final = 8192  # lines of an answer: a key set has hundreds, and a chunk of one byte has two
ANSWER_PIECES_MAX: Final = 512  # pieces in which an answer arrives: with TLS, each takes 0.1 ms of processor time
INTERIM_RESPONSES_MAX: Final = 8  # interim responses before one answer; a server sends one or two, and each takes 3 us
LOOK_UPS_MAX: Final = 128  # simultaneous DNS look-ups of one client; each takes a thread, which needs 27 KB
LOOK_UPS_OF_DOMAIN_MAX: Final = 2  # look-ups for one parent domain when half of all are in use; its server may be slow
LOOK_UP_ADDRESSES_MAX: Final = 16  # addresses of one name; the DNS allows thousands, and a client tries each of them
REQUEST_SOCKETS_MAX: Final = 2  # addresses of one name to which an async client connects at the same time
CLIENT_CONNECTIONS_MAX: Final = 256  # connections of one async client; the process needs other descriptors too
BREAKER_FAILURES_MAX: Final = 5  # failures in a row after which a client stops sending; fewer may be a coincidence
BREAKER_OPEN_S_MIN: Final = 0.5  # the length of the first pause without requests
BREAKER_OPEN_S_MAX: Final = 8.0  # the longest pause; after an outage, the service may resume this much later

# --- documents of other services: key sets and wallet addresses ---
DOCUMENT_BYTES_MAX: Final = 64 * 1024  # a set of 16 RSA keys has about 10 KB
DOCUMENTS_MAX: Final = 1024  # documents in one cache, which take at most 40 MB, if all clients have the largest key set
MISSING_DOCUMENTS_MAX: Final = 256  # URLs in one cache without a document, because no fetch has found one
FETCHES_MAX: Final = 128  # simultaneous fetches of unknown key sets, at most 600 KB each with asyncio over TLS
FETCHES_OF_DOMAIN_MAX: Final = 2  # fetches from one parent domain when half of all are in use; its server may be slow
WALLET_FETCHES_MAX: Final = 32  # simultaneous fetches of unknown wallet addresses, which are from your own service
DOCUMENT_FETCH_S_DEFAULT: Final = 3.0  # seconds for one fetch, for which the client waits
DOCUMENT_AGE_S_DEFAULT: Final = 300.0  # seconds until a document is fetched again; a withdrawn key is valid that long
DOCUMENT_STALE_S_MAX: Final = 24 * 3600.0  # seconds for which a document stays in use after a failed fetch
DOCUMENT_COOL_DOWN_S_MIN: Final = 10.0  # the pause between two fetches of one document, after which a new key works

# --- webhooks ---
WEBHOOK_SECRETS_MAX: Final = 8  # secrets of one endpoint, which needs two of them during a change of secrets
WEBHOOK_SECRET_BYTES_MIN: Final = 24  # the least size of a secret (Standard Webhooks)
WEBHOOK_SECRET_BYTES_MAX: Final = 64  # the largest size of a secret (Standard Webhooks)
WEBHOOK_S_DEFAULT: Final = 20.0  # seconds for one attempt; Standard Webhooks recommends 15 to 30
WEBHOOK_S_MAX: Final = 30.0  # the largest setting, which a lease must exceed
WEBHOOK_MARGIN_S_MIN: Final = 5.0  # seconds of an attempt after the timeout of its request, which fails first
WEBHOOK_ANSWER_BYTES_MAX: Final = 64 * 1024  # the body of an answer, which has no meaning; an error page fits
WEBHOOK_RETRY_AFTER_S_MAX: Final = 3600.0  # the longest `Retry-After` that counts; a later notice is of no use
WEBHOOK_THROTTLE_S_MIN: Final = 30.0  # seconds until the next attempt after an answer that asks for fewer requests
WEBHOOK_CREDIT_DELAY_S_DEFAULT: Final = 1.0  # seconds for which a credit waits; else each packet would be a webhook
WEBHOOK_DOWN_S_DEFAULT: Final = 300.0  # seconds without success until an endpoint is down; a deployment is faster
WEBHOOK_DISABLE_S_DEFAULT: Final = 5 * 24 * 3600.0  # seconds without success until an endpoint is disabled

# --- approval and quotas ---
APPROVAL_S_DEFAULT: Final = 1.5  # seconds for one approval, as in Rafiki; a packet has some seconds left on arrival
APPROVAL_S_MAX: Final = 30.0  # the largest setting; a packet expires before that time
PORT_THREADS_MAX: Final = 64  # threads of one sync port; further calls wait, because each thread needs memory
REFUSAL_CHARS_MAX: Final = 1000  # the length of the host's message in a reply, for a few sentences; the rest is cut off
QUOTA_REQUESTS_MAX: Final = 1_000_000  # the largest quota of requests a minute; a larger quota would limit nothing
QUOTA_UNPAID_MAX: Final = 500  # the largest quota of unpaid payments, because a refused create may load all of them
QUOTA_CLIENTS_MAX: Final = 10_000  # clients in memory, which take 200 bytes each, and 100 bytes for each unpaid payment
QUOTA_RESERVED_S_MAX: Final = 60  # the time from the reservation for a payment to its insertion; a create is faster
QUOTA_RETRY_S_MAX: Final = 3600  # the longest `Retry-After`, because a payer may pay at any time
QUOTA_UNSENT_PERCENT_MAX: Final = 10  # the share of a quota that a process counts before it tells the other processes
QUOTA_COUNTS_SWEPT_MAX: Final = 2  # old counts removed for each new count; with two, they never accumulate

# --- flows ---
ERASED_PAYMENTS_MAX: Final = 100  # one transaction erases the metadata of so many; other writes wait some ms for it
SWEEP_PAYMENTS_MAX: Final = 500  # expired payments that one call handles
PORT_BLOCKS_S_MAX: Final = 0.1  # seconds for which a sync port may block an event loop without a warning
FLOW_STEPS_MAX: Final = 1000  # effects in one flow; a sweep needs one for each payment, and other flows about ten

# --- adapters and the server ---
BODY_START_S_MAX: Final = 3  # seconds until the first byte of the body, which include a round trip for 100 Continue
BODY_S_MAX: Final = 10  # seconds for a whole body to arrive; the largest body needs 52 kbit/s
FIELDS_READ_MAX: Final = 1000  # fields of one request, for `serve`: each takes 0.1 us, and a client could send 30,000
BODY_PARTS_MAX: Final = 8192  # chunks of one body, for `serve`: each takes 0.4 us, and a client could send 65,536
BACKLOG_CONNECTIONS_MAX: Final = 128  # connections that wait for the server, which accepts all in one iteration
KEEP_ALIVE_S_MAX: Final = 75  # seconds between two requests, longer than a proxy keeps an idle connection (nginx: 60)
PORT_MAX: Final = 65535  # the largest port of TCP
WORKERS_MAX: Final = 64  # processes of `serve`; more processes would only wait for the write lock of the database
SHUTDOWN_S_MAX: Final = 15  # seconds for the requests in flight when the server stops, for their bodies and commits
DRAIN_S_MAX: Final = 600  # seconds from SIGTERM to the end of the listeners; a proxy needs some to notice
TASKS_STOP_S_MAX: Final = 3  # seconds for webhooks in flight when the server stops, which is long for a receiver
WORKER_SILENT_S_MAX: Final = 15  # seconds without a heartbeat; a lock on the database may stop an event loop for 5 s
SWEEP_S_DEFAULT: Final = 15  # seconds between two sweeps; an empty sweep is some reads
SWEEP_S_MAX: Final = 3600  # the largest setting, because `expired` events come this much later
KEPT_S_MAX: Final = 100 * 366 * 24 * 3600  # the largest time for which metadata and deliveries are kept
DELIVERIES_KEPT_S_DEFAULT: Final = 30 * 24 * 3600  # a receiver finds a missing event within some weeks
HEADER_SECTION_BYTES_MAX: Final = 128 * 1024  # the size of unfinished headers; shorter headers get a typed refusal
PIPELINED_REQUESTS_MAX: Final = 100  # requests that wait for an earlier response on one connection; a proxy sends one
LOGGED_PATH_CHARS_MAX: Final = 200  # the length of a path in the access log; the path of a payment has about 60
CONFIGURATION_BYTES_MAX: Final = 16 * 1024 * 1024  # the size of a file of `serve`; 100,000 wallet addresses fit in it
LOGGED_A_MINUTE_MAX: Final = 10  # lines of one kind in a log; ten show a problem, and cannot fill the disk
SIGNED_BODY_BYTES_MAX: Final = 16 * 1024 * 1024  # the size of a body that `sign` reads, to test a server's limit
COMMAND_BODY_BYTES_MAX: Final = 24 * 1024  # the limit of Linux is 128 KiB, and quotes make a body five times as long

# --- stores ---
STORE_BATCH_MAX: Final = 256  # updates in one commit, which limits the time that an update waits for other updates
STORE_QUEUE_MAX: Final = 10_000  # the number of waiting updates at which the store refuses further updates
STORE_READERS_MAX: Final = 8  # connections that read, and threads that read for asyncio
STORE_SLICE_PAYMENTS_MAX: Final = 2_000  # payments of a list that one read passes over, which takes some milliseconds
STORE_SLOW_READ_S_MIN: Final = 0.001  # longer reads in the thread of an event loop count against the next two limits
STORE_SLOW_READS_SHARE_MAX: Final = 0.05  # the share of a loop's time for slow reads, which delay other requests
STORE_SLOW_READS_S_MAX: Final = 0.05  # seconds of slow reads in a row; a busy processor makes some reads slow, too
STORE_LOG_FRAMES_MAX: Final = 1_000  # pages in SQLite's log before a checkpoint, as in SQLite's own default
STORE_LOG_KEPT_BYTES_MAX: Final = 8 * 1024 * 1024  # the size to which SQLite shortens a log that it uses again
STORE_LOG_BYTES_MAX: Final = 32 * 1024 * 1024  # the size at which the writer waits for readers and empties the log
STORE_TRUNCATE_MS_MAX: Final = 250  # the time for which the writer waits for readers, while updates wait too
STORE_BUSY_S_MAX: Final = 5.0  # the time to wait for a lock that another process holds
STORE_CONNECTIONS_DEFAULT: Final = 8  # connections of one process to PostgreSQL; a commit waits, and uses no processor
STORE_CONNECTIONS_MAX: Final = 1_000  # connections of one process of `serve`; PostgreSQL allows 100 in all by default
STORE_STATEMENT_S_MAX: Final = 10.0  # seconds of one statement on PostgreSQL, and of a pause in a transaction
STORE_ANSWER_S_MAX: Final = 15.0  # seconds until PostgreSQL answers; only a wait for a standby takes longer
STORE_RETRY_S_MIN: Final = 0.005  # the longest first pause before a transaction is repeated, some round trips
STORE_RETRY_S_MAX: Final = 0.25  # the longest pause between two attempts, in which a server may restart
MIGRATION_S_MAX: Final = 600.0  # seconds that a migration waits for another one, or tries to get a lock on a table
AUDIT_SLICE_S_MAX: Final = 0.1  # the time of one read of an audit, for which the writer waits to empty the log
AUDIT_PAUSE_S_MIN: Final = 0.02  # the time between two reads of a live database, in which the writer empties the log
AUDIT_DIFFERENCES_MAX: Final = 1_000  # differences of an audit that are kept; the others are only counted
NONCES_DEFAULT: Final = 100_000  # 250 signed requests a second for the whole age limit; about 30 MB in memory
NONCES_SWEPT_MAX: Final = 2  # expired nonces removed for each new nonce; with two, they never accumulate
IDEMPOTENCY_KEYS_SWEPT_MAX: Final = 2  # expired keys removed for each new key; with two, they never accumulate

for _smaller, _larger, _why in (
    (METADATA_BYTES_DEFAULT, BODY_BYTES_MAX, "metadata is part of the body"),
    (METADATA_BYTES_DEFAULT, JSON_BRACKETS_MAX, "each byte of metadata may be a bracket"),
    (METADATA_DEPTH_DEFAULT, JSON_DEPTH_MAX, "metadata is part of the body"),
    (HEADER_BYTES_MAX, HEADERS_BYTES_MAX, "one field is part of all fields"),
    (TOKEN_CHARS_MAX, HEADER_BYTES_MAX, "the token must fit in a header field"),
    (PAGE_PAYMENTS_DEFAULT, PAGE_PAYMENTS_MAX, "the default page must be a valid page"),
    (SIGNATURES_MAX, SF_MEMBERS_MAX, "each signature is a member of a dictionary"),
    (COMPONENTS_MAX, SF_PARTS_MAX, "each component is a part of a field"),
    (EXPLAIN_VALUE_CHARS_MAX, EXPLAIN_CHARS_MAX, "a diagnosis contains its values"),
    (CLOCK_SKEW_S_DEFAULT, SIGNATURE_AGE_S_DEFAULT, "the age limit must allow for the skew"),
    (2 + 2 * IDEMPOTENCY_KEY_CHARS_MAX, SF_STRING_BYTES_MAX, "each character of a key may be escaped"),
    (IDEMPOTENCY_KEY_S_DEFAULT, IDEMPOTENCY_KEY_S_MAX, "the default time must be a valid setting"),
    (SIGNATURE_AGE_S_DEFAULT, SIGNATURE_AGE_S_MAX, "the default age must be a valid setting"),
    (CLOCK_SKEW_S_DEFAULT, CLOCK_SKEW_S_MAX, "the default skew must be a valid setting"),
    (RSA_BITS_MIN, RSA_BITS_MAX, "some RSA keys must be valid"),
    (RETRY_ATTEMPTS_DEFAULT, RETRY_ATTEMPTS_MAX, "the default number must be a valid setting"),
    (RETRY_FIRST_S_DEFAULT, RETRY_LONGEST_S_DEFAULT, "the first pause is not longer than the longest pause"),
    (RETRY_LONGEST_S_DEFAULT, RETRY_PAUSE_S_MAX, "the default pause must be a valid setting"),
    (RELAY_CONCURRENCY_DEFAULT, RELAY_CONCURRENCY_MAX, "the default number must be a valid setting"),
    (RELAY_CONCURRENCY_MAX, PORT_THREADS_MAX, "each attempt may need a thread"),
    (RELAY_CONCURRENCY_MAX, DELIVERIES_CLAIMED_MAX, "one claim must be able to fill a relay"),
    (ATTEMPT_S_MAX + LEASE_MARGIN_S_DEFAULT, LEASE_S_MAX, "a lease is longer than an attempt"),
    (POLL_S_DEFAULT, POLL_S_MAX, "the default time must be a valid setting"),
    (PROBE_S_MIN, PROBE_S_MAX, "the shortest pause must not be longer than the longest pause"),
    (PULLED_DELIVERIES_DEFAULT, DELIVERIES_CLAIMED_MAX, "the default number must be a valid one"),
    (PULL_LEASE_S_DEFAULT, LEASE_S_MAX, "the default time must be a valid one"),
    (STORE_BUSY_S_MAX, PULL_LEASE_S_MIN, "a new lease must not have ended"),
    (6 * PULL_ERROR_CHARS_MAX, PULL_BODY_BYTES_MAX, "each character of an error may be escaped"),
    (DELIVERY_ERROR_CHARS_MAX, PULL_ERROR_CHARS_MAX, "an error that the store keeps must be valid"),
    (1 + SWEEP_PAYMENTS_MAX, FLOW_STEPS_MAX, "a sweep needs one effect, and one more for each payment"),
    (QUOTA_UNPAID_MAX + 100, FLOW_STEPS_MAX, "a create may load each unpaid payment"),
    (APPROVAL_S_DEFAULT, APPROVAL_S_MAX, "the default bound must be a valid setting"),
    (COMMAND_BODY_BYTES_MAX, SIGNED_BODY_BYTES_MAX, "a body in a command must be small enough to sign"),
    (LOOK_UPS_OF_DOMAIN_MAX, LOOK_UPS_MAX // 2, "one domain must not take all look-ups"),
    (FETCHES_OF_DOMAIN_MAX, FETCHES_MAX // 2, "one domain must not take all fetches"),
    (FETCHES_MAX, CLIENT_CONNECTIONS_MAX, "each fetch needs a connection"),
    (1 + FETCHES_MAX, MISSING_DOCUMENTS_MAX, "one entry must have no fetch in flight, so that a cache can drop it"),
    (ACTIVE_TOKENS_OF_CLIENT_MAX, ACTIVE_TOKENS_MAX // 2, "one client must not take all places"),
    (INTROSPECTION_CACHED_BYTES_MAX, INTROSPECTION_BYTES_MAX, "the largest cached answer must be a valid answer"),
    (INTROSPECTION_S_DEFAULT, INTROSPECTION_S_MAX, "the default time must be a valid setting"),
    (WEBHOOK_S_DEFAULT, WEBHOOK_S_MAX, "the default time must be a valid setting"),
    (WEBHOOK_S_MAX + WEBHOOK_MARGIN_S_MIN, ATTEMPT_S_MAX, "the longest request must fit in an attempt"),
    (WEBHOOK_CREDIT_DELAY_S_DEFAULT, CREDIT_DELAY_S_MAX, "the default time must be a valid setting"),
    (WEBHOOK_DOWN_S_DEFAULT, WEBHOOK_DISABLE_S_DEFAULT, "an endpoint is down before it is disabled"),
    (WEBHOOK_DISABLE_S_DEFAULT, CONSUMER_DOWN_S_MAX, "the default time must be a valid setting"),
    (BREAKER_OPEN_S_MIN, BREAKER_OPEN_S_MAX, "the first pause must not be longer than the longest pause"),
    (BODY_START_S_MAX, BODY_S_MAX, "the first bytes are part of the body"),
    (BODY_S_MAX + STORE_BUSY_S_MAX, SHUTDOWN_S_MAX, "a request in flight must end before the server stops"),
    (STORE_BUSY_S_MAX, STORE_STATEMENT_S_MAX, "a statement may wait for a lock"),
    (STORE_STATEMENT_S_MAX, STORE_ANSWER_S_MAX, "the server ends a statement that takes too long itself"),
    (STORE_ANSWER_S_MAX, WORKER_SILENT_S_MAX, "a worker that waits for a standby is not hung"),
    (STORE_RETRY_S_MIN, STORE_RETRY_S_MAX, "the first pause must not be longer than the longest pause"),
    (STORE_BUSY_S_MAX, WORKER_SILENT_S_MAX, "a worker that waits for a lock is not hung"),
    (HEADERS_BYTES_MAX + TARGET_CHARS_MAX, HEADER_SECTION_BYTES_MAX, "a valid header section must fit"),
    (AUDIT_SLICE_S_MAX * 1000, STORE_TRUNCATE_MS_MAX, "the writer must outwait a read of an audit"),
    (STORE_BATCH_MAX, STORE_QUEUE_MAX, "a full batch must fit in the queue"),
    (STORE_LOG_KEPT_BYTES_MAX, STORE_LOG_BYTES_MAX, "SQLite must not keep a log that is too long"),
    (len(str(UINT64_MAX)), UINT64_DIGITS_MAX, "the largest amount must fit in the allowed digits"),
    (ILP_DATA_BYTES_MAX + ILP_ADDRESS_CHARS_MAX, ILP_PREPARE_BYTES_MAX, "a Prepare contains data and an address"),
    (STREAMS_ANSWERED_MAX, STREAM_FRAMES_MAX, "a reply is a packet with one frame per stream"),
    (SENDER_BACKOFF_S_MAX, SENDER_PATIENCE_S_DEFAULT, "the sender must retry before it gives up"),
):
    if _smaller > _larger:
        raise RuntimeError(f"limits.py: {_smaller} must not be more than {_larger}: {_why}")
