"""Speak on a Ray cluster: ``speak_many`` speaks texts, ``ane.cluster.narration`` speaks the jobs of `ane read`."""

from ane.cluster.narration import speak_many

__all__ = ["speak_many"]
