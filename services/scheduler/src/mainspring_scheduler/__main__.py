"""`python -m mainspring_scheduler`."""

from mainspring_scheduler.cli import main

main()
