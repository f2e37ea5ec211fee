"""`python -m s3heap_tender` is the command."""

from s3heap_tender.cli import main

main()
