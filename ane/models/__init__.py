"""Speech models, one folder per model: its text front end, its steps, its networks and the stages it declares."""
