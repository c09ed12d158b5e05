"""Record what the Python runtime computes for two sentences, for the tests of the Swift package.

The Python runtime speaks the sentences with the interpreter of Core ML packages. For every call of a package's
function, this module records the outputs and fingerprints of the inputs. In the tests, the Swift runtime gets the
recorded outputs instead of Core ML's. The tests compare the inputs of every call, the codes and the sound.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ane.audio.trimming import trimmed
from ane.backends.mil.interpreter import MilRuntime
from ane.backends.packaged.backend import PackagedBackend
from ane.backends.packaged.functions import LoadedFunction
from ane.backends.packaged.selection import select_packages
from ane.backends.torch.backend import TorchBackend
from ane.bundles.bundle import Bundle
from ane.models.tortoise.chunks import split_into_chunks
from ane.models.tortoise.decoding import Embeddings, Prompt, make_lanes
from ane.models.tortoise.sampling import InverseCdfSampler, Randomness
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.vocoding import hifigan_sound
from ane.voices import Voice

DECODER, VOCODER = "autoregressive", "hifigan"
SEED = 1
MULTIPLIER, INCREMENT = 1_664_525, 1_013_904_223  # constants of a linear congruential generator (Numerical Recipes)
# sentence → most codes to draw. The second sentence has a long prefix, so that its steps need a larger kv-cache
SENTENCES = {
    "The door stood open.": 40,
    "Nobody had heard the old clock on the stairs, since the house had stood empty for so long.": 12,
}
SEEDS = (0, 1, 12345, 2**32 + 7, 2**64 - 1)
# Texts that the Swift package reads exactly as `ane say` does. They have no abbreviation, date, amount or word in
# capital letters, because the Swift package does not spell these out
TEXTS = (
    *SENTENCES,
    "“Hello,” she said — it’s late; isn't it?",
    "Wait... what?!  The café was\nclosed (as always), and so we left.",
    "The lamp was out, and the old door at the end of the long hall stood wide open, which nobody had expected, since "
    "the wind had been quiet for hours and the keys were still on the table. She listened. Nothing moved! After a "
    "while she took the lamp, lit it again with the last match, and went down the stairs to see who had come in so "
    "late at night, and why.",
)


class RecordingRuntime(MilRuntime):
    """The interpreter of Core ML packages, with a record of each call.

    Args:
        networks: For each package's path, the name of its network.
        narrow: Whether to round outputs to fp16, as Core ML does for a package that computes in fp16.
    """

    def __init__(self, networks: Mapping[Path, str], narrow: bool):
        super().__init__()
        self.networks, self.narrow = networks, narrow
        self.calls: list[dict[str, Any]] = []
        self.outputs: dict[str, np.ndarray] = {}

    def load(self, package: Path, function: str, compute_units: str) -> "FunctionRecorder":
        return FunctionRecorder(self, self.networks[package], function, super().load(package, function, compute_units))


class FunctionRecorder:
    def __init__(self, runtime: RecordingRuntime, network: str, name: str, function: LoadedFunction):
        self.runtime, self.network, self.name, self.function = runtime, network, name, function

    def predict(self, inputs: Mapping[str, np.ndarray], state: Any = None) -> dict[str, np.ndarray]:
        outputs = self.function.predict(inputs, state)
        if self.runtime.narrow:
            outputs = {name: array.astype(np.float16).astype(np.float32) for name, array in outputs.items()}
        named = {name: f"call{len(self.runtime.calls)}/{name}" for name in outputs}
        self.runtime.calls.append(
            {
                "network": self.network,
                "function": self.name,
                "outputs": named,
                "inputs": {name: fingerprint(array) for name, array in inputs.items()},
            }
        )
        self.runtime.outputs.update((named[name], array.copy()) for name, array in outputs.items())
        return outputs


def golden_vectors(
    bundle: Bundle, precision: str, voice_name: str, voice: Voice, settings: TortoiseSettings
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Record all sentences and texts. Return the content of golden.json, and the arrays to which it refers."""
    replays: list = []
    arrays: dict = {}
    for index, (text, codes) in enumerate(SENTENCES.items()):
        replay, recorded = recorded_sentence(bundle, precision, voice, settings, text, codes)
        names = {name: f"replay{index}/{name}" for name in recorded}
        arrays |= {names[name]: array for name, array in recorded.items()}
        for call in replay["calls"]:
            call["outputs"] = {output: names[name] for output, name in call["outputs"].items()}
        replays.append(replay | {"voice": voice_name, "sound": names["sound"]})
    texts = []
    for text in TEXTS:
        chunks = split_into_chunks(text, bundle, settings)
        texts.append(
            {
                "text": text,
                "chunks": [chunk.text for chunk in chunks],
                "tokens": [chunk.tokens[:-1] for chunk in chunks],
            }
        )  # the stop token is added later
    uniforms = [
        {"seed": seed, "chunk": chunk, "values": Randomness(seed).candidate(chunk, 0).random(4).tolist()}
        for chunk, seed in enumerate(SEEDS)
    ]
    return {"texts": texts, "uniforms": uniforms, "replays": replays}, arrays


def recorded_sentence(
    bundle: Bundle, precision: str, voice: Voice, settings: TortoiseSettings, text: str, codes: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Speak one sentence with at most ``codes`` codes, and record every call.

    Returns:
        The description of the sentence for golden.json, and the outputs of the calls and the sound, by name.
    """
    backend = recording_backend(bundle, precision)
    [chunk, *_] = split_into_chunks(text, bundle, settings)
    sampling = replace(settings.sampling, max_codes=min(settings.sampling.max_codes, codes))
    config, sampler = bundle.config(DECODER), InverseCdfSampler(Randomness(SEED).candidate(0, 0))
    prompt = Prompt(
        voice.ar, chunk.tokens, [sampler], Embeddings(**backend.embeddings()), config, sampling, rewrite_tail=False
    )
    lanes = make_lanes(backend, config, 1, sampling.max_codes, 1, len(prompt.prefix()))
    [candidate] = lanes.submit(prompt).all()
    sound = trimmed(hifigan_sound(backend, voice.ar, candidate.hidden), settings.silence)
    replay = {
        "text": chunk.text,
        "seed": SEED,
        "maxCodes": sampling.max_codes,
        "codes": candidate.codes,
        "calls": backend.runtime.calls,  # type: ignore[attr-defined]
    }
    return replay, backend.runtime.outputs | {"sound": sound}  # type: ignore[attr-defined]


def recording_backend(bundle: Bundle, precision: str) -> PackagedBackend:
    """Create a backend that runs the packages on a ``RecordingRuntime``.

    The functions get float32 inputs even if a package computes in fp16, because the Swift runtime passes float32.
    """
    packages = select_packages(bundle, precision)
    networks = {bundle.path / packages[network].path: network for network in (DECODER, VOCODER)}
    runtime = RecordingRuntime(networks, packages[DECODER].precision != "fp32")
    backend = PackagedBackend(bundle, runtime, TorchBackend(bundle, "cpu"), precision, cache="io")
    backend.packages[DECODER] = replace(backend.packages[DECODER], precision="fp32")
    return backend


def fingerprint(array: np.ndarray) -> dict[str, Any]:
    """Summarise an array by its shape, its norm, and its dot product with fixed pseudo-random numbers (−0.5 to 0.5)."""
    values = np.asarray(array, np.float64).ravel()
    powers = np.cumprod(np.full(len(values), MULTIPLIER, np.uint32), dtype=np.uint32)
    sums = np.concatenate((np.ones(1, np.uint32), powers[:-1])).cumsum(dtype=np.uint32)
    weights = (powers + np.uint32(INCREMENT) * sums) / 2**32 - 0.5  # the numbers that the generator makes from seed 1
    return {"shape": list(array.shape), "norm": float(np.linalg.norm(values)), "product": float(values @ weights)}
