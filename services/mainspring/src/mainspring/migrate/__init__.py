"""Copying a cluster from one database to another: what `mainspring migrate` runs."""
