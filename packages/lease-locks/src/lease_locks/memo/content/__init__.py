"""By what functions, classes and objects of others' libraries are told: the same in every process, whatever was made or kept since."""
