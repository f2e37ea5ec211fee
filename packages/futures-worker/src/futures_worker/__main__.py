"""`python -m futures_worker` is the command `futures-worker`."""

from futures_worker.cli import main

if __name__ == "__main__":
    main()
