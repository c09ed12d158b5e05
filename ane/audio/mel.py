"""Compute the two log-mel spectrograms that Tortoise needs, scale them for its diffusion model, and invert a mel.

The spectrograms are computed on the CPU in float64 and rounded once, so that every machine computes the same numbers
for a clip.
"""

import numpy as np

# sample rate of the audio in Hz for the autoregressive model's mel (upstream models/arch_util.py, TorchMelSpectrogram)
CONDITIONING_RATE = 22050
# sample rate of the audio in Hz for the diffusion model's mel (upstream utils/audio.py, wav_to_univnet_mel)
DIFFUSION_RATE = 24000
WINDOW = 1024  # both mels have this many samples per Fourier transform
HOP = 256  # both mels have this many samples from one frame to the next
FLOOR = 1e-5  # smaller values become this value before the logarithm

# natural logarithms that become 1 and -1 in the diffusion model's scale (upstream utils/audio.py)
MEL_MAX = 2.3143386840820312
MEL_MIN = -11.512925148010254  # ln(FLOOR) in float32


def conditioning_mel(audio: np.ndarray, mel_norms: np.ndarray) -> np.ndarray:
    """Compute the mel spectrogram for the autoregressive model.

    The power spectrum is summed in 80 bands from 0 to 8 kHz on the HTK scale. Each band has unit area (Slaney's
    normalisation). The result is the natural logarithm of each band's power, divided by the band's norm.

    Args:
        audio: (S,) float32 at 22050 Hz, more than 512 samples.
        mel_norms: Norms of the bands, (80,) float32 (upstream data/mel_norms.pth).

    Returns:
        (80 bands, 1 + S // 256 frames) float32.
    """
    bands = mel_filters(CONDITIONING_RATE, 80, 8000.0, "htk") @ _magnitude(audio) ** 2
    return (_log(bands) / mel_norms.astype(np.float64)[:, None]).astype(np.float32)


def diffusion_mel(audio: np.ndarray) -> np.ndarray:
    """Compute the mel spectrogram for the diffusion model, before ``normalise_mel``.

    The magnitudes are summed in 100 bands from 0 to 12 kHz on Slaney's scale. Each band has unit area. The result is
    the natural logarithm of each band's magnitude.

    Args:
        audio: (S,) float32 at 24000 Hz, more than 512 samples. The function clips it to [-1, 1].

    Returns:
        (100 bands, 1 + S // 256 frames) float32.
    """
    bands = mel_filters(DIFFUSION_RATE, 100, 12000.0, "slaney") @ _magnitude(np.clip(audio, -1.0, 1.0))
    return _log(bands).astype(np.float32)


def normalise_mel(mel: np.ndarray) -> np.ndarray:
    """Scale natural logarithms to [-1, 1] for the diffusion model. Shape and dtype do not change."""
    return 2 * (mel - MEL_MIN) / (MEL_MAX - MEL_MIN) - 1


def denormalise_mel(mel: np.ndarray) -> np.ndarray:
    """Invert ``normalise_mel``. The result is the natural logarithms that the vocoder takes."""
    return (mel + 1) / 2 * (MEL_MAX - MEL_MIN) + MEL_MIN


def mel_filters(rate: int, bands: int, high: float, scale: str, window: int = WINDOW) -> np.ndarray:
    """Return triangular filters that sum Fourier bins into mel bands. The area of each filter over hertz is 1.

    ``bands`` + 2 corners are equally spaced on the mel scale from 0 Hz to ``high`` Hz. The filter of band i rises from
    corner i to corner i + 1, and falls to corner i + 2 (librosa filters.mel, torchaudio melscale_fbanks with
    norm="slaney").

    Args:
        rate: Sample rate in Hz.
        bands: Number of bands.
        high: Upper corner of the last band in Hz.
        scale: Mel scale, "htk" or "slaney".
        window: Samples of the Fourier transform.

    Returns:
        (bands, 1 + window // 2 bins) float64.
    """
    to_mel, to_hertz = _SCALES[scale]
    corners = to_hertz(np.linspace(0.0, to_mel(np.array(high, np.float64)), bands + 2))  # (bands + 2,) Hz
    bins = np.linspace(0.0, rate / 2, 1 + window // 2)
    left, centre, right = (corners[i : i + bands, None] for i in range(3))
    rise = (bins - left) / (centre - left)
    fall = (right - bins) / (right - centre)
    return np.maximum(0.0, np.minimum(rise, fall)) * 2 / (right - left)


def htk_mel(hertz: np.ndarray) -> np.ndarray:
    """Convert hertz to mel with O'Shaughnessy's formula, as HTK does."""
    return 2595 * np.log10(1 + hertz / 700)


def htk_hertz(mel: np.ndarray) -> np.ndarray:
    """Invert ``htk_mel``."""
    return 700 * (10 ** (mel / 2595) - 1)


# the scale of Slaney's Auditory Toolbox is linear below 1 kHz (3 mel are 200 Hz) and logarithmic above it (27 mel are a
# factor of 6.4)
_KNEE_HERTZ = 1000.0
_KNEE_MEL = 15.0
_LOG_STEP = np.log(6.4) / 27


def slaney_mel(hertz: np.ndarray) -> np.ndarray:
    """Convert hertz to mel on Slaney's scale."""
    above = _KNEE_MEL + np.log(np.maximum(hertz, _KNEE_HERTZ) / _KNEE_HERTZ) / _LOG_STEP
    return np.where(hertz < _KNEE_HERTZ, hertz * 3 / 200, above)


def slaney_hertz(mel: np.ndarray) -> np.ndarray:
    """Invert ``slaney_mel``."""
    above = _KNEE_HERTZ * np.exp(_LOG_STEP * (np.maximum(mel, _KNEE_MEL) - _KNEE_MEL))
    return np.where(mel < _KNEE_MEL, mel * 200 / 3, above)


_SCALES = {"htk": (htk_mel, htk_hertz), "slaney": (slaney_mel, slaney_hertz)}
HANN = np.hanning(WINDOW + 1)[:-1]  # the periodic Hann window


def _spectrum(audio: np.ndarray) -> np.ndarray:
    """Compute the spectra of windows that begin at every 256th sample: (WINDOW + n,) → (1 + n // 256, 513) complex."""
    return np.fft.rfft(np.lib.stride_tricks.sliding_window_view(audio, WINDOW)[::HOP] * HANN)


def _magnitude(audio: np.ndarray) -> np.ndarray:
    """Compute the spectral magnitudes of audio: (S,) → (513 bins, 1 + S // 256 frames) float64.

    The audio is mirrored at its ends, so that frame i is centred at sample 256·i.
    """
    return np.abs(_spectrum(np.pad(audio.astype(np.float64), WINDOW // 2, mode="reflect"))).T


def _log(bands: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(bands, FLOOR))


MOMENTUM = 0.99
EDGE = (WINDOW - HOP) // 2  # samples of the first frame that lie before the sound, and of the last frame after it


def griffin_lim(mel: np.ndarray, rate: int, high: float, iterations: int = 32) -> np.ndarray:
    """Estimate the sound of a mel spectrogram, without a trained vocoder.

    The same mel always results in the same sound. The method is from Griffin and Lim 1984 (doi
    10.1109/TASSP.1984.1164317), with the momentum of Perraudin et al. 2013 (doi 10.1109/WASPAA.2013.6701851).

    Args:
        mel: (M bands, L frames) float32: natural logarithms of magnitudes in bands on Slaney's scale, from 0 Hz to
            ``high`` Hz.
        rate: Sample rate in Hz.
        high: Upper corner of the last band in Hz.
        iterations: Number of iterations.

    Returns:
        (256·L,) float32 within ±1.
    """
    if not mel.shape[1]:
        return np.zeros(0, np.float32)
    inverse = np.linalg.pinv(mel_filters(rate, mel.shape[0], high, "slaney"))  # (513, M)
    magnitudes = np.maximum(inverse @ np.exp(mel.astype(np.float64)), 0.0).T
    turns = np.random.default_rng(0).random(magnitudes.shape)
    phases, previous = np.exp(2j * np.pi * turns), np.zeros(magnitudes.shape, complex)
    for _ in range(iterations):
        spectrum = _spectrum(_overlap_add(magnitudes * phases))
        accelerated = spectrum + MOMENTUM * (spectrum - previous)
        phases, previous = accelerated / np.maximum(np.abs(accelerated), 1e-12), spectrum
    audio = _overlap_add(magnitudes * phases)[EDGE : EDGE + HOP * len(magnitudes)]
    return (audio / max(1.0, np.abs(audio).max())).astype(np.float32)


def _overlap_add(spectrum: np.ndarray) -> np.ndarray:
    """Return the sound whose spectra are closest to ``spectrum`` (L frames, 513), (WINDOW + HOP·(L − 1),) float64."""
    overlap = WINDOW // HOP
    frames = np.fft.irfft(spectrum, WINDOW) * HANN
    parts = len(frames) + overlap - 1
    audio, weight = np.zeros((parts, HOP)), np.zeros((parts, HOP))
    for part in range(overlap):  # a frame is four hops long
        audio[part : part + len(frames)] += frames[:, part * HOP : (part + 1) * HOP]
        weight[part : part + len(frames)] += HANN[part * HOP : (part + 1) * HOP] ** 2
    return (audio / np.maximum(weight, 1e-3)).reshape(-1)
