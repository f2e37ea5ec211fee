"""One attempt of a transaction: what its error means, when the next begins, what is known of its end. The ground of the package."""
