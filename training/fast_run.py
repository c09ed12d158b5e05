"""A training run of the fast voice: each part reads what earlier parts wrote to the run's folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ane.models.fastspeech.networks.acoustic import FastSpeech
from ane.models.vocoders.hifigan import MelHifigan
from training.acoustic import predicted_mel, train_fastspeech
from training.fast_recipe import FAST_CONFIGS, FAST_PARTS, FastRecipe
from training.mel_vocoder import train_mel_vocoder
from training.speech import clips_in, shard_size
from training.symbols import TeacherLexicon, timed_symbols
from training.text import texts_of_a_run
from training.timed_speech import TimedClip, speak_all_timed


@dataclass
class FastTrainingRun:
    """A run in a folder. The parts are properties, computed or loaded from the folder on first use.

    Attributes:
        libraries: folder of flite's libraries; None: where the system has them.
    """

    folder: Path
    recipe: FastRecipe
    device: str
    libraries: str | None
    wordnet: Path
    workers: int

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """The parts that several processes may share."""
        return FAST_PARTS

    @property
    def has_data(self) -> bool:
        """Whether what the shared parts are trained on has been written."""
        clips = clips_in(self.recipe.hours)
        return len(list((self.folder / "speech").glob("*.npz"))) >= clips / shard_size(clips)

    @cached_property
    def texts(self) -> list[str]:
        return texts_of_a_run(self.folder, self.wordnet, clips_in(self.recipe.hours), self.recipe.seed)

    @cached_property
    def shards(self) -> list[Path]:
        """The first of them is for validation."""
        return speak_all_timed(self.folder / "speech", self.texts, self.recipe.voice, self.libraries, self.recipe.seed,
                               self.workers)

    @cached_property
    def lexicon(self) -> TeacherLexicon:
        return TeacherLexicon(self.recipe.voice, self.libraries)

    @cached_property
    def fastspeech(self) -> FastSpeech:
        return train_fastspeech(self.folder / "fastspeech", FAST_CONFIGS["fastspeech"], self.shards[1:],
                                self.shards[:1], self.lexicon, self.recipe.parts["fastspeech"], self.device)

    @property
    def vocoder_shards(self) -> Sequence[Path]:
        count = clips_in(self.recipe.vocoder_hours) / shard_size(len(self.texts))
        return self.shards[:max(1, round(count))]

    @cached_property
    def vocoder(self) -> MelHifigan:
        return train_mel_vocoder(self.folder / "vocoder", FAST_CONFIGS["vocoder"], self.vocoder_shards,
                                 self.recipe.parts["vocoder"], self.recipe.predicted_from, self.predicted_mel,
                                 self.recipe.crops, self.device)

    def predicted_mel(self, clip: TimedClip) -> np.ndarray:
        """The mel (L, M) of a clip by FastSpeech, with the teacher's durations."""
        return predicted_mel(self.fastspeech, timed_symbols(clip, self.lexicon))


# each needs only parts before it
FAST_RUN_PARTS = ("texts", "shards", "fastspeech", "vocoder")
