"""`python -m mainspring_tender`."""

from mainspring_tender.cli import main

main()
