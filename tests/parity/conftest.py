"""Provide golden vectors, their tolerances, and the comparison that all parity tests use.

A tolerance is ten times the rounding noise that the golden set records for an output: the largest difference between
upstream in float32 and upstream with every operator evaluated in float64.
"""

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from ane.bundles import Bundle
from ane.models.tortoise.sampling import CodeSampler
from ane.system.decibels import snr_db
from tests.conftest import FAMILIES

NOISE_MULTIPLE = 10
# unit roundoff of float32. Smaller noise figures are raised to this share of the largest value
UNIT_ROUNDOFF = 2.0**-24


@pytest.fixture(scope="session")
def model(golden_model: Bundle) -> Bundle:
    return golden_model


@pytest.fixture(scope="session")
def golden(golden_config: Path) -> Path:
    """Root of the golden set."""
    return golden_config.parent


@pytest.fixture(scope="session")
def golden_stage(golden: Path) -> Callable[[str], dict[str, np.ndarray]]:
    """``golden_stage(name)``: the tensors of one stage by name, read-only."""

    @cache
    def load(name: str) -> dict[str, np.ndarray]:
        path = golden / "stages" / f"{name}.safetensors"
        if not path.is_file():
            pytest.fail(f"the golden set has no {path}")
        tensors = load_file(path)
        for tensor in tensors.values():
            tensor.flags.writeable = False
        return tensors

    return load


@pytest.fixture(scope="session")
def tolerance(golden: Path) -> Callable[[str, str], float]:
    """``tolerance(stage, name)``: the largest absolute error that a correct float32 implementation may show."""
    figures = json.loads((golden / "tolerances.json").read_text(encoding="utf-8"))

    def allowed(stage: str, name: str) -> float:
        figure = figures.get(stage, {}).get(name)
        if figure is None:
            pytest.fail(
                f"{golden / 'tolerances.json'} has no figure for {stage}/{name}: "
                "compare it exactly, or derive it from tensors that have one"
            )
        return NOISE_MULTIPLE * max(figure["noise_max"], UNIT_ROUNDOFF * figure["max_abs"])

    return allowed


@pytest.fixture(scope="session")
def assert_close() -> Callable[..., None]:
    """``assert_close(actual, expected, allowed, label="")``: every element within ``allowed`` of the expected one."""

    def compare(actual: np.ndarray, expected: np.ndarray, allowed: float, label: str = "") -> None:
        __tracebackhide__ = True
        failure = divergence(np.asarray(actual), np.asarray(expected), allowed)
        if failure:
            pytest.fail(f"{label}: {failure}" if label else failure)

    return compare


@pytest.fixture(scope="session")
def assert_parity(golden_stage, tolerance, assert_close) -> Callable[[np.ndarray, str, str], None]:
    """``assert_parity(actual, stage, name)``: within tolerance of that golden tensor."""

    def compare(actual: np.ndarray, stage: str, name: str) -> None:
        __tracebackhide__ = True
        assert_close(actual, golden_stage(stage)[name], tolerance(stage, name), f"{stage}/{name}")

    return compare


def divergence(actual: np.ndarray, expected: np.ndarray, allowed: float) -> str:
    """How the arrays differ, in one line; empty when they agree. Computed in float64; NaN differs from all."""
    if actual.shape != expected.shape:
        return f"shape {actual.shape}, expected {expected.shape}"
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.where(actual == expected, 0.0, np.abs(actual - expected))  # equal infinities count as no error
    beyond = ~(error <= allowed)
    if not beyond.any():
        return ""
    first = np.unravel_index(beyond.argmax(), beyond.shape)
    index = tuple(int(axis) for axis in first)
    return (
        f"max error {error.max():.3g}, tolerance {allowed:.3g}, SNR {snr_db(expected, actual):.1f} dB; "
        f"{beyond.sum()} of {beyond.size} elements differ, the first at {index}: "
        f"{actual[first]:.9g} instead of {expected[first]:.9g}"
    )


class RecordedNoise:
    """A random generator that returns recorded arrays, in order."""

    def __init__(self, arrays: Iterable[np.ndarray]):
        self.arrays = iter(arrays)

    def standard_normal(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        return next(self.arrays).reshape(shape).astype(dtype)


def sampler_of_upstream(ids: np.ndarray, exponential: np.ndarray) -> CodeSampler:
    """Samples with upstream's random numbers: torch takes argmax(probability / Exp(1) variate)."""
    steps = zip(ids, exponential, strict=True)

    def sample(own_ids: np.ndarray, probabilities: np.ndarray) -> int:
        upstream_ids, variates = next(steps)
        possible = upstream_ids >= 0
        assert set(own_ids) == set(upstream_ids[possible])
        variate = dict(zip(upstream_ids[possible], variates[possible], strict=True))
        return int(own_ids[np.argmax(probabilities / [variate[i] for i in own_ids])])

    return sample


def golden_facts(folder: Path) -> dict[str, Any]:
    """What the unmodified code of a family says beside its tensors."""
    return json.loads((folder / "facts.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def golden_fastspeech(golden_families: Path) -> Path:
    return golden_families / "fastspeech"


@pytest.fixture(scope="session")
def fastspeech_facts(golden_fastspeech: Path) -> dict[str, Any]:
    return golden_facts(golden_fastspeech)


@pytest.fixture(scope="session")
def fastspeech_case(golden_fastspeech: Path) -> Callable[[str], dict[str, np.ndarray]]:
    """``fastspeech_case(name)``: the tensors of a case by name. A set of --families may lack a case."""
    tensors = load_file(golden_fastspeech / "stages.safetensors")

    def case(name: str) -> dict[str, np.ndarray]:
        found = {key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")}
        if not found and golden_fastspeech.parent != FAMILIES:
            pytest.skip(f"this golden set has no case {name}: run without --families, or with a set that has it")
        assert found
        return found

    return case


@pytest.fixture(scope="session")
def golden_whisper(golden_families: Path) -> Path:
    return golden_families / "whisper"


@pytest.fixture(scope="session")
def whisper_facts(golden_whisper: Path) -> dict[str, Any]:
    return golden_facts(golden_whisper)
