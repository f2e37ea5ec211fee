"""`python -m mainspring_dashboard` is the command `mainspring-dashboard`."""

from mainspring_dashboard.cli import main

main()
