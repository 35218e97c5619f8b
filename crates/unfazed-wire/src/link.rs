//! A socket that carries frames.
