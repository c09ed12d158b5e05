"""The networks of the FastSpeech family: FastSpeech itself, and the HiFi-GAN imported with it."""

from ane.bundles.family import Network
from ane.models.fastspeech.networks.acoustic import FastSpeech, FastSpeechConfig
from ane.models.vocoders.hifigan import MelHifigan, MelHifiganConfig

NETWORKS = {network.name: network for network in (
    Network("fastspeech", FastSpeech, FastSpeechConfig, "the FastSpeech checkpoint", half_precision=True,
            for_speech=True),
    Network("vocoder", MelHifigan, MelHifiganConfig, "the HiFi-GAN checkpoint", for_speech=True),
)}
