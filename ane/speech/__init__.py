"""Speak with any model: requests, chunks, shared decoder lanes, and the stream of sound that comes out."""
