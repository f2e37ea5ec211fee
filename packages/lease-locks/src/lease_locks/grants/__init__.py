"""Grants in the database: their rows, how they begin, are joined, judged and ended. Functions of a transaction; none opens one."""
