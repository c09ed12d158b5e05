"""Engines that run the stages. `load_backend` turns the text of ``--backend`` into one."""

import os
from typing import TYPE_CHECKING

from ane.errors import UserError

if TYPE_CHECKING:
    from ane.model import Model
    from ane.stages import Backend

NAMES = ("auto", "torch", "torch:cpu", "torch:cuda", "torch:mps")


def load_backend(spec: str, model: "Model", precision: str = "auto", threads: int | None = None,
                 keep: bool | None = None) -> "Backend":
    """An engine over the networks of ``model``.

    Args:
        spec: one of ``NAMES``; "auto" and "torch" take the best device there is.
        precision: what to compute in: "auto", "fp32", "bf16" or "fp16".
        threads: CPU threads of the whole process (None: the engine's own choice).
        keep: keep networks that a step has released (None: off the CPU only).

    Raises:
        UserError: unknown backend, a device or precision that this machine lacks, more threads than it has cores.
    """
    engine, _, device = spec.partition(":")
    if engine not in ("auto", "torch") or (engine == "auto" and device):
        raise UserError(f"no backend is named {spec!r}; there are {', '.join(NAMES)}")
    cores = os.cpu_count() or 1
    if threads is not None and threads > cores:
        raise UserError(f"--threads {threads}: this machine has {cores} cores; more threads only wait")
    from ane.backends.pytorch import TorchBackend

    return TorchBackend(model, device or "auto", precision, threads, keep)
