"""Text and a voice in, 24 kHz speech out: whole, for one text or many, or while it is made."""

import secrets
from collections.abc import Iterator, Sequence

import numpy as np

from ane.backends.base import Backend
from ane.bundles import Model
from ane.models.tortoise.chunks import parts_of
from ane.models.tortoise.pipeline import Progress, Route, Sound, Told, silent
from ane.models.tortoise.randomness import Randomness
from ane.models.tortoise.ranking import check_clips
from ane.models.tortoise.result import SAMPLE_RATE, Speech
from ane.models.tortoise.settings import Settings
from ane.models.tortoise.voice_resolution import not_cloned, resolve_voice
from ane.system import paths
from ane.system.errors import UserError
from ane.system.iterators import closing_source
from ane.system.timeline import Timeline
from ane.voices import Voice


class Synthesizer:
    """A model on an engine, ready to speak.

    Args:
        side_by_side: steps run ahead of each other in threads when there is more than one chunk (None: where the
            backend says that it gains by it). It costs memory: all networks stay loaded.
    """

    def __init__(self, model: Model, backend: Backend, side_by_side: bool | None = None):
        self.model, self.backend = model, backend
        self.side_by_side = getattr(backend, "side_by_side", False) if side_by_side is None else side_by_side

    def speak(self, text: str, voice: str | Voice | None = None, preset: str | None = None,
              seed: int | None = None, settings: Settings | None = None, progress: Progress = silent,
              timeline: Timeline | None = None) -> Speech:
        """Say ``text``.

        Args:
            voice: a name, a path or a mix as on the command line, or a ``Voice``; None: the model's default.
            preset: a name of ``ane.models.tortoise.settings.PRESETS``, taken with the model's own settings; None: the model's default;
                not looked at when ``settings`` are given.
            seed: from 0 up; None: a fresh one, which the result states.
            progress: called as (stage, done, total, note) while work goes on.
            timeline: goes on with one that began before (None: a new one).

        Raises:
            UserError: nothing to say, too long a text with splitting off, an unknown or unfit voice, a network that
                the model lacks, no memory left.
        """
        [speech] = self.speak_all([text], voice, preset, seed, settings, progress, timeline)
        return speech

    def speak_all(self, texts: Sequence[str], voice: str | Voice | None = None, preset: str | None = None,
                  seed: int | None = None, settings: Settings | None = None, progress: Progress = silent,
                  timeline: Timeline | None = None) -> Iterator[Speech]:
        """Say several texts, each as ``speak`` says it with the same seed; they share the decoder's lanes.

        Nothing is done before the first is asked for, and each comes as soon as it and those before it are there.
        """
        prepared = Prepared(self, texts, voice, preset, seed, settings, timeline)
        route = prepared.route(progress)
        sounds = route.sounds([part for parts in prepared.texts for part in parts])
        began = prepared.timeline.text_ready
        with closing_source(sounds):
            for parts in prepared.texts:
                yield prepared.speech([next(sounds) for _ in parts], began)
                began = prepared.timeline.now()

    def stream(self, text: str, voice: str | Voice | None = None, preset: str | None = None,
               seed: int | None = None, settings: Settings | None = None, progress: Progress = silent,
               timeline: Timeline | None = None) -> "Stream":
        """Say ``text``, and give its sound while it is made. Arguments and errors: ``speak``.

        Without diffusion the pieces join to just what ``speak`` gives. With it, a long chunk is diffused in windows
        (``ane.models.tortoise.windows``), so that its sound is another draft of the same speech.
        """
        return Stream(Prepared(self, [text], voice, preset, seed, settings, timeline), progress)

    def prepare(self, voice: str | Voice | None = None, settings: Settings | None = None) -> Voice:
        """Load what does not depend on the text: the voice, and the networks that settings need. Gives the voice."""
        settings = settings or Settings.of(model=self.model.settings)
        self.require(settings)
        self.backend.load(*self.needed(settings))
        parts_of("1", self.model, settings)         # what spells numbers out takes a second to load
        return self.voice(voice, Randomness(0))

    def needed(self, settings: Settings) -> list[str]:
        """Networks that speaking with these settings takes."""
        needed = ["autoregressive", *(["hifigan"] if settings.diffusion is None else ["diffusion", "univnet"])]
        if settings.ranked and settings.cvvp_amount < 1:
            needed.append("clvp")
        if settings.cvvp_amount:
            needed.append("cvvp")
        return needed

    def require(self, settings: Settings) -> None:
        """Fail before any work if a network that will be needed is not there."""
        for network in self.needed(settings):
            self.model.require(network)

    def voice(self, voice: str | Voice | None, randomness: Randomness) -> Voice:
        """The voice meant. Raises UserError: unknown, or not of this model."""
        if isinstance(voice, Voice):
            voice.check_widths(self.model.widths)
            return voice
        folders = [folder for folder in (self.model.voices, paths.voices_dir()) if folder is not None]
        wanted = self.model.default_voice if voice is None else voice
        return resolve_voice(wanted, folders=folders, backend=self.backend, mel_norms=self.model.mel_norms,
                             model_id=self.model.identity, widths=self.model.widths, rng=randomness.voice())


class Prepared:
    """A request that was understood: its texts in parts, its voice, its random numbers."""

    def __init__(self, synthesizer: Synthesizer, texts: Sequence[str], voice: str | Voice | None, preset: str | None,
                 seed: int | None, settings: Settings | None, timeline: Timeline | None):
        self.synthesizer, self.model = synthesizer, synthesizer.model
        self.timeline = timeline or Timeline()
        self.timeline.mark_text_ready()
        self.before: dict[str, float] = {}          # seconds spent on the texts before
        self.settings = settings or Settings.of(preset, self.model.settings)
        self.randomness = Randomness(secrets.randbits(32) if seed is None else seed)
        self.texts = [parts_of(text, self.model, self.settings) for text in texts]
        synthesizer.require(self.settings)
        with self.timeline.record("voice"):
            self.voice = synthesizer.voice(voice, self.randomness)
        if self.settings.ranked:
            check_clips(self.settings.cvvp_amount, self.voice.clip_mels)

    def route(self, progress: Progress) -> Route:
        parts = sum(map(len, self.texts))
        return Route(self.model, self.synthesizer.backend, self.voice, self.settings, self.randomness, parts,
                     self.timeline, progress, self.synthesizer.side_by_side and parts > 1)

    def speech(self, sounds: list[Sound], began: float) -> Speech:
        self.timeline.mark_first_sound()
        audio = [np.concatenate([sound.audio[rank] for sound in sounds]) for rank in range(self.settings.best)]
        told = [sound.told for sound in sounds]
        spent = {stage: seconds - self.before.get(stage, 0.0) for stage, seconds in self.timeline.spent().items()}
        self.before = self.timeline.spent()
        return Speech(audio[0], self.randomness.seed, self.voice.name, [one.part.text for one in told],
                      sum(one.codes for one in told), audio[1:], spent, self.timeline.now() - began, self.notes(told),
                      self.timeline)

    def notes(self, told: Sequence[Told]) -> list[str]:
        return [*not_cloned(self.model, self.voice), *unstopped(told)]


class Stream(Iterator[np.ndarray]):
    """Sound while it is made: pieces (m,) float32 within ±1 at ``sample_rate``, together as long as the speech.

    Work is done while a piece is waited for; ``close`` ends it within a step. What ``ane.models.tortoise.result.Speech`` tells of the
    whole, ``codes``, ``notes``, ``seconds``, ``spent``, ``took``, this tells of what has been given so far.
    """

    sample_rate = SAMPLE_RATE

    def __init__(self, prepared: Prepared, progress: Progress):
        if prepared.settings.best > 1:
            raise UserError("a stream gives the best reading alone: ask for one (--best)")
        self._prepared, self._samples = prepared, 0
        self._told: list[Told] = []
        self.seed, self.voice, self.timeline = prepared.randomness.seed, prepared.voice.name, prepared.timeline
        parts = prepared.texts[0]
        self.chunks = [part.text for part in parts]
        self._pieces = prepared.route(progress).pieces(parts, self._told.append)
        self.took = 0.0

    def __next__(self) -> np.ndarray:
        try:
            piece = next(self._pieces)
        finally:
            self.took = self.timeline.now() - self.timeline.text_ready
        self._samples += len(piece)
        return piece

    def close(self) -> None:
        """End the work, and let the networks go."""
        self._pieces.close()

    @property
    def codes(self) -> int:
        return sum(one.codes for one in self._told)

    @property
    def notes(self) -> list[str]:
        return self._prepared.notes(self._told)

    @property
    def seconds(self) -> float:
        return self._samples / self.sample_rate

    @property
    def spent(self) -> dict[str, float]:
        return self.timeline.spent()

    @property
    def real_time_factor(self) -> float:
        """Seconds for a second of audio, who listened included; infinite before there is any."""
        return self.took / self.seconds if self._samples else float("inf")


def unstopped(told: Sequence[Told]) -> list[str]:
    """What the user should know when a chunk's best reading had to be cut off."""
    chunks = [str(one.part.index + 1) for one in told if not one.stopped]
    if not chunks:
        return []
    return [f"no end was found for chunk {', '.join(chunks)}: the speech may be cut off or ramble; "
            "try another --seed, more --candidates or shorter sentences"]
