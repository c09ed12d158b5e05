"""The sound devices that play, for choosing one by its name or number."""

from dataclasses import dataclass
from typing import Any

from ane.system.errors import UserError
from ane.system.streams import silent_c_libraries


@dataclass(frozen=True)
class SoundDevice:
    """A device of the system, and miniaudio's handle of it."""

    name: str
    handle: Any


def real_backends() -> list[Any]:
    """Return miniaudio's backends that make sound: the Null backend discards it without an error."""
    import miniaudio  # 0.1 s

    return [one for one in miniaudio.Backend if one.name not in ("NULL", "CUSTOM")]


def playback_devices() -> list[SoundDevice]:
    """Return the devices that play, in the order of the system. Raises UserError when there is none."""
    import miniaudio

    try:
        with silent_c_libraries():
            found = miniaudio.Devices(real_backends()).get_playbacks()
    except miniaudio.MiniaudioError as error:
        raise UserError(
            f"the sound devices cannot be listed ({' '.join(map(str, error.args))}); write a file instead: "
            "-o speech.wav"
        ) from error
    if not found:
        raise UserError("this machine has no sound device; write a file instead: -o speech.wav")
    return [SoundDevice(one["name"], one["id"]) for one in found]


def find_device(wanted: str) -> SoundDevice:
    """Return the device with this number or name, or the only one whose name contains it. Raises UserError."""
    devices = playback_devices()
    if wanted.isdecimal() and int(wanted) < len(devices):
        return devices[int(wanted)]
    same = [device for device in devices if device.name.lower() == wanted.lower()]
    near = [device for device in devices if wanted.lower() in device.name.lower()]
    for found in (same, near):
        if len(found) == 1:
            return found[0]
    names = ", ".join(f"{number} {device.name}" for number, device in enumerate(devices))
    raise UserError(
        f"audio_device {wanted}: {'several' if near else 'no'} devices have this name; there are {names}",
        "audio_device",
    )
