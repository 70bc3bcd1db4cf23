//! The reclaim protocol against a model: each rule by itself, at random, and exhaustively where it is small.

mod bench;
mod choice;
mod device;
mod epochs;
mod explore;
mod judge;
mod keys;
mod pairs;
mod random;
mod regions;
mod repeats;
mod seen;
mod values;
mod world;
