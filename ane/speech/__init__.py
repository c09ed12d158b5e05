"""Speech, once for all models: a request, the stream of sound that answers it, and what they are made of."""
