//! Grants, of ours to peers; and imports, of peers' to us.

pub mod import;
pub mod table;
