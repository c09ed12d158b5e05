"""Speak on the machines of a Ray cluster.

``speak_many`` speaks many texts. ``ane.cluster.narration`` also speaks the jobs (books) of `ane read`.
"""

from ane.cluster.narration import speak_many

__all__ = ["speak_many"]
