"""The benchmark of FastSpeech: rates, the gain of a batch, and NVIDIA's class; nothing here depends on timings."""

from argparse import Namespace
from dataclasses import replace

import pytest
import torch

from ane.bench.records import BenchRow, Spread
from ane.bundles.bundle import write_bundle
from ane.models.fastspeech.checkpoints import FastSpeechCheckpoint
from ane.models.fastspeech.text import text_to_ids
from ane.system.errors import UserError
from benchmarks import fastspeech
from tests.fastspeech_files import SMALL, fastspeech_entries, write_fastspeech


def test_the_text_has_128_symbols():
    assert len(fastspeech.TEXT) == len(text_to_ids(fastspeech.TEXT)) == 128


def test_one_line_and_three_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    entries = fastspeech_entries(replace(SMALL, max_seq_len=1024))
    model = FastSpeechCheckpoint(write_fastspeech(tmp_path / "checkpoint.pt", entries))
    write_bundle(model, tmp_path / "bundle", name="small")
    options = Namespace(bundle=str(tmp_path / "bundle"), threads=1, rounds=1, lines=(1, 3), backends=["torch:cpu"],
                        nvidia=None)
    assert fastspeech.unavailable(options) is None
    one, three = fastspeech.measure(options).rows
    assert (one.settings["lines"], three.settings["lines"]) == (1, 3)
    seconds = [row.figures["audio_s_per_s"] * row.value.median / 1000 for row in (one, three)]
    assert seconds[1] == pytest.approx(3 * seconds[0])
    assert seconds[0] == pytest.approx(128 * 4 * 256 / 22050, rel=0.3)        # about 4 frames a symbol
    assert one.figures["times_one_line"] == 1


def test_the_gain_is_over_the_competitors_own_rate_for_one_line():
    rows = [BenchRow(name, "ids to mel", settings={"lines": lines}, value=Spread.of([1.0]),
                     figures={"audio_s_per_s": rate})
            for name, lines, rate in (("a", 1, 10.0), ("b", 1, 4.0), ("a", 8, 30.0), ("b", 8, 6.0), ("c", 8, 7.0))]
    found = [row.figures.get("times_one_line") for row in fastspeech.with_batch_gain(rows)]
    assert found == [1, 1, 3, 1.5, None]


def test_a_folder_without_nvidias_class_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no fastspeech/model/fastspeech\.py there"):
        fastspeech.nvidia_class(tmp_path)


def test_nvidias_class_is_called_with_the_models_weights(tmp_path):
    """A stand-in for it takes the constructor's arguments by position and a strict state dict."""
    model = FastSpeechCheckpoint(write_fastspeech(tmp_path / "checkpoint.pt"))
    seen = {}

    class StandInModel(torch.nn.Module):
        def __init__(self, *arguments):
            super().__init__()
            seen["arguments"] = arguments

        def load_state_dict(self, state):
            seen["state"] = state

        def forward(self, ids, positions):
            assert positions[1].tolist() == list(range(1, 129))
            return None, torch.ones(2, 50, 1, dtype=torch.bool), None

    found = fastspeech.nvidia_reading(StandInModel, model, 2)()
    assert found["audio_s_per_s"] * found["value"] / 1000 == pytest.approx(100 * 256 / 22050)
    assert seen["arguments"] == (200, 24, 2, 2, 32, 24, 1, 1, 40, 24, 5, 2, 16, 3, 0.1, 80)
    assert seen["state"].keys() == fastspeech_entries().keys()
