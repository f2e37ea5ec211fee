"""What a tender does beside pushing: it prunes, compares heap and sysdb, forgets; and how a shard's faults stay its own. Above `heap`."""
