"""FoundationDB transactions that are safe to retry: no caller ever sees commit_unknown_result."""
