"""Compare the decoder on MLX with torch, once on each machine, because a CPU cannot show faults of Metal's kernels."""

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

PREFIX, LANES, STEPS = 9, 9, 3  # 9 lanes, because kernels for more than 8 rows differ, and were wrong once (mlx#3585)


class ProvenDecoders:
    """Remembers which decoders returned the same values as the reference, in one file of the cache for each decoder.

    The file is named after the model's identity, the precision, the device, and the versions of MLX and of the system.
    """

    def __init__(self, identity: str, precision: MlxPrecision):
        self.identity, self.precision = identity, precision

    def prove(self, network: MlxGPT, reference: Backend) -> None:
        """Compare the network with ``reference``, unless that was done before.

        It compares hidden states and logits of a prefill and of steps.

        Raises:
            UserError: The signal-to-noise ratio is below the precision's ``worst``.
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
                f"MLX's decoder in {self.precision.name} has {lowest:.1f} dB to torch's on this machine "
                f"({self.precision.worst:g} are needed): use the backend torch, and report this with the "
                "output of `ane doctor`"
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
    """Return hidden states and logits of a prefill, and of steps with seeded columns."""
    random = np.random.default_rng(0)
    answers = [*decoder.prefill(random.standard_normal((PREFIX, width), np.float32))]
    for step in range(STEPS):
        columns = random.standard_normal((LANES, 1, width), np.float32)
        answers += decoder.step(columns, np.full(LANES, step, np.int64))
    return answers
