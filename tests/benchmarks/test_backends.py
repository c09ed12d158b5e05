"""The benchmark of engines: what it tells, that its ratios are of its rows, and that eager computes the same."""

import json
from pathlib import Path

import numpy as np
import pytest

from ane.backends.torch.backend import TorchBackend
from ane.bundles import open_model
from ane.system.errors import UserError
from benchmarks import backends, engines
from benchmarks.eager import EagerBackend
from benchmarks.peaks import Work, cached
from benchmarks.report import Figures, shared

SHORT = ["--lanes", "1,2", "--prefix", "8", "--steps", "2", "--frames", "16", "--sound", "16", "--max-codes", "8",
         "--rounds", "1", "--threads", "1"]
CUDA = {"eager:cuda", "torch:cuda", "onnx:cuda", "onnx:tensorrt"}


@pytest.fixture(scope="module")
def document(random_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The result of a pass over both engines of torch."""
    output = tmp_path_factory.mktemp("results") / "backends.json"
    backends.main(["--bundle", str(random_bundle), "--engines", "eager:cpu,torch:cpu", "--precisions", "fp32,int8",
                   *SHORT, "--output", str(output)])
    return json.loads(output.read_text())


def test_every_part_has_a_row_for_every_engine_precision_and_size(document):
    names = ["eager:cpu fp32", "torch:cpu fp32", "torch:cpu int8"]
    rows = [(r["part"], r["name"], r.get("lanes"), r.get("frames"), r.get("batch"), r.get("vocoder"))
            for r in document["results"]]
    assert rows == [
        *(("decoder", name, lanes, None, None, None) for name in names for lanes in (1, 2)),
        *(("diffusion", name, None, 16, batch, None) for name in names[:2] for batch in (1, 2)),
        *(("vocoders", name, None, 16, None, vocoder) for vocoder in ("univnet", "hifigan") for name in names[:2]),
        *(("sentence", name, None, None, None, None) for name in names)]


def test_every_row_tells_the_shared_figures_and_its_shares_of_what_was_measured(document):
    assert document["bandwidth_gb_s"]["cpu"]["median"] > 0
    assert document["peak_gflop_s"]["cpu fp32"]["median"] > 0
    for r in document["results"]:
        assert r.keys() >= shared(Figures()).keys()
        assert r["stage_ms"]
        if r["part"] == "decoder":
            assert r["tokens_per_s"]["median"] > 0
            assert r["share_of_bandwidth"] > 0
        if r["part"] == "vocoders":
            assert r["real_time_factor"]["median"] > 0
        if r["part"] != "sentence":
            assert (r["share_of_peak"] is None) == (r["precision"] == "int8")
            assert r["share_of_peak"] is None or r["share_of_peak"] > 0
    assert len(document["tables"]) == 5


def test_every_ratio_is_of_two_rows_that_are_shown(document):
    for r in document["results"]:
        figure = backends.MEASURES[r["part"]]
        eager, = (other for other in document["results"] if other["name"] == "eager:cpu fp32"
                  and backends.key_of(other) == backends.key_of(r))
        assert r["times_eager"] == r["times_eager_fp32"] == eager[figure]["median"] / r[figure]["median"]


def test_eager_decodes_what_torch_decodes_lanes_rewound_and_columns_in_a_row(random_bundle):
    model, rng = open_model(random_bundle), np.random.default_rng(0)
    width = model.config("autoregressive").model_dim
    prefix, columns = rng.standard_normal((7, width), np.float32), rng.standard_normal((4, 2, 1, width), np.float32)
    several = rng.standard_normal((2, 3, width), np.float32)

    def decoded(backend: TorchBackend) -> list[np.ndarray]:
        decoder = backend.decoder(2, 8)
        seen = [*decoder.prefill(prefix)]
        for length, column in enumerate(columns):
            seen += decoder.step(column, np.full(2, length))
        seen += decoder.step(several, np.full(2, 2))            # over the last two
        return [*seen, *decoder.step(columns[0], np.zeros(2, np.int64))]

    for eager, torch in zip(decoded(EagerBackend(model, "cpu", "fp32")), decoded(TorchBackend(model, "cpu", "fp32")),
                            strict=True):
        np.testing.assert_allclose(eager, torch, atol=2e-5)


def test_an_eager_decoder_refuses_lanes_that_part(random_bundle):
    model = open_model(random_bundle)
    decoder, width = EagerBackend(model, "cpu", "fp32").decoder(2, 8), model.config("autoregressive").model_dim
    decoder.prefill(np.zeros((3, width), np.float32))
    with pytest.raises(ValueError, match="go together"):
        decoder.step(np.zeros((2, 1, width), np.float32), np.array([0, 1]))
    with pytest.raises(ValueError, match="go together"):
        decoder.step(np.zeros((1, 1, width), np.float32), np.array([0]))


@pytest.mark.parametrize("guided", [False, True])
def test_eager_denoises_what_torch_denoises(random_bundle, guided):
    model, rng = open_model(random_bundle), np.random.default_rng(0)
    config = model.config("diffusion")
    latents = rng.standard_normal((1, 5, config.in_latent_channels), np.float32)
    voice = rng.standard_normal((1, 2 * config.model_channels), np.float32)
    x = rng.standard_normal((1, 100, 21), np.float32)
    eager, torch = (backend.denoiser(latents, voice, 21)(x, 700, guided)
                    for backend in (EagerBackend(model, "cpu", "fp32"), TorchBackend(model, "cpu", "fp32")))
    np.testing.assert_allclose(eager, torch, atol=1e-4)


def test_operations_of_a_step_are_those_of_its_matrices_and_of_what_it_sees(random_bundle):
    model = open_model(random_bundle)
    config = model.config("autoregressive")
    D, layers, codes = config.model_dim, config.layers, config.number_mel_codes
    matrices = layers * (3 + 1 + 4 + 4) * D * D + D * codes
    assert Work(model).step(4, 10) == 4 * (2 * matrices + 2 * cached(model, 10))


def test_engines_that_need_cuda_are_left_out_with_the_reason_and_refused_by_name(monkeypatch):
    monkeypatch.setattr(engines, "no_cuda", lambda: "there is no GPU")
    found, left_out = engines.present(None)
    assert left_out.keys() >= CUDA
    assert all(left_out[name] == "there is no GPU" for name in CUDA)
    assert {"eager:cpu", "torch:cpu"} <= {engine.name for engine in found}
    with pytest.raises(UserError, match="--engines onnx:tensorrt: there is no GPU"):
        engines.present(["onnx:tensorrt"])


@pytest.mark.parametrize(("flags", "says"), [
    (["--engines", "abacus"], "--engines abacus: there are eager:cpu"),
    (["--only", "abacus"], "--only abacus: there are decoder"),
    (["--precisions", "fp8"], "--precisions fp8: there are fp32"),
    (["--threads", "4096"], "--threads 4096: this machine has"),
])
def test_what_there_is_not_is_refused_with_what_there_is(flags, says):
    with pytest.raises(UserError, match=says):
        backends.main(["--engines", "torch:cpu", *flags])


def test_a_bundle_without_onnx_packages_is_no_converted_one(random_bundle):
    with pytest.raises(UserError, match="holds no ONNX packages of"), \
            engines.with_packages(open_model(), True, random_bundle, ["fp32"], ["univnet"]):
        pass
