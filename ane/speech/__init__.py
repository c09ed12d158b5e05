"""Turn a request for speech into sound, with any model. ``ane.speech.speaker`` is the entry point."""
