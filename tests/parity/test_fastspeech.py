"""Compare FastSpeech with golden vectors of the class by NVIDIA: text, inner modules, and stages on every engine."""

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import load_file as load_tensors

from ane.backends.base import Backend
from ane.backends.fixed_shapes import smallest_fitting
from ane.backends.mil import MilRuntime
from ane.backends.packaged.backend import PackagedBackend
from ane.bundles.bundle import Bundle
from ane.bundles.package_records import PackageFolder
from ane.bundles.writing import write_bundle
from ane.models.durations import alignment_matrix, durations, length_mask, repeats
from ane.models.fastspeech.checkpoints import import_fastspeech
from ane.models.fastspeech.networks import FastSpeech, FastSpeechConfig
from ane.models.fastspeech.text import SYMBOLS, text_to_ids
from ane.system.errors import UserError
from converters.coreml import coreml_package as to_coreml
from converters.proof.activations import hooked
from converters.proof.parity import reference_backend
from tests.fastspeech_files import write_fastspeech

TOLERANCE = 1e-4  # the golden set's tolerance for float32
PADDED_TOLERANCE = 3e-6  # tolerance for a padded run in exact mode
ALPHAS = {"fast": 0.6, "slow": 1.7, "crop": 3.0}
CASES = ("single", "batch", "fixed", "fast", "slow", "crop", "crop_out")
Case = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def network(golden_fastspeech: Path, fastspeech_facts: dict) -> Callable[[str], FastSpeech]:
    """``network(padding)``: the golden weights, loaded strictly under NVIDIA's names."""
    state = {
        key: tensor
        for key, tensor in load_file(golden_fastspeech / "weights.safetensors").items()
        if not key.endswith(".position.weight")
    }

    def make(padding: str) -> FastSpeech:
        config = dataclasses.replace(FastSpeechConfig.from_upstream(fastspeech_facts["config"]), padding=padding)
        module = FastSpeech(config).eval().requires_grad_(False)
        module.load_state_dict(state)
        return module

    return make


def encode(network: FastSpeech, case: Case) -> np.ndarray:
    ids = torch.from_numpy(case["ids"].astype(np.int64))
    mask = case["pos"] > 0 if "pos" in case else case["ids"] > 0  # the case `fixed` is the case `single`, padded with 0
    return network.text(ids, torch.from_numpy(np.broadcast_to(mask, ids.shape).astype(np.float32))).numpy()


def decode(network: FastSpeech, states: np.ndarray, counts: np.ndarray, frames: int) -> np.ndarray:
    """The mel as NVIDIA's class returns it: (B, L, M)."""
    mel = network.mel(
        torch.from_numpy(states.copy()),
        torch.from_numpy(alignment_matrix(counts, frames)),
        torch.from_numpy(length_mask(counts.sum(axis=1), frames)),
    )
    return mel.numpy().transpose(0, 2, 1)


def test_symbols_and_ids(fastspeech_facts):
    assert list(SYMBOLS) == fastspeech_facts["symbols"]
    for pair in fastspeech_facts["text"]:
        assert text_to_ids(pair["text"]) == pair["ids"], pair["text"]


@pytest.mark.parametrize("name", CASES)
def test_published_padding(name, fastspeech_case, network, assert_close):
    golden, module = fastspeech_case(name), network("published")
    encoded = encode(module, golden)
    assert_close(encoded[..., :-1], golden["encoder"], TOLERANCE, "encoder")
    assert_close(encoded[..., -1], golden["log_duration"], TOLERANCE, "log durations")
    assert_close(durations(golden["log_duration"]), golden["duration"], TOLERANCE, "durations")
    counts = repeats(golden["duration"], ALPHAS.get(name, 1.0))
    assert np.array_equal(counts, golden["repeats"])
    assert np.array_equal(repeats(durations(encoded[..., -1]), ALPHAS.get(name, 1.0)), golden["repeats"])
    frames = golden["mel"].shape[1]  # cut or padded as in the case
    assert_close(decode(module, encoded[..., :-1], counts, frames), golden["mel"], TOLERANCE, "mel")
    assert np.array_equal(length_mask(counts.sum(axis=1), frames), golden["mel_mask"][..., 0])
    uncut = golden["regulated"].shape[1]
    regulated = alignment_matrix(counts, uncut).transpose(0, 2, 1) @ golden["encoder"]
    assert np.array_equal(regulated, golden["regulated"]), "repeating is exact"
    positions = length_mask(counts.sum(axis=1), uncut) * np.arange(1, uncut + 1)
    assert np.array_equal(positions, golden["regulated_pos"])


def test_exact_padding_changes_nothing(fastspeech_case, network, assert_close):
    golden, module = fastspeech_case("single"), network("exact")
    padded = fastspeech_case("fixed")
    symbols, rest = golden["ids"].shape[1], padded["ids"].shape[1] - golden["ids"].shape[1]
    assert np.abs(padded["encoder"][:, :symbols] - golden["encoder"]).max() > 0.1, "published padding does change it"
    encoded = encode(module, {"ids": padded["ids"]})[:, :symbols]
    assert_close(encoded[..., :-1], golden["encoder"], PADDED_TOLERANCE, "encoder")
    assert_close(encoded[..., -1], golden["log_duration"], PADDED_TOLERANCE, "log durations")
    counts = repeats(durations(encoded[..., -1]))
    mel = decode(
        module,
        np.pad(encoded[..., :-1], ((0, 0), (0, rest), (0, 0))),
        np.pad(counts, ((0, 0), (0, rest))),
        padded["mel"].shape[1],
    )
    frames = golden["mel"].shape[1]
    assert_close(mel[:, :frames], golden["mel"], PADDED_TOLERANCE, "mel")
    assert (mel[:, frames:] == module.mel_linear.bias.numpy()).all()


def test_durations_of_zero_give_no_frames(fastspeech_case, network):
    module, golden = network("published"), fastspeech_case("empty")
    predictor = module.length_regulator.duration_predictor.linear_layer
    predictor.weight.mul_(0.01)
    predictor.bias.fill_(-9)
    assert np.array_equal(durations(encode(module, golden)[..., -1]), golden["duration"])
    assert repeats(golden["duration"]).sum() == golden["mel"].shape[1] == 0


def test_the_regulator_alone(fastspeech_case):
    regulator = fastspeech_case("regulator")
    for alpha in (0.5, 1.0, 1.3):
        counts = repeats(regulator["duration"], alpha)
        assert np.array_equal(counts, regulator[f"alpha{alpha}/repeats"])
        frames = regulator[f"alpha{alpha}/out"].shape[1]
        assert np.array_equal(
            alignment_matrix(counts, frames).transpose(0, 2, 1) @ regulator["x"], regulator[f"alpha{alpha}/out"]
        )
        assert np.array_equal(
            length_mask(counts.sum(axis=1), frames) * np.arange(1, frames + 1), regulator[f"alpha{alpha}/pos"]
        )
    half_up = repeats(regulator["duration"], rounding="half_up")
    assert np.array_equal(half_up, regulator["repeats_half_up"]), "as in TensorRT"


@pytest.mark.parametrize(("name", "padding"), [("single", "exact"), ("single", "published"), ("fixed", "published")])
def test_every_module_within(name, padding, fastspeech_case, network, assert_close):
    golden, module = fastspeech_case(name), network(padding)
    outputs: dict[str, np.ndarray] = {}
    with hooked({key: part for key, part in module.named_modules() if key}, outputs.__setitem__):
        encoded = encode(module, golden)
        decode(module, encoded[..., :-1], repeats(durations(encoded[..., -1])), golden["mel"].shape[1])
    compared = [key.removesuffix("/out") for key in golden if key.endswith("/out")]
    assert len(compared) >= 7
    for key in compared:
        output = outputs[key]
        if key.endswith(".attention"):
            output = head_by_head(output)
        assert_close(output, golden[f"{key}/out"], TOLERANCE, key)


def head_by_head(attended: np.ndarray) -> np.ndarray:
    """(B, T, h · 64) → (h · B, T, 64), as upstream's attention returns it."""
    heads = attended.reshape(*attended.shape[:2], -1, 64).transpose(2, 0, 1, 3)
    return heads.reshape(-1, *heads.shape[2:])


@pytest.mark.parametrize("side", ["phoneme_side", "mel_side"])
def test_the_attention_itself(side, fastspeech_case, network, assert_close):
    """The weights of attention, as the output for unit vectors as values."""
    golden, key = fastspeech_case("single"), f"{side}.layer_stack.0.slf_attn"
    attention = network("exact").get_submodule(key)
    linear = torch.from_numpy(golden[f"{key}.linear/out"])
    length = linear.shape[1]
    q, k, _ = linear.view(1, length, attention.heads, 3, 64).permute(3, 0, 2, 1, 4)
    units = torch.eye(length).expand(1, attention.heads, length, length)
    weights = attention.attention(q, k, units, torch.zeros(1, 1, 1, length))
    weights = weights.view(length, attention.heads, length).transpose(0, 1)
    assert_close(weights.numpy(), golden[f"{key}.attention/attn"], TOLERANCE)


EXACT_TOLERANCE = 5e-6  # tolerance for a run that is padded to a bucket, in exact mode. Torch's own padded run has 3e-6


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
        return PackageFolder(work, [to_coreml.write_package(model(padding), "fastspeech", options, work)])

    def backend(padding: str, *functions: str) -> PackagedBackend:
        return PackagedBackend(
            model(padding),
            MilRuntime(),
            reference(padding),
            only=frozenset(functions) or None,
            unpublished=written(padding),
        )

    return backend


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


@pytest.fixture
def assert_speaks(fastspeech_case, assert_close):
    """``assert_speaks(backend, case)``: its stages, up to the end of the case, are those of the golden case."""

    def check(backend: Backend, spoken: str, golden: str, tolerance: float) -> None:
        expected, alpha = fastspeech_case(golden), ALPHAS.get(spoken, 1.0)
        symbols, frames = fastspeech_case(spoken)["ids"].shape[1], int(expected["repeats"].sum(axis=1).max())
        states, log_durations, counts, mel = speak(backend, fastspeech_case(spoken), alpha)
        assert_close(states, expected["encoder"][:, :symbols], tolerance, "encoder")
        assert_close(log_durations, expected["log_duration"][:, :symbols], tolerance, "log durations")
        assert np.array_equal(counts, expected["repeats"][:, :symbols])
        assert_close(mel, expected["mel"][:, :frames], tolerance, "mel")

    return check


@pytest.mark.parametrize("name", ["single", "slow", "fast"])
@pytest.mark.parametrize("largest", [False, True], ids=["the smallest that fits", "the largest"])
def test_core_ml_gives_the_unpadded_result_in_any_bucket(name, largest, fastspeech_facts, coreml, assert_speaks):
    symbols, frames = fastspeech_facts["buckets"][-1]
    functions = (f"text_{symbols}", f"mel_{frames}_{symbols}") if largest else ()
    assert_speaks(coreml("exact", *functions), name, name, EXACT_TOLERANCE)


def test_core_ml_gives_the_published_result_of_its_bucket(coreml, assert_speaks):
    """As NVIDIA's class, whose result depends on the padding."""
    assert_speaks(coreml("published"), "single", "fixed", TOLERANCE)


@pytest.mark.parametrize("name", ["single", "batch"])
def test_torch_keeps_batches_and_gives_upstreams_result(name, model, assert_speaks):
    """The golden batch was padded as published. tests/converters/fastspeech compares ONNX graphs with torch."""
    assert_speaks(reference_backend(model("published")), name, name, TOLERANCE)


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
