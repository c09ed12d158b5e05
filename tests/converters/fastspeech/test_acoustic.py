"""Both sides of FastSpeech as graphs, run by the interpreter, against ``ane.models.fastspeech.networks``."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from ane.backends.mil import Package
from ane.backends.packaged.functions import PackageFunction
from ane.models.durations import alignment_matrix, length_mask
from ane.models.fastspeech.family import STAGES
from ane.models.fastspeech.networks import FastSpeech
from ane.system.decibels import snr_db
from converters import fastspeech as acoustic
from converters.coreml.graph import Style
from converters.proof.lint import REFUSED, lint
from tests.backends.packaged.packages import FP16, FP32, NARROW, ROUNDED, assert_fits_the_engine, functions, saved
from tests.fastspeech_files import SMALL, random_state

HALF = Style("fp16")
SYMBOLS, FRAMES = 24, (40, 64)


class Functions:
    """``ane.backends.base.FunctionSet`` of both sides."""

    def __init__(self, network: FastSpeech, found: list[PackageFunction]):
        self.network, self.found = network, found

    def functions(self, kind: str) -> list[PackageFunction]:
        return [function for function in self.found if function.kind == kind]

    def table(self, key: str) -> np.ndarray:
        return self.network.state_dict()[key].numpy()


def graphs(network: FastSpeech) -> list:
    return [acoustic.text(network, SYMBOLS), *(acoustic.mel(network, frames, SYMBOLS) for frames in FRAMES)]


@pytest.fixture(scope="module")
def network() -> FastSpeech:
    """Its kernels are wider than the official ones, and both sides have another number of heads."""
    module = FastSpeech(SMALL)
    module.load_state_dict(random_state("fastspeech", SMALL))
    return module.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def paths(network, tmp_path_factory) -> Callable[[Style], dict[str, Path]]:
    return cache(lambda style: saved(graphs(network), style, tmp_path_factory.mktemp("acoustic")))


@pytest.fixture(scope="module")
def package(network, paths) -> Callable[..., Functions]:
    return lambda style, arithmetic=FP16: Functions(network, functions(graphs(network), paths(style), arithmetic))


def text_inputs(*lengths: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    ids = rng.integers(1, SMALL.embeddings, (len(lengths), max(lengths)))
    mask = length_mask(np.array(lengths), max(lengths))
    return {"ids": ids * mask.astype(np.int64), "mask": mask}


def mel_inputs(symbols: int, *lengths: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    counts = np.stack([rng.multinomial(length, np.full(symbols, 1 / symbols)) for length in lengths])
    return {
        "states": rng.standard_normal((len(lengths), symbols, SMALL.d_model), dtype=np.float32),
        "alignment": alignment_matrix(counts, max(lengths)),
        "mask": length_mask(np.array(lengths), max(lengths)),
    }


def expected(network: FastSpeech, inputs: dict[str, np.ndarray]) -> np.ndarray:
    call = network.text if "ids" in inputs else network.mel
    return call(*map(torch.from_numpy, inputs.values())).numpy()


def worst(network: FastSpeech, package: Functions) -> float:
    """dB of the worse side, over batches whose rows nearly fill, fill and barely use a bucket."""
    text, mel = text_inputs(1, 24, 17), mel_inputs(20, 64, 3, 33)
    frames = mel["mask"][:, None].astype(bool)  # outside the mask anything is returned
    return min(
        snr_db(expected(network, text), STAGES["text"].packaged(package, "text", text)),
        snr_db(np.where(frames, expected(network, mel), 0), STAGES["mel"].packaged(package, "mel", mel)),
    )


@pytest.mark.parametrize(
    ("style", "arithmetic", "least"), [(FP32, FP16, 115), (HALF, FP16, 60), (HALF, ROUNDED, 50), (HALF, NARROW, 48)]
)
def test_both_sides_equal_the_references(network, package, style, arithmetic, least):
    assert worst(network, package(style, arithmetic)) >= least


def test_graphs_are_of_the_engines_form(paths):
    for path in paths(HALF).values():
        assert_fits_the_engine(path, rank=None)
        assert not [broken for broken in lint(Package(path)) if broken.rule.severity == REFUSED]
