"""Move the payments of a SQLite database to PostgreSQL. This package needs `incoming-payments[postgres]`.

1. A mark in the file makes every process refuse to write to it, so its rows do not change any more.
2. The rows are copied in batches. Each batch is one transaction, which also stores the place up to which rows are
   copied. So a copy that was killed continues at this place. While a copy is incomplete, no store opens the target.
3. All rows of both sides are compared.
4. The mark in the file says that the move is complete. From now on, there is no way back.
5. The target is opened for stores.
"""

from incoming_payments.copying._compare import Difference, compare
from incoming_payments.copying.copy import CopyProgress, CopyReport, abandon_copy, copy_to_postgres

__all__ = ["CopyProgress", "CopyReport", "Difference", "abandon_copy", "compare", "copy_to_postgres"]
