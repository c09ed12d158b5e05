"""Tortoise text-to-speech for Apple Silicon, with a PyTorch reference backend.

>>> import ane
>>> speech = ane.load().speak("Hello.")
>>> speech.audio, speech.sample_rate
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.models.tortoise.synthesizer import Synthesizer

__all__ = ["UserError", "load"]


def load(bundle_or_checkpoints: str | Path | None = None, backend: str = "auto", precision: str = "auto",
         threads: int | None = None, keep: bool | None = None) -> "Synthesizer":
    """Open a model on a backend; call ``speak`` on the result.

    Args:
        bundle_or_checkpoints: a bundle's name or directory, or a directory of official .pth files; None: the demo
            model.
        backend: "auto", or a backend and device such as "torch:cuda".
        precision: "auto", "fp32", "bf16" or "fp16"; others depend on the backend (``ane.backends.load_backend``).
        threads: CPU threads of the whole process; None: the backend's choice.
        keep: keep networks loaded between requests. None: only on accelerators, where loading is slow; on the CPU
            they are memory-mapped, and releasing them halves the peak memory.

    Raises:
        UserError: no such model, a damaged one, or a backend that this machine lacks.
    """
    from ane.backends import load_backend
    from ane.bundles import open_model
    from ane.models.tortoise.synthesizer import Synthesizer

    path = Path(os.path.expanduser(bundle_or_checkpoints)) if bundle_or_checkpoints is not None else None
    checkpoints = (path is not None and os.path.isdir(path) and not os.path.exists(path / "bundle.json")
                   and any(path.glob("*.pth")))
    model = open_model(checkpoints=path) if checkpoints else open_model(bundle=bundle_or_checkpoints)
    return Synthesizer(model, load_backend(backend, model, precision, threads, keep))
