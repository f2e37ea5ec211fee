"""A whole cluster on this machine, supervised: what `mainspring up` runs."""
