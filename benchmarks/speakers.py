"""The speech that the quality benchmarks score: the teacher's, its codes resynthesised, presets, candidates."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import ane
from ane.audio import resample, write
from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer
from ane.models.tortoise.candidate import Candidate, Prompt
from ane.models.tortoise.chunks import text_tokens
from ane.models.tortoise.decoding import decode
from ane.models.tortoise.diffusion import spectrogram
from ane.models.tortoise.embeddings import Embeddings
from ane.models.tortoise.randomness import Randomness
from ane.models.tortoise.ranking import best_candidates, score_candidates
from ane.models.tortoise.sampling import InverseCdfSampler
from ane.models.tortoise.settings import SAMPLE_RATE, Settings
from ane.models.tortoise.synthesizer import Synthesizer
from ane.models.tortoise.vocoding import UnivnetSound, hifigan_sound, joined
from ane.system.errors import UserError
from ane.text import Tokenizer
from ane.voices import Voice
from training.quantiser import Quantiser
from training.recipe import ENTRIES, load_recipe
from training.speech import RATE, Flite, code_mel

CANDIDATES, SETS = 8, 2         # candidates of a set, from which CLVP chooses one; sets for each sentence
SEED = 7


@dataclass
class SpokenText:
    """A sentence's speech: audio (S,) float32 at 24 kHz, and whether it ended with a stop code."""

    text: str
    audio: np.ndarray
    stopped: bool = True


def speak_all(synthesizer: Synthesizer, sentences: Sequence[str], voice: str, preset: str) -> Iterable[SpokenText]:
    for index, text in enumerate(sentences):
        speech = synthesizer.speak(text, voice, preset, seed=SEED + index)
        yield SpokenText(text, speech.audio, not speech.notes)


def speak_plainly(synthesizer: FastSpeechSynthesizer, sentences: Sequence[str]) -> Iterable[SpokenText]:
    for text in sentences:
        speech = synthesizer.speak(text)
        yield SpokenText(text, resample(speech.audio, speech.sample_rate, SAMPLE_RATE), not speech.notes)


def speak_teacher(sentences: Sequence[str], voice: str, flite: Flite) -> Iterable[SpokenText]:
    for text in sentences:
        yield SpokenText(text, resample(flite.speak(text.lower(), voice), RATE, SAMPLE_RATE))


def speak_codes(synthesizer: Synthesizer, teacher: Iterable[SpokenText], voice: Voice,
                codes_of: Callable[[np.ndarray], np.ndarray], preset: str) -> Iterable[SpokenText]:
    """The codes of the teacher's speech, resynthesised by decoder latents, diffusion and UnivNet."""
    backend, model = synthesizer.backend, synthesizer.model
    config, tables = model.config("autoregressive"), Embeddings(**synthesizer.backend.embeddings())
    tokenizer, settings = Tokenizer(model.tokenizer), Settings.of(preset, model.settings)
    for index, spoken in enumerate(teacher):
        codes = np.concatenate((codes_of(resample(spoken.audio, SAMPLE_RATE, RATE)),
                                np.full(config.calm_run - 1, config.calm_token)))
        decoder = backend.decoder(1, len(codes))
        first, _ = decoder.prefill(tables.prefix(voice.ar, text_tokens(tokenizer.encode(spoken.text), config), config))
        columns = tables.codes(codes, np.arange(1, len(codes) + 1))
        hidden, _ = decoder.step(columns[None], np.array([0]))
        latents = np.concatenate((first[None], hidden[0]))
        randomness = Randomness(SEED + index)
        mel = spectrogram(backend, latents, voice.diffusion, settings.diffusion, randomness.diffusion(0, 0),
                          prediction=model.config("diffusion").prediction)
        yield SpokenText(spoken.text, univnet_audio(synthesizer, mel, randomness))


def univnet_audio(synthesizer: Synthesizer, mel: np.ndarray, randomness: Randomness) -> np.ndarray:
    """UnivNet's audio (256·L,) float32 of a mel (1, 100, L), with the noise of a request's first chunk."""
    return joined(UnivnetSound(synthesizer.backend, synthesizer.model.config("univnet"), randomness.vocoder(0, 0)),
                  mel[0])


def sample_candidates(synthesizer: Synthesizer, text: str, voice: Voice, count: int,
                      randomness: Randomness) -> tuple[list[int], list[Candidate]]:
    """A sentence's token ids, and ``count`` candidates of it, as the model's own settings sample them."""
    model = synthesizer.model
    config, settings = model.config("autoregressive"), Settings.of(model=model.settings)
    tokens = text_tokens(Tokenizer(model.tokenizer).encode(text), config)
    choices = [InverseCdfSampler(randomness.candidate(0, index)) for index in range(count)]
    [found] = decode(synthesizer.backend, [Prompt(voice.ar, tokens, choices)], config, settings.sampling)
    return tokens, found


def ranked_candidates(synthesizer: Synthesizer, sentences: Sequence[str],
                      voice: Voice) -> tuple[list[list[SpokenText]], list[list[int]]]:
    """``SETS`` · ``CANDIDATES`` candidates of each sentence, spoken by HiFi-GAN, and CLVP's choice in each set."""
    backend, spoken, chosen = synthesizer.backend, [], []
    for index, text in enumerate(sentences):
        tokens, found = sample_candidates(synthesizer, text, voice, SETS * CANDIDATES, Randomness(SEED + index))
        spoken.append([SpokenText(text, hifigan_sound(backend, voice.ar, c.hidden), c.stopped) for c in found])
        scores = score_candidates(backend, tokens, np.stack([c.padded_codes for c in found]))
        chosen.append([best_candidates(some, 1)[0] for some in scores.reshape(SETS, CANDIDATES)])
    return spoken, chosen


def save_all(made: Iterable[SpokenText], folder: Path | None, name: str) -> Iterable[SpokenText]:
    """Write each to FOLDER/NAME-NNN.wav (``folder`` None: to no file), and yield it."""
    for index, one in enumerate(made):
        if folder is not None:
            write(folder / f"{name}-{index:03d}.wav", one.audio, SAMPLE_RATE)
        yield one


def teacher_quantiser(folder: Path, voice: str) -> Callable[[np.ndarray], np.ndarray]:
    """The quantiser of a training run: a voice's audio (S,) float32 at 16 kHz → codes (n,) int64.

    Raises:
        UserError: the run has none, or none for this voice.
    """
    checkpoint = folder / "quantiser" / "checkpoint.pt"
    if not checkpoint.exists():
        raise UserError(f"{folder} has no quantiser: --run takes the folder of `python -m training -o`")
    voices = load_recipe().voices
    if voice not in voices:
        raise UserError(f"voice {voice}: the quantiser knows {', '.join(voices)}; measure this bundle without --run")
    quantiser = Quantiser(ENTRIES, len(voices))
    try:
        quantiser.load_state_dict(torch.load(checkpoint, weights_only=True)["module"])
    except RuntimeError as error:
        raise UserError(f"{checkpoint} was made by another recipe: measure its bundle without --run") from error
    norms, speaker = ane.load("demo").model.mel_norms, torch.tensor([voices.index(voice)])

    @torch.no_grad()
    def codes(audio: np.ndarray) -> np.ndarray:
        return quantiser.codes(torch.from_numpy(code_mel(audio, norms))[None], speaker)[0].numpy()

    return codes
