"""The networks of Whisper in plain PyTorch, inference only, with OpenAI's parameter names."""

from ane.bundles.family import Network
from ane.models.whisper.networks.audio_encoder import WhisperEncoder, WhisperEncoderConfig
from ane.models.whisper.networks.text_decoder import WhisperDecoder, WhisperDecoderConfig

WHISPER_NETWORKS = {network.name: network for network in (
    Network("encoder", WhisperEncoder, WhisperEncoderConfig, "model.safetensors", prefix="encoder.",
            half_precision=True, quantised=True, compressed=True),
    Network("decoder", WhisperDecoder, WhisperDecoderConfig, "model.safetensors", prefix="decoder.",
            half_precision=True, quantised=True, compressed=True),
)}
