"""How a claim becomes a lease: steps that say nothing of how they are waited for, and who runs them, threads or event loops."""
