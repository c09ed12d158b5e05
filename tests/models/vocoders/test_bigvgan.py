"""Test BigVGAN: compare it with NVIDIA's code, and use it as the vocoder of a Tortoise bundle.

golden/bigvgan-*.safetensors has random weights of NVIDIA/BigVGAN at 7d2b454, without its filters (16 channels, torch
2.13, CPU). The kernels are stored in fp16, and were read back as fp32 before the call. The metadata has the config.
golden.mel and golden.sound are input and output of one call.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import ane
from ane.backends import load_backend
from ane.backends.windows import StreamingWindow
from ane.bundles import open_model
from ane.bundles.torch_checkpoint import assemble, sources
from ane.models.tortoise.checkpoints import import_tortoise
from ane.models.tortoise.vocoding import bigvgan_sound
from ane.models.vocoders.bigvgan import BigVGAN, BigVGANConfig
from ane.system.decibels import snr_db
from converters.conversion import convert
from converters.function_table import ONNX_THRESHOLDS, functions_of
from converters.onnx.onnx_package import OnnxOptions, OnnxTarget
from tests.imported import contents_of, imported
from tests.models.tortoise.sample_settings import DIFFUSION
from tests.random_model import draw
from tests.refusals import assert_refused

GOLDEN = Path(__file__).parent / "golden"
KINDS = ("v1", "v2", "snake")


def golden(kind: str) -> tuple[dict, dict[str, torch.Tensor]]:
    """NVIDIA's config, and its tensors in fp32."""
    with safe_open(GOLDEN / f"bigvgan-{kind}.safetensors", "pt") as file:
        return json.loads(file.metadata()["config"]), {key: file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118


def loaded(kind: str) -> tuple[BigVGAN, dict[str, torch.Tensor]]:
    stated, entries = golden(kind)
    network = BigVGAN(BigVGANConfig.from_upstream(stated)).eval()
    network.load_state_dict({key: assemble(sources(key, entries), entries) for key in network.state_dict()})
    return network, entries


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_its_sound_is_that_of_nvidias_code(kind):
    network, entries = loaded(kind)
    assert torch.allclose(network(entries["golden.mel"]), entries["golden.sound"], atol=1e-6)


@torch.inference_mode()
def test_the_sound_of_a_frame_depends_on_the_frames_of_the_margin_alone():
    network, _ = loaded("v1")
    margin = network.config.margin
    mel = torch.randn(1, 100, 20 + 2 * margin, generator=torch.Generator().manual_seed(0))
    parts = network(mel[..., 5:-5])[..., margin * 256 : -margin * 256]
    assert torch.allclose(parts, network(mel)[..., (5 + margin) * 256 : -(5 + margin) * 256], atol=1e-6)


def write_vocoder(folder: Path, kind: str = "v1", **stated: object) -> Path:
    """The file and its JSON as forks keep them."""
    config, entries = golden(kind)
    folder.mkdir(exist_ok=True)
    torch.save(
        {"generator": {key: value for key, value in entries.items() if not key.startswith("golden")}},
        folder / "bigvgan_24khz_100band.pth",
    )
    (folder / "bigvgan_24khz_100band.json").write_text(json.dumps(config | stated))
    return folder / "bigvgan_24khz_100band.pth"


def write_small_vocoder(folder: Path) -> Path:
    """Two levels with one residual block each, because the export of a large network takes long."""
    sizes = {
        "upsample_rates": [16, 16],
        "upsample_kernel_sizes": [32, 32],
        "upsample_initial_channel": 16,
        "resblock_kernel_sizes": [3],
        "resblock_dilation_sizes": [[1, 3, 5]],
    }
    vocoder = write_vocoder(folder, **sizes)
    stated = json.loads(vocoder.with_suffix(".json").read_text())
    network, generator = BigVGAN(BigVGANConfig.from_upstream(stated)), torch.Generator().manual_seed(0)
    weights = {key: draw(key, parameter, generator) for key, parameter in network.named_parameters()}
    torch.save({"generator": weights}, vocoder)
    return vocoder


@pytest.fixture(scope="module")
def bundle(golden_checkpoints, golden_config, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bigvgan")
    return imported(
        golden_checkpoints, folder / "bundle", config=golden_config, vocoder=write_small_vocoder(folder)
    ).path


def test_a_bundle_speaks_with_it(bundle, monkeypatch):
    synthesizer = ane.load(bundle, "torch")
    called, run = [], synthesizer.backend.run
    monkeypatch.setattr(synthesizer.backend, "run", lambda stage, **given: called.append(stage) or run(stage, **given))
    assert np.isfinite(synthesizer.speak("Hello.", "random", seed=1, settings=DIFFUSION).audio).all()
    assert "bigvgan" in called
    assert "univnet" not in called


def test_its_sound_in_pieces_is_that_of_one_call(bundle):
    model = open_model(bundle=bundle)
    backend, config = load_backend("torch:cpu", model), model.config("bigvgan")
    mel = np.random.default_rng(0).standard_normal((100, 140), dtype=np.float32)
    whole = backend.run("bigvgan", mel=mel[None])[0, 0]
    for window in (None, StreamingWindow()):
        pieces = list(bigvgan_sound(backend, config, window).finish(mel))
        assert len(pieces) > 1
        assert np.allclose(np.concatenate(pieces), whole, atol=1e-6)


def test_its_onnx_graph_has_the_sound_of_the_reference(bundle, tmp_path):
    model = convert(open_model(bundle=bundle), tmp_path / "onnx", [OnnxOptions()], ["bigvgan"], target=OnnxTarget())
    [row] = functions_of("bigvgan", "onnx").values()
    sounds = [
        row.probe(load_backend(name, model), model, {"frames": 23}, np.random.default_rng(0))[0]
        for name in ("onnx", "torch:cpu")
    ]
    assert snr_db(sounds[1], sounds[0]) > ONNX_THRESHOLDS["fp32"]


def test_the_command_adds_it_to_a_bundle(golden_checkpoints, golden_config, tmp_path, succeed):
    vocoder, out = write_vocoder(tmp_path / "vocoder", "v2"), tmp_path / "out"
    succeed("import", golden_checkpoints, "--config", golden_config, "--vocoder", vocoder, "-o", out)
    assert not open_model(bundle=out).config("bigvgan").use_tanh_at_final


def test_its_file_alone_completes_a_base_as_the_option_does(bundle, golden_model, tmp_path):
    completed, expected = contents_of(write_small_vocoder(tmp_path), base=golden_model), open_model(bundle=bundle)
    assert completed.configs == {name: expected.config(name) for name in expected.networks}
    for name in expected.networks:
        tensors = completed.tensors(name)
        assert all(torch.equal(tensors[key], value) for key, value in expected.tensors(name).items())


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"resblock": "2"}, "resblock must be '1'"),
        ({"upsample_rates": [8, 8, 8]}, "makes 512 samples per frame"),
        ({"num_mels": 80}, "takes 80 mel bands"),
    ],
)
def test_a_vocoder_of_another_sound_is_refused(stated, message, golden_checkpoints, golden_config, tmp_path):
    vocoder = write_vocoder(tmp_path / "vocoder", **stated)
    assert_refused(
        message, lambda: import_tortoise(golden_checkpoints, json.loads(golden_config.read_text()), vocoder=vocoder)
    )


def test_another_file_is_refused_with_what_was_seen(golden_checkpoints, tmp_path):
    torch.save({"conv_pre.weight": torch.zeros(2)}, tmp_path / "other.pth")
    assert_refused(
        r"is not a BigVGAN, .* but holds conv_pre\.weight",
        lambda: import_tortoise(golden_checkpoints, vocoder=tmp_path / "other.pth"),
    )
    assert_refused(
        r"^vocoder .*none\.pth: no such file",
        lambda: import_tortoise(golden_checkpoints, vocoder=tmp_path / "none.pth"),
    )
