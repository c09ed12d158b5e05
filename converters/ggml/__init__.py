"""Writes Tortoise models for programs built on ggml: one GGUF file, or the files of tortoise.cpp."""
