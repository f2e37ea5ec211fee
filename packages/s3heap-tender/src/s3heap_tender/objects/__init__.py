"""The heap's objects in a store: names, contents, the writer that keeps them in order, what leaves them. Above `stores` and the sysdb."""
