"""Narration of long text: documents to chapters, to a job that can be interrupted, to audio files."""
