"""Graphs of the vocoders that several models share."""
