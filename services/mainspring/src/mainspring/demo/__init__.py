"""Demonstrations on real input: what `mainspring demo` runs."""
