"""Test that FastSpeech's stages return NVIDIA's results: on torch, in interpreted Core ML packages, and in ONNX."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file as load_tensors

from ane.backends.base import Backend
from ane.backends.fixed_shapes import smallest_fitting
from ane.backends.mil import MilRuntime
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.providers import DEVICES
from ane.backends.packaged.backend import PackagedBackend
from ane.bundles.bundle import Bundle
from ane.bundles.package_records import PackageFolder
from ane.bundles.writing import write_bundle
from ane.models.durations import alignment_matrix, durations, length_mask, repeats
from ane.models.fastspeech.checkpoints import import_fastspeech
from ane.system.errors import UserError
from converters.coreml import coreml_package as to_coreml
from converters.onnx import onnx_package as to_onnx
from converters.proof.parity import reference_backend
from tests.fastspeech_files import write_fastspeech

TOLERANCE = 1e-4  # the golden set's tolerance for float32
EXACT_TOLERANCE = 5e-6  # tolerance for a run that is padded to a bucket, in exact mode. Torch's own padded run has 3e-6
ALPHAS = {"fast": 0.6, "slow": 1.7}
Case = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def model(golden_fastspeech: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundle]:
    """``model(padding)``: a bundle of the golden weights."""

    @cache
    def bundle(padding: str) -> Bundle:
        work = tmp_path_factory.mktemp(padding)
        path = write_fastspeech(work / "checkpoint.pt", load_tensors(golden_fastspeech / "weights.safetensors"))
        return write_bundle(import_fastspeech(path, {"padding": padding}), work / "bundle", name="golden")

    return bundle


@pytest.fixture(scope="module")
def coreml(model, fastspeech_facts, tmp_path_factory) -> Callable[..., PackagedBackend]:
    """``coreml(padding, *functions)``: only these functions of a package with the golden set's buckets."""
    smallest, *_, largest = fastspeech_facts["buckets"]
    fixed, symbols = fastspeech_facts["fixed"], tuple(text for text, _ in fastspeech_facts["buckets"])
    sizes = {
        "exact": {"text": symbols, "mel": (smallest[1], largest[1])},
        "published": {"text": (fixed["max_in"],), "mel": (fixed["max_out"],)},
    }
    reference = cache(lambda padding: reference_backend(model(padding)))

    @cache
    def written(padding: str) -> PackageFolder:
        work = tmp_path_factory.mktemp(f"coreml-{padding}")
        options = to_coreml.CoreMLOptions("fp32", buckets=sizes[padding])
        package = to_coreml.write_package(model(padding), "fastspeech", options, work)
        return PackageFolder(work, [package])

    def backend(padding: str, *functions: str) -> PackagedBackend:
        return PackagedBackend(
            model(padding),
            MilRuntime(),
            reference(padding),
            only=frozenset(functions) or None,
            unpublished=written(padding),
        )

    return backend


@pytest.fixture(scope="module")
def onnx(model, tmp_path_factory) -> OnnxBackend:
    """The golden batch was padded as published."""
    work, reference = tmp_path_factory.mktemp("onnx"), reference_backend(model("published"))
    package = to_onnx.write_package(model("published"), "fastspeech", to_onnx.OnnxOptions(), work)
    return OnnxBackend(
        model("published"), DEVICES["cpu"], reference, threads=1, unpublished=PackageFolder(work, [package])
    )


def speak(backend: Backend, golden: Case, alpha: float = 1.0) -> tuple[np.ndarray, ...]:
    """The stages of a case: encoder states, log durations, repeats, and the mel as NVIDIA's class returns it."""
    mask = (golden["pos"] > 0).astype(np.float32)
    encoded = backend.run("text", ids=golden["ids"].astype(np.int64), mask=mask)
    counts = repeats(durations(encoded[..., -1]), alpha)
    frames = counts.sum(axis=1)
    mel = backend.run(
        "mel",
        states=np.ascontiguousarray(encoded[..., :-1]),
        alignment=alignment_matrix(counts, frames.max()),
        mask=length_mask(frames, frames.max()),
    )
    return encoded[..., :-1], encoded[..., -1], counts, mel.transpose(0, 2, 1)


@pytest.mark.parametrize("name", ["single", "slow", "fast"])
@pytest.mark.parametrize("largest", [False, True], ids=["the smallest that fits", "the largest"])
def test_core_ml_gives_the_unpadded_result_in_any_bucket(
    name, largest, fastspeech_case, fastspeech_facts, coreml, assert_close
):
    golden, (symbols, frames) = fastspeech_case(name), fastspeech_facts["buckets"][-1]
    functions = (f"text_{symbols}", f"mel_{frames}_{symbols}") if largest else ()
    states, log_durations, counts, mel = speak(coreml("exact", *functions), golden, ALPHAS.get(name, 1.0))
    assert_close(states, golden["encoder"], EXACT_TOLERANCE, "encoder")
    assert_close(log_durations, golden["log_duration"], EXACT_TOLERANCE, "log durations")
    assert np.array_equal(counts, golden["repeats"])
    assert_close(mel, golden["mel"], EXACT_TOLERANCE, "mel")


def test_core_ml_gives_the_published_result_of_its_bucket(fastspeech_case, coreml, assert_close):
    """As NVIDIA's class, whose result depends on the padding."""
    golden = fastspeech_case("fixed")
    symbols, frames = fastspeech_case("single")["ids"].shape[1], int(golden["repeats"].sum())
    states, log_durations, counts, mel = speak(coreml("published"), fastspeech_case("single"))
    assert_close(states, golden["encoder"][:, :symbols], TOLERANCE, "encoder")
    assert_close(log_durations, golden["log_duration"][:, :symbols], TOLERANCE, "log durations")
    assert np.array_equal(counts, golden["repeats"][:, :symbols])
    assert_close(mel, golden["mel"][:, :frames], TOLERANCE, "mel")


@pytest.mark.parametrize("engine", ["torch", "onnx"])
@pytest.mark.parametrize("name", ["single", "batch"])
def test_an_engine_that_keeps_batches_gives_upstreams_result(name, engine, fastspeech_case, model, onnx, assert_close):
    golden = fastspeech_case(name)
    backend = onnx if engine == "onnx" else reference_backend(model("published"))
    states, log_durations, counts, mel = speak(backend, golden)
    assert_close(states, golden["encoder"], TOLERANCE, "encoder")
    assert_close(log_durations, golden["log_duration"], TOLERANCE, "log durations")
    assert np.array_equal(counts, golden["repeats"])
    assert_close(mel, golden["mel"], TOLERANCE, "mel")


def test_a_text_gets_the_bucket_that_the_example_chooses_and_is_never_cropped(fastspeech_facts, coreml):
    functions, largest = coreml("exact").functions("fastspeech", "text"), fastspeech_facts["buckets"][-1][0]
    for choice in fastspeech_facts["bucket_choice"]:
        if choice["length"] <= largest:
            chosen = smallest_fitting(functions, "the text", symbols=choice["length"])
            assert chosen.bucket["symbols"] == fastspeech_facts["buckets"][choice["index"]][0]
        else:
            needed = f"needs {choice['length']} symbols and the largest bucket of .* {largest}"
            with pytest.raises(UserError, match=needed):
                smallest_fitting(functions, "the text", symbols=choice["length"])
