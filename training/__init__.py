"""Train the voices that the package contains. This works only in a clone, because it is not part of the wheel."""
