"""What commands and services share: settings, logs, help, tables, metrics, traces, processes. No schema here; nothing of the
schema imports it, only `fdb_schema.cli` does."""
