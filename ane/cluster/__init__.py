"""Speech on a Ray cluster: ``speak_many`` for texts, ``ane.cluster.narration`` for the jobs of `ane read`."""

from ane.cluster.narration import speak_many

__all__ = ["speak_many"]
