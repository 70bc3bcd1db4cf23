//! The reclaim protocol against a model: each rule by itself, at random, and exhaustively where it is small.

mod choice;
mod device;
mod explore;
mod judge;
mod random;
mod world;
