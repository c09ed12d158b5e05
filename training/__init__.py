"""Training of the embedded voice. Run it in a clone: it is not part of the wheel."""
