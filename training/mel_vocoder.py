"""Training of the fast voice's vocoder by spectra alone: HiFi-GAN from the teacher's mels, then from FastSpeech's.

FastSpeech predicts a mel with the teacher's durations, so that it lies frame by frame over the teacher's sound.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ane.models.fastspeech.stages import HIGHEST, HOP, SAMPLE_RATE
from ane.models.vocoders.hifigan import MelHifigan, MelHifiganConfig
from training.timed_speech import TimedClip, load_timed_shard
from training.trained_mel import BANDS
from training.trainer import PartSchedule, Trainer
from training.vocoders import CLIP_ENDS, SpectralLoss, batch_of, initialise_convolutions, without_edges

FRAMES = 40         # of a crop
# With it, oneDNN 3.12 returns wrong gradients in bfloat16 for transposed convolutions of few channels, such as 16 to 8
AMX = torch.cpu._is_amx_tile_supported()


def train_mel_vocoder(folder: Path, config: MelHifiganConfig, shards: Sequence[Path], schedule: PartSchedule,
                      predicted_from: int, predict: Callable[[TimedClip], np.ndarray], batch: int,
                      device: str) -> MelHifigan:
    """Train a vocoder.

    Args:
        predicted_from: the step from which it is given the mels (L, 80) of ``predict``, as it will be in use.
    """
    torch.manual_seed(schedule.seed)
    network, loss = MelHifigan(config), SpectralLoss(SAMPLE_RATE, BANDS, HIGHEST).to(device)
    initialise_convolutions(network)
    trainer = Trainer(folder, network, schedule, device)
    if trainer.finished:
        return network.eval()
    clips = [clip for shard in shards for clip in load_timed_shard(shard) if len(clip.mel) > FRAMES]
    predicted = cache(predict)

    def step(index: int, generator: torch.Generator) -> dict[str, Tensor]:
        draw = float(torch.rand((), generator=generator))
        at_start, at_end = draw < CLIP_ENDS, draw > 1 - CLIP_ENDS     # where it reads zeros, which are loud mels

        def crop(clip_index: int, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
            clip = clips[clip_index]
            mel = predicted(clip) if index >= predicted_from else clip.mel
            last = len(mel) - FRAMES
            random = int(torch.randint(last + 1, (), generator=generator))
            first = 0 if at_start else last if at_end else random
            wave = clip.audio[first * HOP:(first + FRAMES) * HOP].astype(np.float32) / 32767
            return mel[first:first + FRAMES].T.astype(np.float32), wave

        _, mels, waves = batch_of(crop, len(clips), batch, generator, device)
        kind = torch.device(device).type
        with torch.autocast(kind, torch.bfloat16, enabled=kind != "cpu" or not AMX):
            output = network(mels)[:, 0]
        return {"loss": loss(without_edges(output.float(), at_start, at_end), without_edges(waves, at_start, at_end))}

    trainer.run(step)
    return network.eval()
