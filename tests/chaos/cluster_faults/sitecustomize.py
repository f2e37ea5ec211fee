"""In every process of a run whose FoundationDB client injects faults: Mainspring's own idempotency ids instead of the native ones.

One fault that the client injects no cluster has: 1021 before the commit has a read version. With native ids it then looks
for the id from version 0 and gives up with 1022, upon which a process may only stop.
"""

from idempotent_txn.ids import native

native.is_offered = lambda db: False
