"""The worker process: a pure core, child processes that run user code, and a thin shell around both."""
