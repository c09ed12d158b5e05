"""FastSpeech compared with golden vectors of NVIDIA's class: text, both sides, the regulator, every module within."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ane.backends import load_backend
from ane.bundles.weights import skeleton
from ane.models.durations import alignment_matrix, durations, length_mask, repeats
from ane.models.fastspeech.checkpoints import FastSpeechCheckpoint
from ane.models.fastspeech.networks import NETWORKS, FastSpeech, FastSpeechConfig
from ane.models.fastspeech.text import SYMBOLS, text_to_ids
from converters.proof.activations import hooked
from tests.fastspeech_files import write_fastspeech

TOLERANCE = 1e-4        # stated by the golden set, for float32
PADDED_TOLERANCE = 3e-6     # of a padded run in exact mode
ALPHAS = {"fast": 0.6, "slow": 1.7, "crop": 3.0}
CASES = ("single", "batch", "fixed", "fast", "slow", "crop", "crop_out")
Case = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def network(golden_fastspeech: Path, fastspeech_facts: dict) -> Callable[[str], FastSpeech]:
    """``network(padding)``: the golden weights, loaded strictly under NVIDIA's names."""
    state = {key: tensor for key, tensor in load_file(golden_fastspeech / "weights.safetensors").items()
             if not key.endswith(".position.weight")}

    def make(padding: str) -> FastSpeech:
        config = dataclasses.replace(FastSpeechConfig.from_upstream(fastspeech_facts["config"]), padding=padding)
        module = FastSpeech(config).eval().requires_grad_(False)
        module.load_state_dict(state)
        return module

    return make


def encode(network: FastSpeech, case: Case) -> np.ndarray:
    ids = torch.from_numpy(case["ids"].astype(np.int64))
    mask = case["pos"] > 0 if "pos" in case else case["ids"] > 0        # `fixed` is `single`, padded with 0
    return network.text(ids, torch.from_numpy(np.broadcast_to(mask, ids.shape).astype(np.float32))).numpy()


def decode(network: FastSpeech, states: np.ndarray, counts: np.ndarray, frames: int) -> np.ndarray:
    """The mel as NVIDIA's class returns it: (B, L, M)."""
    mel = network.mel(torch.from_numpy(states.copy()), torch.from_numpy(alignment_matrix(counts, frames)),
                         torch.from_numpy(length_mask(counts.sum(axis=1), frames)))
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
    exact = durations(golden["log_duration"])
    assert_close(exact, golden["duration"], TOLERANCE, "durations")
    counts = repeats(golden["duration"], ALPHAS.get(name, 1.0))
    assert np.array_equal(counts, golden["repeats"])
    assert np.array_equal(repeats(durations(encoded[..., -1]), ALPHAS.get(name, 1.0)), golden["repeats"])
    frames = golden["mel"].shape[1]         # cut or padded as the case does
    assert_close(decode(module, encoded[..., :-1], counts, frames), golden["mel"], TOLERANCE, "mel")
    mask = length_mask(counts.sum(axis=1), frames)
    assert np.array_equal(mask, golden["mel_mask"][..., 0])
    uncut = golden["regulated"].shape[1]
    regulated = alignment_matrix(counts, uncut).transpose(0, 2, 1) @ golden["encoder"]
    assert np.array_equal(regulated, golden["regulated"]), "repeating is exact"
    positions = length_mask(counts.sum(axis=1), uncut) * np.arange(1, uncut + 1)
    assert np.array_equal(positions, golden["regulated_pos"])


def test_exact_padding_changes_nothing(fastspeech_case, network, assert_close):
    golden, module = fastspeech_case("single"), network("exact")
    padded = fastspeech_case("fixed")
    symbols, rest = golden["ids"].shape[1], padded["ids"].shape[1] - golden["ids"].shape[1]
    encoded = encode(module, {"ids": padded["ids"]})[:, :symbols]
    assert_close(encoded[..., :-1], golden["encoder"], PADDED_TOLERANCE, "encoder")
    assert_close(encoded[..., -1], golden["log_duration"], PADDED_TOLERANCE, "log durations")
    counts = repeats(durations(encoded[..., -1]))
    mel = decode(module, np.pad(encoded[..., :-1], ((0, 0), (0, rest), (0, 0))), np.pad(counts, ((0, 0), (0, rest))),
                 padded["mel"].shape[1])
    frames = golden["mel"].shape[1]
    assert_close(mel[:, :frames], golden["mel"], PADDED_TOLERANCE, "mel")
    assert (mel[:, frames:] == module.mel_linear.bias.numpy()).all()


def test_published_padding_does_change_the_result(fastspeech_case, network):
    alone = fastspeech_case("single")["encoder"]
    encoded = encode(network("published"), {"ids": fastspeech_case("fixed")["ids"]})[:, :alone.shape[1], :-1]
    assert np.abs(encoded - alone).max() > 0.1


def test_durations_of_zero_give_no_frames(fastspeech_case, network):
    module, golden = network("published"), fastspeech_case("empty")
    predictor = module.length_regulator.duration_predictor.linear_layer
    predictor.weight.mul_(0.01)
    predictor.bias.fill_(-9)
    encoded = encode(module, golden)
    assert np.array_equal(durations(encoded[..., -1]), golden["duration"])
    assert repeats(golden["duration"]).sum() == golden["mel"].shape[1] == 0


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.3])
def test_the_regulator_alone(fastspeech_case, alpha):
    regulator = fastspeech_case("regulator")
    counts = repeats(regulator["duration"], alpha)
    assert np.array_equal(counts, regulator[f"alpha{alpha}/repeats"])
    frames = regulator[f"alpha{alpha}/out"].shape[1]
    assert np.array_equal(alignment_matrix(counts, frames).transpose(0, 2, 1) @ regulator["x"],
                          regulator[f"alpha{alpha}/out"])
    assert np.array_equal(length_mask(counts.sum(axis=1), frames) * np.arange(1, frames + 1),
                          regulator[f"alpha{alpha}/pos"])


def test_halves_are_rounded_up_as_in_tensorrt(fastspeech_case):
    regulator = fastspeech_case("regulator")
    assert np.array_equal(repeats(regulator["duration"], rounding="half_up"), regulator["repeats_half_up"])


@pytest.mark.parametrize(("name", "padding"), [("single", "exact"), ("single", "published"), ("fixed", "published")])
def test_every_module_within(name, padding, fastspeech_case, network, assert_close):
    golden, module = fastspeech_case(name), network(padding)
    outputs: dict[str, np.ndarray] = {}

    def keep(key: str) -> Callable[..., None]:
        return lambda _, inputs, output: outputs.update({key: output.numpy().copy()})

    for key, part in module.named_modules():
        part.register_forward_hook(keep(key))
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


# The activations that NVIDIA's verify_trt.py compares, by its names (DeepLearningExamples, CUDA-Optimized/FastSpeech).
# The example stores references and goes on in place, so its ``conv2`` holds the residual too and its ``ln`` is masked.
# Here the names stand for what they say: ``conv2`` is the convolution's output, ``ln`` the norm's before the mask.

# in the order of computation; the path of the module that returns it, inside a block
LAYER = {"slf_attn.linear": "slf_attn.linear", "slf_attn.scaled_dot": "slf_attn.attention",
         "slf_attn.residual": "slf_attn.residual", "slf_attn.ln": "slf_attn.layer_norm", "pos_ffn.conv1": "pos_ffn.w_1",
         "pos_ffn.conv2": "pos_ffn.w_2", "pos_ffn.residual": "pos_ffn.residual", "pos_ffn.ln": "pos_ffn.layer_norm"}


def published_names(kind: str, config: FastSpeechConfig) -> dict[str, tuple[str, ...]]:
    """Activations of "text" or "mel" → paths of the modules that return the same; none: the host makes it."""
    if kind == "text":
        return {"act.emb": ("word_emb",), **_side("phoneme_side", config.phoneme_side_n_layer),
                "act.length_regulator.dur": ()}
    if kind == "mel":
        return {"act.length_regulator.seq": ("length_regulator",), **_side("mel_side", config.mel_side_n_layer),
                "out.seq_mask": (), "out.seq": ("mel_linear",)}
    return {}


def _side(side: str, layers: int) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {f"act.{side}.add_pos_enc": (f"{side}.positions",)}
    for index in range(layers):
        block = f"{side}.layer_stack.{index}"
        found |= {f"act.{block}.{name}": (f"{block}.{path}",) for name, path in LAYER.items()}
        found[f"act.{block}"] = (block, f"{block}.pos_ffn", *([side] if index == layers - 1 else []))
    return found | {f"act.{side}.seq": found[f"act.{side}.layer_stack.{layers - 1}"]}


def test_the_default_model_has_nvidias_117_activations():
    names = nvidia_names(FastSpeechConfig())
    assert len(names) == 117
    assert names[:3] == ["act.emb", "act.phoneme_side.add_pos_enc", "act.phoneme_side.layer_stack.0.slf_attn.linear"]
    assert names[-3:] == ["act.mel_side.seq", "out.seq_mask", "out.seq"]
    layer = "act.mel_side.layer_stack.5"
    assert set(names) >= {layer, f"{layer}.slf_attn.scaled_dot", f"{layer}.pos_ffn.ln", "act.length_regulator.seq"}
    modules = {path for path, _ in skeleton(NETWORKS["fastspeech"], FastSpeechConfig()).named_modules()}
    assert {path for kind in ("text", "mel") for paths in published_names(kind, FastSpeechConfig()).values()
            for path in paths} <= modules


def nvidia_names(config: FastSpeechConfig) -> list[str]:
    return [name for kind in ("text", "mel") for name in published_names(kind, config)]


@pytest.mark.parametrize("name", ["single", "fixed"])
def test_activations_by_nvidias_names_are_the_golden_ones(name, fastspeech_case, network, assert_close):
    golden, module = fastspeech_case(name), network("published")
    paths = {name: path for kind in ("text", "mel") for name, paths in published_names(kind, module.config).items()
             for path in paths}
    captured: dict[str, np.ndarray] = {}
    with hooked({path: part for path, part in module.named_modules() if path}, captured.__setitem__):
        encoded = encode(module, golden)
        decode(module, encoded[..., :-1], repeats(golden["duration"]), golden["mel"].shape[1])
    compared = 0
    for activation, (key, linear) in golden_activations(module.config).items():
        if key in golden:
            output = captured[paths[activation]]
            expected = golden[key] if linear is None else golden[key] + captured[linear]
            assert_close(head_by_head(output) if "scaled_dot" in activation else output, expected, TOLERANCE,
                         activation)
            compared += 1
    assert compared >= (20 if name == "single" else 4)


def golden_activations(config: FastSpeechConfig) -> dict[str, tuple[str, str | None]]:
    """Activation → its golden tensor, and the module whose output is to be added to it (a residual's other term)."""
    found: dict[str, tuple[str, str | None]] = {"act.emb": ("word_emb/out", None), "out.seq": ("mel", None),
                                                "act.phoneme_side.seq": ("encoder", None)}
    for side, layers in (("phoneme_side", config.phoneme_side_n_layer), ("mel_side", config.mel_side_n_layer)):
        for index in range(layers):
            block = f"{side}.layer_stack.{index}"
            before = f"{side}.layer_stack.{index - 1}" if index else f"{side}.positions"
            found |= {f"act.{block}": (f"{block}/out", None)} | {f"act.{block}.{name}": (f"{block}.{path}/out", add)
                      for name, path, add in (
                          ("slf_attn.linear", "slf_attn.linear", None), ("pos_ffn.conv1", "pos_ffn.w_1", None),
                          ("slf_attn.scaled_dot", "slf_attn.attention", None), ("pos_ffn.conv2", "pos_ffn.w_2", None),
                          ("slf_attn.residual", "slf_attn.fc", before),
                          ("slf_attn.ln", "slf_attn.layer_norm", None), ("pos_ffn.ln", "pos_ffn.layer_norm", None))}
    return found


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


def test_the_stages_on_the_torch_backend(golden_fastspeech, fastspeech_case, tmp_path, assert_close):
    path = write_fastspeech(tmp_path / "checkpoint.pt", load_file(golden_fastspeech / "weights.safetensors"))
    backend, golden = load_backend("torch:cpu", FastSpeechCheckpoint(path)), fastspeech_case("batch")
    mask = (golden["pos"] > 0).astype(np.float32)
    encoded = backend.run("text", ids=golden["ids"].astype(np.int64), mask=mask)
    lengths = mask.sum(axis=1).astype(int)
    longest = int(lengths.argmax())
    assert_close(encoded[longest, :, :-1], golden["encoder"][longest], TOLERANCE, "the row without padding")
    counts = repeats(durations(encoded[..., -1]))
    frames = counts.sum(axis=1)
    mel = backend.run("mel", states=encoded[..., :-1], alignment=alignment_matrix(counts, frames.max()),
                      mask=length_mask(frames, frames.max()))
    assert_close(mel[longest, :, :frames[longest]].T, golden["mel"][longest, :frames[longest]], TOLERANCE, "mel")
