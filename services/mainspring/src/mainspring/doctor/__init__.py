"""What can be wrong with a cluster, how it is seen, and what to do: what `mainspring doctor` runs."""
