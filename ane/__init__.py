"""Tortoise text-to-speech for Apple Silicon, with a PyTorch reference backend.

>>> import ane
>>> speech = ane.load().speak("Hello.")
>>> speech.audio, speech.sample_rate
"""

from __future__ import annotations  # an old Python can then import the package, and say that it cannot run it

from pathlib import Path
from typing import TYPE_CHECKING

from ane.system.errors import UserError

if TYPE_CHECKING:       # torch takes a second to import
    from ane.speech.speaker import Speaker

__all__ = ["UserError", "__version__", "load"]


def __getattr__(name: str) -> str:
    """``__version__``, which is read from the installed package when it is asked for."""
    if name == "__version__":
        from ane.system.version import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load(bundle: str | Path | None = None, backend: str = "auto", precision: str = "auto",
         threads: int | None = None, keep: bool | None = None) -> Speaker:
    """Open a model on a backend; call ``speak`` on the result.

    The result is an ``ane.speech.Speaker`` of the model's family: of hibari for the default voice, else of Tortoise,
    FastSpeech, KittenTTS or Kokoro.

    Args:
        bundle: a bundle's name or directory; None: the default voice, "heart". Checkpoints are imported first,
            with `ane import`.
        backend: "auto", or a backend and device such as "torch:cuda".
        precision: "auto", "fp32", "bf16" or "fp16"; others depend on the backend (``ane.backends.load_backend``).
        threads: CPU threads of the whole process; None: the backend's choice.
        keep: keep networks loaded between requests. None: on accelerators, where loading is slow, and FastSpeech's; on
            the CPU those of the others are memory-mapped, and releasing them halves the peak memory.

    Raises:
        UserError: no such model, a damaged one, or a backend that this machine lacks.
    """
    from ane.backends import load_backend
    from ane.bundles import open_model

    model = open_model(bundle)
    return model.family.synthesizer(model, load_backend(backend, model, precision, threads, keep))
