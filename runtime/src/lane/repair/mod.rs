//! The repair of a lane (REQUIREMENTS section 5) at one of its ends, as a machine without I/O and without a clock.
//!
//! ```text
//!            this end                                the other
//! broke      Broke: the queue pair is in error
//! admitted   Admitted{n}: a new one stands
//! drained    Drained: the last message that came is fixed
//!            -> TakeOver: the link moves to the new lane
//!            Begin{n, received} ------------------->
//!                               <------------------- Begin{n, received}
//!            live grants, live contexts, End{n} --->
//!                               <------------------- live grants, live contexts, End{n}
//! destroyed  Destroyed: nothing more comes of the old queue pair
//!            -> Judge: what of the cut operations was executed, what is said again
//!            -> Resume: operations are posted again
//! ```
//! Everything but the order within a row's arrow may come in any order. A new queue pair that breaks in its turn begins the whole again, with the next
//! number; what was judged stays judged.

mod machine;
#[cfg(test)]
mod tests;
mod verdict;

pub use machine::{Event, Order, Repair};
pub use verdict::{Cut, CutWork, Seen, Verdict, judge};
