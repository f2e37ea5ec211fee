"""What becomes of a future: where it waits, how attempts begin, are charged and end, which copies of its result there are. Above `rows`."""
