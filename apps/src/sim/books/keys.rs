//! Values of keys (R8): one is not used again while its holder may still use it.

use std::ops::Range;

use keyfence::ids::{GrantId, LcoreId};
use keyfence::pmd::{QpId, Rkey};

use super::Books;
use super::ends::Ending;
use super::grants::Holding;

impl Books {
    /// A bind of a key was posted.
    pub fn bound(&mut self, host: usize, qp: QpId, rkey: Rkey, range: Range<u64>) {
        let book = &mut self.hosts[host];
        let len = range.end - range.start;
        let named = book.lens.get(&len).copied();
        let Some(name) = named.filter(|name| book.grants[name].range == range) else {
            return self.fail(
                "r12_binds",
                format!("engine {host}: {rkey:?} is bound to {range:?}, which no grant has"),
            );
        };
        let Some(before) = book.keys.insert((qp, rkey), name) else {
            return;
        };
        self.tally.keys_reused += 1;
        if before != name && self.still_holds(host, before) {
            self.fail("r8_values", format!("engine {host}: {rkey:?} of {before:?}, which its holder has not given up, is bound again for {name:?}"));
        }
    }

    /// Whether a grant's holder may post operations by its key.
    fn still_holds(&self, host: usize, name: (LcoreId, GrantId)) -> bool {
        let Some(grant) = self.hosts[host].grants.get(&name) else {
            return false;
        };
        let Holding::Live(import) = grant.holding else {
            return false;
        };
        let at = &self.hosts[grant.holder.host];
        // While the session stands that it came in: another has other queue pairs.
        at.life == grant.holder.life
            && at
                .contexts
                .get(&grant.holder.id)
                .is_some_and(|book| book.ending != Ending::Ended)
            && at.imports.contains_key(&(grant.holder.id.lcore, import))
    }
}
