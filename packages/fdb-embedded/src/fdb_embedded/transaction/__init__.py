"""A transaction and its handle, as the C client has them: reads, writes, options, special keys. Imports `engine` and what is below it."""
