"""Core ML on a Mac."""
