"""The transitions: functions over one transaction `tr`, each naming its row of `states.TRANSITIONS`.

They commit nothing and retry nothing: callers run them through `idempotent_txn.run` and may compose several, and
writes of their own, in one transaction. Each is safe to run again after a commit whose outcome isn't known.
"""
