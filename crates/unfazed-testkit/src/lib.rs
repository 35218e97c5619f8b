//! Tiny models, golden values and damaged files for tests.
