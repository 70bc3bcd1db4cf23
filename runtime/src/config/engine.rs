//! `[[engine]]`: what makes an engine, and what an lcore does when there is nothing to do.

/// One engine of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EngineConfig {
    /// `name`: 1 to 63 bytes of letters, digits, `-`, `_` and `.`; unique in the file. Peers know the engine by it.
    pub name: String,
    /// `device`: the driver, one of those that the reading program was built with; the first of these if left out.
    pub device: String,
    /// `lcores`: the CPU of each lcore, in the order of [`LcoreId`](crate::ids::LcoreId). 1 to 64, no CPU twice in a file.
    pub lcores: Vec<u32>,
    /// `idle`: what an lcore does when a step found nothing.
    pub idle: IdlePolicy,
    /// `step_max`: a poll step that takes longer is a stall, which the watchdog reports.
    pub step_max_ns: u64,
}

/// What an lcore does after steps without work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IdlePolicy {
    /// `"spin"`: polls on. The lowest latency, a whole CPU.
    #[default]
    Spin,
    /// `"backoff"`: spins, then pauses, then yields, then sleeps.
    Backoff {
        /// `backoff_max`: the longest sleep, and so what the first work after a quiet time waits at most.
        max_sleep_ns: u64,
    },
}
