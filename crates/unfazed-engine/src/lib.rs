//! The engine process: scheduler, sequences, KV pages and sampling.
