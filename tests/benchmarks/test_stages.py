"""Stages on several engines: rows, ratios and shares; torch eager computes what torch computes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ane.backends.torch.backend import TorchBackend
from ane.bench.records import BenchRow
from ane.bundles import open_model
from benchmarks.__main__ import arguments_parser
from benchmarks.eager import EagerBackend
from benchmarks.peaks import Operations, cached_numbers
from benchmarks.stages import measure

SHORT = ["--lanes", "1,2", "--frames", "16", "--utterances", "1,2", "--calls", "2", "--rounds", "1", "--threads", "1"]


@pytest.fixture(scope="module")
def rows(random_bundle: Path) -> list[BenchRow]:
    """Of both engines of torch."""
    options = arguments_parser().parse_args(["backends", "--bundle", str(random_bundle), "--competitors", "eager,torch",
                                             "--precision", "fp32,int8", *SHORT])
    options.checkpoints = None
    return list(measure(options).rows)


def test_every_part_has_a_row_for_every_competitor_and_size(rows):
    names = ["eager:cpu fp32", "torch:cpu fp32", "torch:cpu int8"]
    sizes = {"prefill": [{}], "decoder step": [{"lanes": 1}, {"lanes": 2}],
             "guided denoising step": [{"frames": 16, "utterances": 1}, {"frames": 16, "utterances": 2}],
             "univnet": [{"frames": 16}], "hifigan": [{"frames": 16}]}
    found = {what: [(row.competitor, row.settings) for row in rows if row.what == what] for what in sizes}
    assert found == {what: [(name, size) for name in names for size in each] for what, each in sizes.items()}
    assert all(row.error is None and row.value.median > 0 for row in rows)


def test_rows_state_rates_shares_and_the_ratio_to_eager_with_the_same_sizes(rows):
    for row in rows:
        eager, = (other for other in rows if other.competitor == "eager:cpu fp32" and other.what == row.what
                  and other.settings == row.settings)
        assert row.figures["times_eager_fp32"] == eager.value.median / row.value.median
        assert ("share_of_peak" in row.figures) == row.competitor.endswith("fp32")
        assert row.figures["core_ms"] > 0
        if row.what == "decoder step":
            assert row.figures["tokens_per_s"] > 0
            assert row.figures["share_of_bandwidth"] > 0
        if row.what in ("univnet", "hifigan"):
            assert row.figures["real_time_factor"] > 0
        if row.what == "guided denoising step" and row.competitor == "torch:cpu int8":
            # random weights; without VNNI, activations are rounded to 7 bits instead of 8, 6 dB less
            assert row.figures["snr_db"] > (10 if torch.cpu._is_vnni_supported() else 4)


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

    for eager, ours in zip(decoded(EagerBackend(model, "cpu", "fp32")), decoded(TorchBackend(model, "cpu", "fp32")),
                           strict=True):
        np.testing.assert_allclose(eager, ours, atol=2e-5)


def test_an_eager_decoder_refuses_lanes_of_different_lengths(random_bundle):
    model = open_model(random_bundle)
    decoder, width = EagerBackend(model, "cpu", "fp32").decoder(2, 8), model.config("autoregressive").model_dim
    decoder.prefill(np.zeros((3, width), np.float32))
    with pytest.raises(ValueError, match="all lanes together"):
        decoder.step(np.zeros((2, 1, width), np.float32), np.array([0, 1]))
    with pytest.raises(ValueError, match="all lanes together"):
        decoder.step(np.zeros((1, 1, width), np.float32), np.array([0]))


@pytest.mark.parametrize("guided", [False, True])
def test_eager_denoises_what_torch_denoises(random_bundle, guided):
    model, rng = open_model(random_bundle), np.random.default_rng(0)
    config = model.config("diffusion")
    latents = rng.standard_normal((1, 5, config.in_latent_channels), np.float32)
    voice = rng.standard_normal((1, 2 * config.model_channels), np.float32)
    x = rng.standard_normal((1, 100, 21), np.float32)
    eager, torch = (backend.denoiser([latents], voice, [21])([x], 700, guided)[0]
                    for backend in (EagerBackend(model, "cpu", "fp32"), TorchBackend(model, "cpu", "fp32")))
    np.testing.assert_allclose(eager, torch, atol=1e-4)


def test_operations_of_a_step_are_those_of_its_matrices_and_of_attention(random_bundle):
    model = open_model(random_bundle)
    config = model.config("autoregressive")
    D, layers, codes = config.model_dim, config.layers, config.number_mel_codes
    matrices = layers * (3 + 1 + 4 + 4) * D * D + D * codes
    assert Operations(model).step(4, 10) == 4 * (2 * matrices + 2 * cached_numbers(model, 10))
