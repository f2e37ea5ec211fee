"""The official Python binding over the engine, in the place of its C library. Imports `transaction` and what is below it."""
