//! Key mode `region`: every order of drops over again, in a process of its own, since it looks at what is mapped there.

#[path = "drop_orders.rs"]
mod drop_orders;
