//! R8 on a device that gives a value out again as soon as it can.

use std::ops::Range;
use std::sync::Mutex;

use keyfence_mempool::ArenaConfig;
use keyfence_pmd::{Caps, ControlEvent, Lkey, QpConfig, QpId, RequestId, Window, WindowId};

use super::*;

/// A device that gives out the lowest value that is free, at once again.
#[derive(Default)]
struct Lifo {
    standing: Mutex<BTreeMap<u32, Access>>,
    /// It registers nothing without rights.
    no_spares: bool,
    /// It deregisters nothing.
    hangs: bool,
}

impl Control for Lifo {
    fn register(
        &self,
        _: PdId,
        _: &Arc<Arena>,
        _: Range<usize>,
        access: Access,
    ) -> Result<Region, ControlError> {
        if self.no_spares && access.remote == Rights::NONE {
            return Err(ControlError::Exhausted {
                what: "regions",
                limit: 0,
            });
        }
        let mut standing = self.standing.lock().unwrap();
        let value = (1..).find(|value| !standing.contains_key(value)).unwrap();
        standing.insert(value, access);
        Ok(Region {
            id: RegionId(value),
            lkey: Lkey(value),
            rkey: Rkey(value),
        })
    }
    fn deregister(&self, region: RegionId) -> Result<(), ControlError> {
        if self.hangs {
            return Err(ControlError::Late { waited_ns: 1 });
        }
        let gone = self.standing.lock().unwrap().remove(&region.0);
        gone.map(drop).ok_or(ControlError::NoSuchRegion(region))
    }
    fn caps(&self) -> &Caps {
        unreachable!()
    }
    fn alloc_pd(&self) -> Result<PdId, ControlError> {
        unreachable!()
    }
    fn dealloc_pd(&self, _: PdId) -> Result<(), ControlError> {
        let empty = self.standing.lock().unwrap().is_empty();
        empty.then_some(()).ok_or(ControlError::InUse {
            what: "protection domain",
            users: "regions",
        })
    }
    fn create_qp(&self, _: &QpConfig) -> Result<QpId, ControlError> {
        unreachable!()
    }
    fn listen(&self, _: &str) -> Result<(), ControlError> {
        unreachable!()
    }
    fn start_connect(&self, _: QpId, _: &str, _: &[u8]) -> Result<(), ControlError> {
        unreachable!()
    }
    fn accept(&self, _: RequestId, _: QpId, _: &[u8]) -> Result<(), ControlError> {
        unreachable!()
    }
    fn reject(&self, _: RequestId, _: &[u8]) -> Result<(), ControlError> {
        unreachable!()
    }
    fn poll_event(&self) -> Option<ControlEvent> {
        unreachable!()
    }
    fn error_qp(&self, _: QpId) -> Result<(), ControlError> {
        unreachable!()
    }
    fn destroy_qp(&self, _: QpId) -> Result<(), ControlError> {
        unreachable!()
    }
    fn alloc_window(&self, _: QpId) -> Result<Window, ControlError> {
        unreachable!()
    }
    fn dealloc_window(&self, _: WindowId) -> Result<(), ControlError> {
        unreachable!()
    }
}

fn domain() -> Domain {
    Domain::new(SessionId(1), PdId(1), None)
}

fn arena() -> Arc<Arena> {
    Arc::new(Arena::map(&ArenaConfig::new(4096)).unwrap())
}

const fn key(slot: u32) -> Holder {
    let generation = 1;
    (LcoreId(0), KeyId { slot, generation })
}

const REQUEST: KeyRequest = KeyRequest {
    offset: 64,
    len: 8,
    rights: Rights::WRITE,
};

fn end(domain: &mut Domain, device: &Lifo, holder: Holder) {
    let key = domain.keys.get_mut(&holder).unwrap();
    let Standing::Region(region) = key.standing else {
        panic!("{key:?} has no region");
    };
    key.standing = Standing::Ended;
    device.deregister(region).unwrap();
}

#[test]
fn r8_a_value_is_kept_from_coming_back_until_its_key_is_dead() {
    let (mut domain, arena, device) = (domain(), arena(), Lifo::default());
    let first = domain.register(&device, &arena, key(0), &REQUEST);
    assert_eq!(first, Ok(Rkey(1)));
    end(&mut domain, &device, key(0));
    for slot in 1..4 {
        let value = domain.register(&device, &arena, key(slot), &REQUEST);
        assert_eq!(value, Ok(Rkey(1 + slot)));
    }
    let access = |value: u32| device.standing.lock().unwrap().get(&value).copied();
    assert_eq!(access(1), Some(CLOSED), "it stands, and opens nothing");
    assert_eq!(access(2).map(|access| access.remote), Some(Rights::WRITE));
    domain.forget(&device, key(0));
    assert_eq!(access(1), None);
    let again = domain.register(&device, &arena, key(4), &REQUEST);
    assert_eq!(again, Ok(Rkey(1)));
    for slot in 1..5 {
        end(&mut domain, &device, key(slot));
        domain.forget(&device, key(slot));
    }
    assert!(domain.keys.is_empty() && domain.values.is_empty());
    assert!(
        !domain.is_over(),
        "a session whose last lane is being repaired stands"
    );
    domain.stands = false;
    assert!(domain.is_over() && domain.end(&device));
}

#[test]
fn r8_where_the_value_can_not_be_kept_the_key_is_refused_and_nothing_is_left() {
    let (mut domain, arena) = (domain(), arena());
    let device = Lifo {
        no_spares: true,
        ..Lifo::default()
    };
    domain.register(&device, &arena, key(0), &REQUEST).unwrap();
    end(&mut domain, &device, key(0));
    let refused = domain.register(&device, &arena, key(1), &REQUEST);
    assert_eq!(refused, Err(KeyRefusal::ValuesKnown { tries: 8 }));
    assert!(device.standing.lock().unwrap().is_empty());
    assert!(!domain.keys.contains_key(&key(1)));
    assert!(domain.end(&device));
}

#[test]
fn r8_a_region_under_a_known_value_that_can_not_be_ended_at_once_is_the_keys_own_to_end() {
    let (mut domain, arena, mut device) = (domain(), arena(), Lifo::default());
    domain.stands = false;
    domain.register(&device, &arena, key(0), &REQUEST).unwrap();
    end(&mut domain, &device, key(0));
    device.hangs = true;
    let refused = domain.register(&device, &arena, key(1), &REQUEST);
    assert!(matches!(refused, Err(KeyRefusal::ValuesKnown { .. })));
    assert!(!domain.is_over(), "R3: it stands");
    device.hangs = false;
    end(&mut domain, &device, key(1));
    assert!(domain.is_over() && domain.end(&device));
}

#[test]
fn r8_a_domain_that_a_key_was_made_in_is_never_another_sessions() {
    let (arena, device) = (arena(), Lifo::default());
    let mut untouched = Domain::new(SessionId(1), PdId(1), None);
    untouched.home(&device, &arena).unwrap();
    untouched.stands = false;
    assert!(untouched.is_over() && untouched.vacant().is_some());
    let mut domain = Domain::new(SessionId(1), PdId(1), None);
    assert!(domain.vacant().is_none(), "it is not complete");
    domain.home(&device, &arena).unwrap();
    domain.register(&device, &arena, key(0), &REQUEST).unwrap();
    end(&mut domain, &device, key(0));
    domain.forget(&device, key(0));
    domain.stands = false;
    assert!(domain.is_over() && domain.vacant().is_none());
}
