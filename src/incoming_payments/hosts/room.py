"""How many connections a server can have, with the file descriptors of its process."""

from incoming_payments.limits import BACKLOG_CONNECTIONS_MAX, CONNECTIONS_MAX


def room() -> tuple[int, int]:
    """How many connections may be open, and how many more may wait to be accepted.

    Half of the descriptors are for connections. As many as wait may be accepted in one turn of the event loop, and
    those that are too many are closed three turns later: a quarter is for them. The last quarter is for the store.
    """
    try:
        import resource
    except ImportError:  # Windows: no such limit
        return CONNECTIONS_MAX, BACKLOG_CONNECTIONS_MAX
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX, BACKLOG_CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, descriptors // 2), min(BACKLOG_CONNECTIONS_MAX, max(1, descriptors // 16))
