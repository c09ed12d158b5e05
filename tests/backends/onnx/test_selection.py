"""Test which options and bundles the ONNX backend rejects."""

import pytest

from ane.backends import load_backend
from ane.backends.onnx import providers
from ane.backends.onnx.providers import CPU, DEVICES, OnnxDevice
from ane.backends.packaged.selection import select_packages
from ane.bundles.precisions import ONNX, stored_precision
from ane.cli import main
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import UserError

CUDA, TENSORRT = (OnnxDevice(name, CPU, "cuda", "nothing") for name in ("cuda", "tensorrt"))


@pytest.mark.parametrize(
    ("backend", "options", "message"),
    [
        ("onnx:cpu", {"cache": "io"}, "cache has no effect on the backend onnx:cpu: it is for Core ML packages"),
        ("onnx:cpu", {"compute_units": "ALL"}, "compute_units has no effect on the backend onnx:cpu"),
        ("onnx:npu", {}, "no backend is named 'onnx:npu'"),
        (
            "onnx:cpu",
            {"precision": "8bit"},
            "precision must be one of fp32, fp16, int8, int4 for ONNX packages, got 8bit",
        ),
        ("onnx:cpu", {"precision": "fp16"}, "in fp32, not in fp16"),
    ],
)
def test_options_without_effect_and_missing_precisions_are_refused(bundle, backend, options, message):
    with pytest.raises(UserError, match=message):
        load_backend(backend, bundle, **options)


@pytest.mark.parametrize(
    ("device", "precision", "advice"),
    [(CUDA, "int8", "fp16 or int4"), (TENSORRT, "int8", "fp16"), (TENSORRT, "int4", "fp16")],
)
def test_what_a_gpu_would_compute_on_the_cpu_is_refused_in_one_line_with_what_to_use(
    decoder_bundle, monkeypatch, device, precision, advice
):
    monkeypatch.setattr(providers, "choose_onnx_device", lambda name: device)
    expected = (
        rf"precision {precision} of autoregressive is too slow on onnx:{device.name}, .*: "
        rf"use backend=onnx:cpu, .* precision={advice}$"
    )
    with pytest.raises(UserError, match=expected) as refused:
        load_backend(f"onnx:{device.name}", decoder_bundle, precision)
    assert "\n" not in str(refused.value)
    assert load_backend(f"onnx:{device.name}", decoder_bundle, "fp16").name.startswith(f"onnx:{device.name} fp16")


@pytest.mark.parametrize(("device", "precision"), [(DEVICES["cpu"], "int8"), (CUDA, "fp32")])
def test_auto_takes_int8_first_on_the_cpu_alone(decoder_bundle, device, precision):
    packages = {package.precision: package for package in decoder_bundle.onnx_packages}
    chosen = select_packages(decoder_bundle, "auto", [packages["int8"], packages["fp32"]], "onnx", device.name)
    assert chosen["autoregressive"].precision == precision


def test_vocoders_and_networks_that_run_once_stay_in_fp32():
    stored = {name: stored_precision(ONNX, network, "fp16") for name, network in NETWORKS.items()}
    assert {name for name in stored if stored[name] == "fp16"} == {"autoregressive", "diffusion", "clvp"}


def test_a_bundle_without_onnx_packages_is_an_error_with_advice(capsys):
    assert main(["say", "Hello.", "--backend", "onnx:cpu", "-o", "/dev/null/no.wav"]) != 0
    assert main(["verify", "--against", "onnx"]) == 1
    assert "has no ONNX packages: make them with `ane convert" in " ".join(capsys.readouterr().err.split())
