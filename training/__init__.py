"""Train the embedded voice. Run this in a clone, because it is not part of the wheel."""
