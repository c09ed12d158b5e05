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
from ane.cli import main
from ane.models.tortoise.checkpoints import import_tortoise
from ane.models.tortoise.vocoding import bigvgan_sound, sound_of
from ane.models.vocoders.bigvgan import BigVGAN, BigVGANConfig
from ane.system.decibels import snr_db
from converters.function_table import ONNX_THRESHOLDS, functions_of
from tests.imported import imported
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
    """With one residual block a stage, since an export takes long."""
    stated, entries = golden("v1")
    kernels, stages = len(stated["resblock_kernel_sizes"]), range(len(stated["upsample_rates"]))
    blocks = {f"resblocks.{stage * kernels}.": f"resblocks.{stage}." for stage in stages}
    vocoder = write_vocoder(
        folder, **{key: stated[key][:1] for key in ("resblock_kernel_sizes", "resblock_dilation_sizes")}
    )
    kept = {key: value for key, value in entries.items() if not key.startswith(("golden", "resblocks"))}
    kept |= {
        f"{block}{key.removeprefix(first)}": value
        for key, value in entries.items()
        for first, block in blocks.items()
        if key.startswith(first)
    }
    torch.save({"generator": kept}, vocoder)
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
    assert np.isfinite(synthesizer.speak("Hello.", "random", seed=1, preset="1x10").audio).all()
    assert "bigvgan" in called
    assert "univnet" not in called


def test_its_sound_in_pieces_is_that_of_one_call(bundle):
    model = open_model(bundle=bundle)
    backend, config = load_backend("torch:cpu", model), model.config("bigvgan")
    mel = np.random.default_rng(0).standard_normal((100, 140), dtype=np.float32)
    whole = backend.run("bigvgan", mel=mel[None])[0, 0]
    for window in (None, StreamingWindow()):
        pieces = list(sound_of(bigvgan_sound(backend, config, window), mel))
        assert len(pieces) > 1
        assert np.allclose(np.concatenate(pieces), whole, atol=1e-6)


def test_its_onnx_graph_has_the_sound_of_the_reference(bundle, tmp_path):
    assert main(["convert", str(bundle), "--to", "onnx", "--networks", "bigvgan", "-o", str(tmp_path / "onnx")]) == 0
    model = open_model(bundle=tmp_path / "onnx")
    [row] = functions_of("bigvgan", "onnx").values()
    sounds = [
        row.probe(load_backend(name, model), model, {"frames": 23}, np.random.default_rng(0))[0]
        for name in ("onnx", "torch:cpu")
    ]
    assert snr_db(sounds[1], sounds[0]) > ONNX_THRESHOLDS["fp32"]


def test_the_command_adds_it_to_a_bundle(golden_checkpoints, golden_config, tmp_path):
    vocoder = write_vocoder(tmp_path / "vocoder", "v2")
    assert (
        main(
            [
                "import",
                str(golden_checkpoints),
                "--config",
                str(golden_config),
                "--vocoder",
                str(vocoder),
                "-o",
                str(tmp_path / "out"),
            ]
        )
        == 0
    )
    model = open_model(bundle=tmp_path / "out")
    assert "bigvgan" in model.networks
    assert not model.config("bigvgan").use_tanh_at_final


def test_its_file_alone_completes_a_base_as_the_option_does(bundle, golden_checkpoints, golden_config, tmp_path):
    base, alone, out = tmp_path / "base", write_small_vocoder(tmp_path / "vocoder"), tmp_path / "out"
    assert main(["import", str(golden_checkpoints), "--config", str(golden_config), "-o", str(base)]) == 0
    assert main(["import", str(alone), "--base", str(base), "-o", str(out)]) == 0
    spoken = [ane.load(path, "torch").speak("Hello.", "random", seed=1, preset="1x10").audio for path in (out, bundle)]
    assert np.array_equal(*spoken)


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
