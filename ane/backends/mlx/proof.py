"""Compare the decoder on MLX with the decoder on torch, once on each machine.

Our tests run MLX on CPUs, so they cannot find faults in its kernels for Apple's GPU.
"""

import hashlib
import importlib.metadata
import platform
from pathlib import Path

import numpy as np

from ane.backends.base import Backend
from ane.backends.decoding import Decoder
from ane.backends.mlx.decoder import MlxDecoder
from ane.backends.mlx.gpt import MlxGPT
from ane.backends.mlx.layers import MlxPrecision
from ane.backends.mlx.owner import device_name
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from ane.system.paths import cache_dir

# 9 positions in the prefix, 9 lanes, 3 steps; MLX has special kernels for more than 8 rows, which had a fault
# (mlx#3585)
PREFIX, LANES, STEPS = 9, 9, 3


class ProvenDecoders:
    """Remembers which decoders have passed the comparison, with one cache file per decoder.

    The name of the file depends on the model's identity, the precision, the device, and the versions of MLX and the
    operating system.
    """

    def __init__(self, identity: str, precision: MlxPrecision):
        self.identity, self.precision = identity, precision

    def prove(self, network: MlxGPT, reference: Backend) -> None:
        """Compare the network's outputs with the outputs of ``reference``, unless the network has passed before.

        The outputs are the hidden states and logits from a prefill and a few steps.

        Raises:
            UserError: The signal-to-noise ratio is less than ``MlxPrecision.worst``.
        """
        file = self._file()
        if file.is_file():
            return
        shape = network.shape
        actual = _answers(MlxDecoder(network, LANES, 2 * STEPS, 1, PREFIX), shape.width)
        expected = _answers(reference.decoder(LANES, 2 * STEPS, 1, PREFIX), shape.width)
        lowest = min(snr_db(one, other) for one, other in zip(expected, actual, strict=True))
        if not lowest >= self.precision.worst:
            raise UserError(
                f"MLX's decoder in {self.precision.name} differs too much from torch's on this machine "
                f"({lowest:.1f} dB, and {self.precision.worst:g} dB is needed): use the backend torch, and report "
                "this with the output of `ane doctor`"
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{lowest:.2f} dB\n", encoding="utf-8")

    def _file(self) -> Path:
        parts = (
            self.identity,
            self.precision.name,
            device_name(),
            importlib.metadata.version("mlx"),
            platform.platform(),
        )
        return cache_dir() / "mlx" / hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _answers(decoder: Decoder, width: int) -> list[np.ndarray]:
    """Run a prefill and ``STEPS`` steps on random inputs with a fixed seed. Return all hidden states and logits."""
    random = np.random.default_rng(0)
    answers = [*decoder.prefill(random.standard_normal((PREFIX, width), np.float32))]
    for step in range(STEPS):
        columns = random.standard_normal((LANES, 1, width), np.float32)
        answers += decoder.step(columns, np.full(LANES, step, np.int64))
    return answers
