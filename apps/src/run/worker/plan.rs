//! Which buffers a worker has, by its number. Worker i of one side works with worker i of the other.

use keyfence::config::LoadConfig;

/// What a buffer is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Opened to the partner.
    Grant,
    /// Local bytes of writes and sends.
    Source,
    /// Where reads go.
    Sink,
    /// Taken right after somebody's death, watched, and given back.
    Hunt,
}

/// One buffer to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// What for.
    pub role: Role,
    /// Whether it takes the large operations.
    pub large: bool,
}

/// The buffers of one worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// All that it allocates, in this order.
    pub wanted: Vec<Wanted>,
    /// Grants that its partner makes to it.
    pub imports: usize,
}

const SMALL_GRANTS: usize = 3;
const SINKS: usize = 4;

impl Plan {
    /// The plan of worker `index` of `side`.
    pub fn of(side: usize, index: usize) -> Self {
        let (grants, partner_grants) = (grants(side, index), grants(1 - side, index));
        let large = is_large(index);
        let mut wanted = vec![
            Wanted {
                role: Role::Source,
                large: false
            };
            2
        ];
        wanted.extend(
            [Wanted {
                role: Role::Sink,
                large: false,
            }; SINKS],
        );
        if grants {
            wanted.extend(
                [Wanted {
                    role: Role::Grant,
                    large: false,
                }; SMALL_GRANTS],
            );
        }
        if grants && large {
            wanted.push(Wanted {
                role: Role::Grant,
                large: true,
            });
        }
        if partner_grants && large {
            wanted.push(Wanted {
                role: Role::Source,
                large: true,
            });
            wanted.push(Wanted {
                role: Role::Sink,
                large: true,
            });
        }
        let imports = if partner_grants {
            SMALL_GRANTS + usize::from(large)
        } else {
            0
        };
        Self { wanted, imports }
    }
}

/// One worker in eight grants nothing and only uses what its partner grants: its epoch is its own operations and no key.
fn grants(side: usize, index: usize) -> bool {
    index % 8 != [7, 3][side]
}

/// Three pairs in eight move large operations, the lopsided ones among them.
fn is_large(index: usize) -> bool {
    index % 4 == 3 || index % 8 == 1
}

/// Bytes of a small buffer: the longest of the small operations, and a header at least.
pub fn small_bytes(load: &LoadConfig) -> usize {
    let longest = load.sizes_bytes.iter().copied().max().unwrap_or(0);
    (longest as usize).max(64).next_multiple_of(8)
}

/// Bytes of a large buffer.
pub fn large_bytes(load: &LoadConfig) -> usize {
    (load.large_bytes as usize)
        .max(small_bytes(load))
        .next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_has_contexts_with_imports_and_no_grants_and_some_with_both() {
        for side in 0..2 {
            let plans: Vec<Plan> = (0..64).map(|index| Plan::of(side, index)).collect();
            let grants = |plan: &&Plan| plan.wanted.iter().any(|w| w.role == Role::Grant);
            assert_eq!(
                plans.iter().filter(|p| p.imports > 0 && !grants(p)).count(),
                8
            );
            assert_eq!(
                plans.iter().filter(|p| p.imports > 0 && grants(p)).count(),
                48
            );
            let large = plans
                .iter()
                .flat_map(|plan| &plan.wanted)
                .filter(|w| w.large);
            assert!(
                large.count() <= 56,
                "the pool of loopback.toml has 64, and some are under reclaim"
            );
        }
    }
}
