"""What a cluster of FoundationDB must bear for a load: `mainspring size`."""
