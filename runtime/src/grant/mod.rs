//! Grants, of ours to peers; and imports, of peers' to us.

pub mod by_context;
pub mod import;
pub mod keys;
pub mod table;
