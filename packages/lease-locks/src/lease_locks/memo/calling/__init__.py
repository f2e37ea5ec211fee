"""How a function is called through a runner: with which arguments, which of them count and what else does, and in the background."""
