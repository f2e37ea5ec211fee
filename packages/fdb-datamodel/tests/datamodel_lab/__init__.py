"""What the data model's tests share: a cluster in memory, the model, and the world that acts on both."""
