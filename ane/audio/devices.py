"""List the sound devices that play, and find one by its name or number."""

from dataclasses import dataclass
from typing import Any

from ane.system.errors import UserError
from ane.system.streams import silent_c_libraries


@dataclass(frozen=True)
class SoundDevice:
    """A sound device of the system, with miniaudio's handle for it."""

    name: str
    handle: Any


def real_backends() -> list[Any]:
    """Return miniaudio's backends, except the Null backend, which discards sound without an error."""
    import miniaudio  # takes 0.1 s

    return [backend for backend in miniaudio.Backend if backend.name not in ("NULL", "CUSTOM")]


def playback_devices() -> list[SoundDevice]:
    """List the devices that can play sound, in the system's order. Raises UserError if there is none."""
    import miniaudio

    try:
        with silent_c_libraries():
            devices = miniaudio.Devices(real_backends()).get_playbacks()
    except miniaudio.MiniaudioError as error:
        raise UserError(
            f"the sound devices cannot be listed ({' '.join(map(str, error.args))}): write a file instead, with "
            "-o speech.wav"
        ) from error
    if not devices:
        raise UserError("this machine has no sound device: write a file instead, with -o speech.wav")
    return [SoundDevice(device["name"], device["id"]) for device in devices]


def find_device(wanted: str) -> SoundDevice:
    """Find a sound device by its number, its name or a part of its name. Upper and lower case do not matter.

    Raises:
        UserError: No device matches, or several devices match.
    """
    devices = playback_devices()
    if wanted.isdecimal() and int(wanted) < len(devices):
        return devices[int(wanted)]
    same = [device for device in devices if device.name.lower() == wanted.lower()]
    near = [device for device in devices if wanted.lower() in device.name.lower()]
    for matches in (same, near):
        if len(matches) == 1:
            return matches[0]
    names = ", ".join(f"{number} {device.name}" for number, device in enumerate(devices))
    raise UserError(
        f"audio_device {wanted}: {'several' if near else 'no'} devices have this name: choose from {names}",
        "audio_device",
    )
