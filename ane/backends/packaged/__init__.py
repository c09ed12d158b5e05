"""The stages on Core ML packages: buckets, padding, masks, chunks, and the pool of slots behind the decoder."""
