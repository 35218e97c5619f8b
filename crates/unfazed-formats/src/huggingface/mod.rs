//! Hugging Face directories.
