"""The vector quantiser and its files of codes."""

import numpy as np
import torch

from training.quantiser import ENTRY, Quantiser, envelope_matrix, write_codes
from training.speech import Shard


def test_each_shard_is_coded_with_its_own_voice(tmp_path):
    torch.manual_seed(0)
    quantiser = Quantiser(16, 2)
    mel = np.random.default_rng(0).standard_normal((40, 80)).astype(np.float16)
    paths = [tmp_path / f"{index:04d}-{voice}.npz" for index, voice in enumerate(("rms", "slt"))]
    for path in paths:
        Shard(["a", "b"], np.zeros(4, np.int16), np.array([2, 2]), mel, np.array([16, 24])).save(path)
    for path, voice in zip(write_codes(tmp_path / "codes", quantiser, paths, ("rms", "slt")), (0, 1), strict=True):
        for codes, part in zip(np.split(np.load(path), [4]), np.split(mel, [16]), strict=True):
            wanted = quantiser.codes(torch.from_numpy(part.T.astype(np.float32))[None], torch.tensor([voice]))[0]
            assert codes.tolist() == wanted.tolist()


def test_a_quantiser_gives_one_code_for_four_frames_and_resets_unused_entries():
    torch.manual_seed(0)
    quantiser, voices = Quantiser(16, 2), torch.tensor([0, 1, 0, 1])
    mel = torch.randn(4, 80, 32)
    codes = quantiser.codes(mel, voices)
    assert codes.shape == (4, 8)
    assert quantiser.mel(codes, voices).shape == mel.shape
    assert not torch.equal(quantiser.mel(codes, voices), quantiser.mel(codes, 1 - voices))
    encodings = torch.randn(64, ENTRY)
    quantiser.update_codebook(encodings, torch.zeros(64, dtype=torch.int64), torch.Generator().manual_seed(0))
    for entry in quantiser.codebook[1:]:         # all but the one that is used
        assert (entry == encodings).all(dim=1).any()


def test_the_envelope_of_a_mel_keeps_formants_and_drops_harmonics():
    band = torch.arange(80)
    formants, harmonics = torch.cos(band / 80 * torch.pi * 5), torch.cos(band * torch.pi * 2 / 3)
    assert (envelope_matrix() @ formants - formants).abs().mean() < 0.1
    assert (envelope_matrix() @ harmonics).abs().mean() < 0.1
