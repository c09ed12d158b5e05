"""`ane serve`: one process whose models many programs speak through (the extra ``server``)."""
