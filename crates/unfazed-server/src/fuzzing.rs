//! Entries for fuzz targets. Not part of the API.

pub use crate::http::parse_request;
pub use crate::journal::read_journal;
