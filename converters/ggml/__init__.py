"""Write Tortoise models for programs that use ggml: as one GGUF file, or as the files that tortoise.cpp reads."""
