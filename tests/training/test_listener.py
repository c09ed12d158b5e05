"""The recogniser of letters in codes."""

import numpy as np
import torch

from training.clips import Clip
from training.listener import Listener, train_listener
from training.trainer import PartSchedule


def test_the_score_of_codes_does_not_depend_on_their_batch_and_is_infinite_for_too_few_codes():
    torch.manual_seed(0)
    listener = Listener(2).eval()
    texts = [[3, 4, 5, 6], [6, 7, 8, 9, 10, 11], [3, 4, 4, 5]]
    codes = [np.arange(2), np.arange(40, 60), np.arange(2)]
    together = listener.nats_per_letter(texts, codes, [0, 1, 0])
    apart = torch.cat([listener.nats_per_letter([text], [row], [voice])
                       for text, row, voice in zip(texts, codes, (0, 1, 0), strict=True)])
    torch.testing.assert_close(together, apart)
    assert together[:2].isfinite().all()
    assert together[2] == torch.inf     # two letters a code, and a blank between two equal letters
    assert listener.nats_per_letter(texts[:1], codes[:1], [1]) != together[0]


def test_the_listener_learns_the_letters_of_codes(tmp_path):
    clips = [Clip([3 + voice, *(3 + codes % 26)], codes, voice, None, 0)
             for codes, voice in zip(np.random.default_rng(0).integers(0, 26, (64, 6)), [0, 1] * 32, strict=True)]
    listener = train_listener(tmp_path, clips, clips, 2, PartSchedule(steps=(40,), rate=3e-3, warmup=5), "cpu")
    [right, wrong] = listener.nats_per_letter([clips[0].text, clips[1].text], [clips[0].codes] * 2, [0, 0])
    assert right < 1 < wrong
