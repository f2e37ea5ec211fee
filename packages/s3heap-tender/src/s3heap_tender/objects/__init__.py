"""The heap's objects in a store: names, contents, the writer that keeps them in order. Above `rows` and `stores`."""
