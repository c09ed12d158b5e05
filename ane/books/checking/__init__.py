"""Finding chunks of a book that were spoken badly: by the decoder, by the sound, and by a recogniser."""
