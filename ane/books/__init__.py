"""Narrate long texts: read documents as chapters, speak them in a job that can resume, and write sound files."""
