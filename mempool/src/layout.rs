//! Carves an arena into named regions and keeps the budget by consumer.

use core::ops::Range;

use crate::error::LayoutError;

/// Hands out disjoint offset ranges of one arena, front to back. Used once, at start.
///
/// ```
/// use keyfence_mempool::layout::Layout;
/// let mut layout = Layout::new(1 << 20);
/// let receives = layout.take("receives", 100, 64)?;
/// let slots = layout.take("slots", 4096, 4096)?;
/// assert_eq!((receives, slots), (0..100, 4096..8192));
/// assert_eq!(layout.budget(), [("receives", 100), ("slots", 4096)]);
/// # Ok::<(), keyfence_mempool::LayoutError>(())
/// ```
#[derive(Debug)]
pub struct Layout {
    total: usize,
    next: usize,
    budget: Vec<(&'static str, usize)>,
}

impl Layout {
    /// A layout of an arena of `total` bytes.
    pub fn new(total: usize) -> Layout {
        Layout {
            total,
            next: 0,
            budget: Vec::new(),
        }
    }

    /// The next free `bytes` bytes whose offset is a multiple of `align`, a power of two. After an error nothing is
    /// taken.
    pub fn take(
        &mut self,
        consumer: &'static str,
        bytes: usize,
        align: usize,
    ) -> Result<Range<usize>, LayoutError> {
        if bytes == 0 {
            return Err(LayoutError::ZeroBytes { consumer });
        }
        if !align.is_power_of_two() {
            return Err(LayoutError::BadAlignment { consumer, align });
        }
        let start = self
            .next
            .checked_next_multiple_of(align)
            .filter(|start| *start <= self.total);
        let left = start.map_or(0, |start| self.total - start);
        match start {
            Some(start) if bytes <= left => {
                self.next = start + bytes;
                self.budget.push((consumer, bytes));
                Ok(start..self.next)
            }
            _ => Err(LayoutError::Short {
                consumer,
                wanted: bytes,
                align,
                left,
                total: self.total,
            }),
        }
    }

    /// Consumers with their bytes, in the order they came. Padding for alignment is in none of them.
    pub fn budget(&self) -> &[(&'static str, usize)] {
        &self.budget
    }

    /// Bytes behind the last region.
    pub fn left(&self) -> usize {
        self.total - self.next
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_names_the_consumer_and_the_numbers() {
        let mut layout = Layout::new(100);
        assert_eq!(layout.take("head", 1, 1), Ok(0..1));
        let error = layout.take("slots", 64, 64).expect_err("36 bytes are left");
        assert_eq!(
            error,
            LayoutError::Short {
                consumer: "slots",
                wanted: 64,
                align: 64,
                left: 36,
                total: 100
            }
        );
        let text = error.to_string();
        assert!(
            text.contains("slots") && text.contains("64") && text.contains("36 of 100"),
            "{text}"
        );
        assert_eq!(layout.take("tail", 99, 1), Ok(1..100));
        assert_eq!(layout.left(), 0);
    }

    #[test]
    fn b45_zero_odd_and_huge_sizes_are_named() {
        let mut layout = Layout::new(100);
        assert_eq!(
            layout.take("none", 0, 1),
            Err(LayoutError::ZeroBytes { consumer: "none" })
        );
        assert_eq!(
            layout.take("odd", 8, 3),
            Err(LayoutError::BadAlignment {
                consumer: "odd",
                align: 3
            })
        );
        assert_eq!(layout.take("odd", 43, 1), Ok(0..43));
        assert!(matches!(
            layout.take("huge", usize::MAX, 64),
            Err(LayoutError::Short { left: 36, .. })
        ));
        assert!(matches!(
            layout.take("far", 1, 1 << 63),
            Err(LayoutError::Short { left: 0, .. })
        ));
        assert_eq!(layout.budget(), [("odd", 43)]);
    }
}
