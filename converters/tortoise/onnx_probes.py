"""Test inputs for Tortoise's ONNX graphs: the probes of ``converters.tortoise.probes``, and those of ONNX alone.

ONNX graphs take any length; each is probed with another length than it was traced with.
"""

from collections.abc import Mapping

import numpy as np

from ane.backends.base import Backend
from ane.backends.onnx.backend import OnnxBackend
from ane.bundles import Model
from ane.models.tortoise.embeddings import Embeddings
from converters.models import Probe
from converters.tortoise import probes

# kind → the lengths it is probed with; the inputs are a little shorter
LENGTHS: dict[str, dict[str, int]] = {
    "prefill": {"columns": 40}, "step": {"columns": 3, "slots": 64}, "step_prefixes": {"lanes": 4},
    "condition": {"latents": 17}, "denoise": {"frames": 67, "batch": 2},
    "clvp_text": {"positions": 33}, "clvp_speech": {"positions": 40}, "cvvp_speech": {"positions": 40},
    "ar_conditioning": {"frames": 97}, "diffusion_conditioning": {"frames": 101}, "cvvp_clip": {"frames": 90},
    "univnet": {"frames": 19}, "hifigan": {"frames": 30}, "classifier": {"samples": 8000},
}


def step_prefixes(backend: Backend, model: Model, lengths: Mapping[str, int],
                rng: np.random.Generator) -> list[np.ndarray]:
    """Lanes at different positions, with prefixes of different lengths; one lane changes to another prefix.

    On the torch backend, each lane is a separate decoder.
    """
    lanes = lengths["lanes"]
    starts = [probes.prefix(backend, model, length, rng) for length in (9, 14)]
    codes = Embeddings(**backend.embeddings()).code
    length, prefix = np.arange(lanes) % 3, np.arange(lanes) % 2
    before = codes[rng.integers(0, len(codes), (lanes, 2))]
    columns = codes[rng.integers(0, len(codes), (2, lanes, 1))]
    if isinstance(backend, OnnxBackend):
        decoder = backend.decoder(lanes, 8, len(starts), max(map(len, starts)))
        for number, start in enumerate(starts):
            decoder.prefill(start, number)
        decoder.step(before, np.zeros(lanes, dtype=np.int64), 0, prefix)
        outputs = list(decoder.step(columns[0], length, 0, prefix))
        prefix[0], length[0] = 1, 0
        return outputs + list(decoder.step(columns[1], length, 0, prefix))
    single = [_single_lane(backend, starts, int(prefix[lane]), before[lane], columns[:, lane], int(length[lane]),
                           lane == 0) for lane in range(lanes)]
    return [np.concatenate(part) for part in zip(*single, strict=True)]


def _single_lane(backend: Backend, starts: list[np.ndarray], prefix: int, before: np.ndarray, columns: np.ndarray,
                 length: int, moved: bool) -> list[np.ndarray]:
    """What ``step_prefixes`` does with one lane; ``moved``: it changes to the second prefix after the first step."""
    decoder = backend.decoder(1, 8)
    decoder.prefill(starts[prefix])
    position = np.array([length])
    decoder.step(before[None], np.zeros(1, dtype=np.int64))
    outputs = list(decoder.step(columns[0][None], position))
    if moved:
        decoder = backend.decoder(1, 8)
        decoder.prefill(starts[1])
        position = np.zeros(1, dtype=np.int64)
    return outputs + list(decoder.step(columns[1][None], position))


def cvvp_speech(backend: Backend, model: Model, lengths: Mapping[str, int],
                rng: np.random.Generator) -> list[np.ndarray]:
    count = model.config("cvvp").mel_codes
    return [backend.run("cvvp_speech", codes=rng.integers(0, count, (1, lengths["positions"])))]


PROBES: dict[str, Probe] = probes.PROBES | {
    "step_prefixes": step_prefixes,
    "cvvp_speech": cvvp_speech,
    "cvvp_clip": probes.stage_probe("cvvp_clip", mel=lambda model, lengths: (1, 80, lengths["frames"])),
    "classifier": probes.stage_probe("classifier", audio=lambda model, lengths: (1, 1, lengths["samples"])),
}
