//! Arenas, pools of fixed-size buffers, and rings.
