"""`python -m mainspring_janitor`."""

from mainspring_janitor.cli import main

main()
