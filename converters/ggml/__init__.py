"""Files for programs based on ggml: GGUF, and the files of tortoise.cpp."""
