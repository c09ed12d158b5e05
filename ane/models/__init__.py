"""Speech models, with a folder for each family: its text front end, networks, stages (network calls) and speaker."""
