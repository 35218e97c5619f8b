//! Tokenizers from tokenizer.json and GGUF metadata, and streaming detokenisation.
