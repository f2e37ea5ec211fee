"""`python -m mainspring_worker`."""

from mainspring_worker.cli import main

main()
