"""Speech on a Ray cluster: ``speak_many`` for texts, ``narrate_on_ray`` for the jobs of `ane read`."""

from ane.cluster.speaking import speak_many

__all__ = ["speak_many"]
