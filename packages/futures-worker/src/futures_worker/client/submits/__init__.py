"""From a call to a future of it: where it runs, what it is given, the batch that it goes with."""
