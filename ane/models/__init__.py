"""Define the speech models: a folder per family, with its text front end, networks, stages and speaker."""
