"""Every key that this package writes, as key → value lines.

`P` is `\\x15\\x00idmp/`. Its first bytes are no packed tuple and no prefix that the directory layer hands out, so they
collide with nobody's keys. Whoever clears it loses the outcome of transactions in flight.

    P l client(8) lane(2, BE)     → seq(8, LE) incarnation(8) [versionstamp(10)]       the lane's last commit
    P c client(8)                 → incarnation(8) versionstamp(10)                    the client lives, as of that version
    P s id                        → nothing: the key is only in conflict ranges        attempts with one id exclude each other
    P i version(8, BE) index(2)   → rows of the strategy `ids` (`idempotent_txn.ids.rows`)
    P x                           → version(8, LE): ids of commits up to here may be gone (strategy `ids`)
    P e id                        → nothing: an explicit id's row may go (strategy `ids`)

Ids of the strategy `native` are FoundationDB's own: `\\xff\\x02/idmp/…`, `\\xff\\x02/idmpExpiredVersion`, and the conflict
key `\\xff/SC/` + id.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = b"\x15\x00idmp/"
LANES: Final = PREFIX + b"l"
CLIENTS: Final = PREFIX + b"c"
CONFLICTS: Final = PREFIX + b"s"
ROWS: Final = PREFIX + b"i"
EXPIRED_VERSION: Final = PREFIX + b"x"

NATIVE_ROWS: Final = b"\xff\x02/idmp/"
NATIVE_ROWS_END: Final = b"\xff\x02/idmp0"
NATIVE_EXPIRED_VERSION: Final = b"\xff\x02/idmpExpiredVersion"
NATIVE_CONFLICTS: Final = b"\xff/SC/"
