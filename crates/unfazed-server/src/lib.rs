//! The front: HTTP, chat templates, and the link to the engine.
