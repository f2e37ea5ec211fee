"""What is stored of invocations, apart from where: their addresses, records, and the payloads that are too large for a row."""
