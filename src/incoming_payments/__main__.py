"""Run the command `incoming-payments` by `python -m incoming_payments`."""

import sys

from incoming_payments.server.command import main

if __name__ == "__main__":
    sys.exit(main())
