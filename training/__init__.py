"""How the embedded voice was made: text, speech, codes, and every network of the pipeline. Not part of the wheel."""
