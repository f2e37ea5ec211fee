"""`python -m lease_locks.memo`: the remote's side of an invocation, as Shells start it."""

import sys

from lease_locks.memo.remote import main

if __name__ == "__main__":
    sys.exit(main(own_process=True))
