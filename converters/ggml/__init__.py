"""Files for programs that stand on ggml: GGUF, and what tortoise.cpp reads."""
