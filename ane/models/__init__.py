"""Speech models. Each folder is one model: its text front end, its steps, its networks and the stages it declares."""
