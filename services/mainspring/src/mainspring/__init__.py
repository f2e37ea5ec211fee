"""Mainspring's services composed into one command; each service is thin, what it does is in the packages."""
