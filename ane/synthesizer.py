"""The whole route on one page: text and a voice in, 24 kHz speech out."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from ane import places
from ane.autoregressive import Candidate, decode, fits, most_tokens, text_tokens
from ane.diffusion import frames_of, spectrogram
from ane.errors import UserError
from ane.model import Model
from ane.networks.univnet import SILENT_FRAMES
from ane.randomness import Randomness
from ane.ranking import best, check_clips, score
from ane.sampling import by_inverse_cdf
from ane.settings import Settings
from ane.stages import Backend
from ane.text import Tokenizer, nothing_to_say, shortened, split
from ane.trimming import trimmed
from ane.voices import Voice, not_cloned, resolve_voice

SAMPLE_RATE = 24000

# stage, how much of it is done, how much there is, what to say beside it
Progress = Callable[[str, int, int, str], None]


def silent(stage: str, done: int, total: int, note: str) -> None:
    """The progress of nobody watching."""


@dataclass
class Speech:
    """What was spoken.

    Attributes:
        audio: (S,) float32 within ±1 at ``sample_rate``.
        alternatives: the second-best reading and so on, when more than one was asked for.
        seed: with the same text, voice and settings, it speaks the same again.
        voice: its name.
        chunks: the pieces of text that were spoken in one go.
        codes: codes sampled, in all candidates.
        spent: wall-clock seconds a stage, in the order the stages ran.
        notes: what the user should know about this result.
    """

    audio: np.ndarray
    seed: int
    voice: str
    chunks: list[str]
    codes: int
    alternatives: list[np.ndarray] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    sample_rate: int = SAMPLE_RATE

    @property
    def seconds(self) -> float:
        return len(self.audio) / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of audio."""
        return sum(self.spent.values()) / self.seconds


class Synthesizer:
    """A model on an engine, ready to speak."""

    def __init__(self, model: Model, backend: Backend):
        self.model, self.backend = model, backend

    def speak(self, text: str, voice: str | Voice | None = None, preset: str | None = None, seed: int | None = None,
              settings: Settings | None = None, progress: Progress = silent) -> Speech:
        """Say ``text``.

        All chunks are decoded, then all diffused, then all made sound: few networks are loaded at a time.

        Args:
            voice: a name, a path or a mix as on the command line, or a ``Voice``; None: the model's default.
            preset: a name of ``ane.settings.PRESETS``, taken with the model's own settings; None: the model's default;
                not looked at when ``settings`` are given.
            seed: from 0 up; None: a fresh one, which the result states.
            progress: called as (stage, done, total, note) while work goes on.

        Raises:
            UserError: nothing to say, too long a text with splitting off, an unknown or unfit voice, a network that
                the model lacks, no memory left.
        """
        settings = settings or Settings.of(preset, self.model.settings)
        randomness = Randomness(secrets.randbits(32) if seed is None else seed)
        chunks, tokens = self._tokens(text, settings)
        self._require(settings)
        spent: dict[str, float] = {}
        with timed("voice", spent):
            voice = self._voice(voice, randomness)
        if settings.ranked:
            check_clips(settings.cvvp_amount, voice.clip_mels)
        kept, codes = [], 0
        for chunk, ids in enumerate(tokens):        # ranked at once: all candidates of a book would fill the memory
            with timed("decode", spent):
                readings = self._read(chunk, ids, len(tokens), voice, settings, randomness, progress)
                if chunk + 1 == len(tokens):
                    self.backend.release("autoregressive")
            with timed("rank", spent):
                best_first = self._rank(chunk, ids, len(tokens), readings, voice, settings, progress)
                kept.append([thinned(candidate, settings) for candidate in best_first])
                self.backend.release("clvp", "cvvp")
            codes += sum(len(candidate.codes) for candidate in readings)
            del readings, best_first        # the arrays of all but the kept ones: the next chunk needs the room
        make = self._fast if settings.diffusion is None else self._diffused
        waves = make(kept, voice, settings, randomness, spent, progress)
        audio = [np.concatenate([trimmed(chunk[rank], settings.silence) for chunk in waves])
                 for rank in range(settings.best)]
        said = [*not_cloned(self.model, voice), *unstopped(kept)]
        return Speech(audio[0], randomness.seed, voice.name, chunks, codes, audio[1:], spent, said)

    def _tokens(self, text: str, settings: Settings) -> tuple[list[str], list[list[int]]]:
        """The chunks that have something to say, and their token ids.

        A chunk that the normaliser made too long for the decoder (figures, say) is split again, smaller; one of which
        it left nothing (markup, say) is passed over, unless all are.
        """
        tokenizer = Tokenizer(self.model.tokenizer, settings.normaliser)
        config = self.model.config("autoregressive")

        def fitting(chunk: str, desired: int, maximum: int) -> list[tuple[str, list[int]]]:
            ids = tokenizer.spoken(chunk)
            if not ids:
                return []
            if fits(ids, config):
                return [(chunk, text_tokens(ids, config))]
            if maximum == 1:
                raise UserError(f"{shortened(chunk)!r} is {len(ids)} tokens long, the decoder takes at most "
                                f"{most_tokens(config)} in one go, and it has no place to be split at: break it up "
                                "with spaces, or shorten it")
            shorter = max(1, desired // 2), maximum // 2
            return [part for piece in split(chunk, *shorter) for part in fitting(piece, *shorter)]

        if settings.split is None:
            return [text], [text_tokens(tokenizer.encode(text), config)]
        parts = [part for chunk in split(text, *settings.split) for part in fitting(chunk, *settings.split)]
        if not parts:
            raise nothing_to_say(text)
        return [chunk for chunk, _ in parts], [ids for _, ids in parts]

    def _require(self, settings: Settings) -> None:
        """Fail before any work if a network that will be needed is not there."""
        needed = ["autoregressive", *(["hifigan"] if settings.diffusion is None else ["diffusion", "univnet"])]
        if settings.ranked and settings.cvvp_amount < 1:
            needed.append("clvp")
        if settings.cvvp_amount:
            needed.append("cvvp")
        for network in needed:
            self.model.require(network)

    def _voice(self, voice: str | Voice | None, randomness: Randomness) -> Voice:
        if isinstance(voice, Voice):
            voice.check_widths(self.model.widths)
            return voice
        folders = [folder for folder in (self.model.voices, places.voices_dir()) if folder is not None]
        wanted = self.model.default_voice if voice is None else voice
        return resolve_voice(wanted, folders=folders, backend=self.backend, mel_norms=self.model.mel_norms,
                             model_id=self.model.identity, widths=self.model.widths, rng=randomness.voice())

    def _read(self, chunk: int, tokens: list[int], chunks: int, voice: Voice, settings: Settings,
              randomness: Randomness, progress: Progress) -> list[Candidate]:
        count = settings.candidates
        choices = [by_inverse_cdf(randomness.candidate(chunk, index)) for index in range(count)]

        def report(codes: int, finished: int) -> None:
            progress("decode", chunk * count + finished, chunks * count, f"{codes} codes")

        return decode(self.backend, voice.ar, tokens, self.model.config("autoregressive"), settings.sampling, choices,
                      settings.lanes, report)

    def _rank(self, chunk: int, tokens: list[int], chunks: int, candidates: list[Candidate], voice: Voice,
              settings: Settings, progress: Progress) -> list[Candidate]:
        """The best candidates of a chunk, best first; a single one needs no opinion."""
        if not settings.ranked:
            return candidates

        def report(done: int) -> None:
            progress("rank", chunk * settings.candidates + done, chunks * settings.candidates, "")

        mels = np.stack(voice.clip_mels) if settings.cvvp_amount else None
        scores = score(self.backend, tokens, np.stack([candidate.fixed for candidate in candidates]),
                       settings.cvvp_amount, mels, report)
        return [candidates[index] for index in best(scores, settings.best)]

    def _fast(self, kept: list[list[Candidate]], voice: Voice, settings: Settings, randomness: Randomness,
              spent: dict[str, float], progress: Progress) -> list[list[np.ndarray]]:
        """Latents to sound by HiFi-GAN: the stop code's latent included, nothing trimmed (upstream api_fast.py)."""
        def sound(chunk: int, rank: int, candidate: Candidate) -> np.ndarray:
            return self.backend.run("hifigan", latents=candidate.hidden[None], conditioning=voice.ar)[0, 0]

        with timed("vocode", spent):
            waves = for_all(kept, sound, "vocode", progress)
            self.backend.release("hifigan")
        return waves

    def _diffused(self, kept: list[list[Candidate]], voice: Voice, settings: Settings, randomness: Randomness,
                  spent: dict[str, float], progress: Progress) -> list[list[np.ndarray]]:
        """Latents to mels by diffusion, then mels to sound by UnivNet."""
        total = sum(map(len, kept)) * settings.diffusion.steps

        def mel(chunk: int, rank: int, candidate: Candidate) -> np.ndarray:
            before = (chunk * settings.best + rank) * settings.diffusion.steps

            def report(done: int, steps: int) -> None:
                progress("diffuse", before + done, total, f"{frames_of(len(candidate.latents))} frames")

            return spectrogram(self.backend, candidate.latents, voice.diffusion, settings.diffusion,
                               randomness.diffusion(chunk, rank), report,
                               self.model.config("diffusion").prediction)

        def sound(chunk: int, rank: int, mel: np.ndarray) -> np.ndarray:
            shape = (1, self.model.config("univnet").noise_dim, mel.shape[-1] + SILENT_FRAMES)
            noise = randomness.vocoder(chunk, rank).standard_normal(shape, dtype=np.float32)
            return self.backend.run("univnet", mel=mel, noise=noise)[0, 0]

        with timed("diffuse", spent):
            mels = for_all(kept, mel)
            self.backend.release("diffusion")
        with timed("vocode", spent):
            waves = for_all(mels, sound, "vocode", progress)
            self.backend.release("univnet")
        return waves


def thinned(candidate: Candidate, settings: Settings) -> Candidate:
    """A candidate without the array that its route to sound does not read: a book keeps thousands of them."""
    unread = "latents" if settings.diffusion is None else "hidden"
    return replace(candidate, **{unread: np.empty((0, candidate.hidden.shape[1]), np.float32)})


def for_all(items: list[list], make: Callable, stage: str = "", progress: Progress = silent) -> list[list]:
    """``make(chunk, rank, item)`` for the items of every chunk."""
    made: list[list] = []
    for chunk, row in enumerate(items):
        made.append([make(chunk, rank, item) for rank, item in enumerate(row)])
        progress(stage, chunk + 1, len(items), "")
    return made


@contextmanager
def timed(stage: str, spent: dict[str, float]) -> Iterator[None]:
    started = time.perf_counter()
    yield
    spent[stage] = spent.get(stage, 0.0) + time.perf_counter() - started


def unstopped(kept: list[list[Candidate]]) -> list[str]:
    """What the user should know when a chunk's best reading had to be cut off."""
    chunks = [str(chunk + 1) for chunk, row in enumerate(kept) if not row[0].stopped]
    if not chunks:
        return []
    return [f"no end was found for chunk {', '.join(chunks)}: the speech may be cut off or ramble; "
            "try another --seed, more --candidates or shorter sentences"]
