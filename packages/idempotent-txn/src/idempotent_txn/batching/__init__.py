"""Several bodies in one commit, by recording what each does. Nothing else of the package imports it."""
