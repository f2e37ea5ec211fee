"""What the dashboard samples once a second while it runs, and keeps for its curves."""
