"""Call Whisper's packages with test inputs, by one probe for each kind of function.

See ``converters.function_table.Probe``.
"""

from collections.abc import Mapping

import numpy as np

from ane.backends.base import Backend
from ane.bundles import Bundle

PREFIX = 5  # tokens of the prefixes of step probes


def encoder(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Return the states of a random spectrogram."""
    config = model.config("encoder")
    mel = rng.standard_normal((1, config.n_mels, 2 * config.n_audio_ctx), dtype=np.float32)
    return [backend.run("encoder", mel=0.5 * mel)]


def memory(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Return the outputs of a short prefix with two memories in turn."""
    decoder = backend.decoder(1, 1)
    outputs: list[np.ndarray] = []
    for _ in range(2):
        decoder.set_memory(window_states(model, rng))
        outputs += decoder.prefill(random_columns(backend, rng, 1, PREFIX)[0])
    return outputs


def prefill(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Decode prefixes that nearly fill the bucket, and a step after one of these prefixes. Return all outputs."""
    decoder = backend.decoder(1, 1)
    outputs: list[np.ndarray] = []
    decoder.set_memory(window_states(model, rng))
    for missing in (5, 3, 2, 9):
        length = min(bucket["columns"] - missing, model.config("decoder").n_text_ctx // 2 + 1)
        outputs += decoder.prefill(random_columns(backend, rng, 1, length)[0])
        if missing == 2:  # not after the last prefix, because `ane verify --layers` looks into the last call
            outputs += decoder.step(random_columns(backend, rng, 1, 1, length), np.zeros(1, dtype=np.int64))
    return outputs


def step(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Run lanes of up to two windows, one of which restarts, then several positions at once on one lane."""
    lanes, tail = min(bucket["columns"], (bucket["slots"] - 2 * PREFIX) // 6), 3
    windows = min(lanes, bucket.get("windows", 2))
    decoder = backend.decoder(lanes, 6, windows, PREFIX)
    outputs: list[np.ndarray] = []
    for window in range(windows):
        decoder.set_memory(window_states(model, rng), window)
        outputs += decoder.prefill(random_columns(backend, rng, 1, PREFIX)[0], window)
    length, window_of = np.zeros(lanes, dtype=np.int64), np.arange(lanes) % windows
    for index in range(3):
        length[-1] *= index != 2
        outputs += decoder.step(random_columns(backend, rng, lanes, 1, PREFIX), length, 0, window_of)
        length += 1
    last = random_columns(backend, rng, 1, tail, PREFIX)
    return [*outputs, *decoder.step(last, length[-1:], lanes - 1, window_of[-1:])]


def window_states(model: Bundle, rng: np.random.Generator) -> np.ndarray:
    """Return a window's states (N, D), as large as a norm makes them."""
    config = model.config("decoder")
    return rng.standard_normal((config.n_audio_ctx, config.n_text_state), dtype=np.float32)


def random_columns(backend: Backend, rng: np.random.Generator, rows: int, count: int, first: int = 0) -> np.ndarray:
    """Return random tokens (rows, count, D) at ``count`` positions, starting at ``first``."""
    tables = backend.embeddings()
    ids = rng.integers(0, len(tables["token"]), (rows, count))
    return tables["token"][ids] + tables["position"][first : first + count]


def store(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Run a step after a long prefix, which it reads back.

    The prefix takes more than one block if the model has prefixes as long.
    """
    length = min(2 * bucket["columns"] - 5, model.config("decoder").n_text_ctx // 2 + 1)
    decoder = backend.decoder(1, 2)
    decoder.set_memory(window_states(model, rng))
    outputs = [*decoder.prefill(random_columns(backend, rng, 1, length)[0])]
    return [*outputs, *decoder.step(random_columns(backend, rng, 1, 1, length), np.zeros(1, dtype=np.int64))]


def step_prefixes(
    backend: Backend, model: Bundle, lengths: Mapping[str, int], rng: np.random.Generator
) -> list[np.ndarray]:
    """Run lanes of several windows, more of one than of another, at different positions.

    One lane changes its window.
    """
    lanes, windows = lengths["lanes"], 3
    decoder = backend.decoder(lanes, 6, windows, PREFIX)
    for window in range(windows):
        decoder.set_memory(window_states(model, rng), window)
        decoder.prefill(random_columns(backend, rng, 1, PREFIX - window)[0], window)
    window_of, length = np.arange(lanes) ** 2 % windows, np.zeros(lanes, dtype=np.int64)
    outputs = [*decoder.step(random_columns(backend, rng, lanes, 2, PREFIX), length, 0, window_of)]
    length += 1 + np.arange(lanes) % 2
    window_of[0], length[0] = 2, 0
    return [*outputs, *decoder.step(random_columns(backend, rng, lanes, 1, PREFIX), length, 0, window_of)]
