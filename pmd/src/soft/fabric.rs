//! What connects the software adapters of one process: names, and who listens on them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use super::config::SoftConfig;
use super::device::{Shared, SoftDevice};
use crate::error::ControlError;

/// The addresses that a software adapter understands.
const ALLOWED: &str = "local:NAME, the name 1 to 64 printable characters";

/// A network of software adapters. Cloning gives a second handle to the same one.
///
/// ```
/// use keyfence_pmd::soft::{Fabric, SoftConfig};
/// use keyfence_pmd::{Control, ControlError, LcoreId, QpConfig};
///
/// let fabric = Fabric::new();
/// let (here, there) = (fabric.device(SoftConfig::default())?, fabric.device(SoftConfig::default())?);
/// there.listen("local:storage")?;
/// assert!(matches!(here.listen("local:storage"), Err(ControlError::AddressInUse(_))));
/// # Ok::<(), ControlError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Fabric {
    listeners: Arc<Mutex<BTreeMap<String, Weak<Shared>>>>,
}

impl Fabric {
    /// A network without adapters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes an adapter on this network. Everything it needs but queue pairs is allocated here.
    ///
    /// # Errors
    /// [`ControlError::OutOfRange`] names the first value of `config` that is outside its range.
    pub fn device(&self, config: SoftConfig) -> Result<SoftDevice, ControlError> {
        config.check()?;
        Ok(SoftDevice::new(self.clone(), config))
    }

    pub(crate) fn listen(&self, address: &str, device: &Arc<Shared>) -> Result<(), ControlError> {
        let name = name_of(address)?;
        let mut listeners = self.lock();
        let taken = listeners
            .get(name)
            .is_some_and(|listener| listener.strong_count() > 0);
        if taken {
            return Err(ControlError::AddressInUse(address.to_owned()));
        }
        listeners.insert(name.to_owned(), Arc::downgrade(device));
        Ok(())
    }

    pub(crate) fn find(&self, address: &str) -> Result<Arc<Shared>, ControlError> {
        let name = name_of(address)?;
        let listener = self.lock().get(name).and_then(Weak::upgrade);
        listener.ok_or_else(|| ControlError::Unreachable(address.to_owned()))
    }

    /// Nobody listens for `device` any more.
    pub(crate) fn forget(&self, device: &Arc<Shared>) {
        let this = Arc::downgrade(device);
        self.lock()
            .retain(|_, listener| !Weak::ptr_eq(listener, &this));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Weak<Shared>>> {
        self.listeners
            .lock()
            .expect("no call panics with this lock")
    }
}

fn name_of(address: &str) -> Result<&str, ControlError> {
    let name = address.strip_prefix("local:").unwrap_or("");
    let legal = (1..=64).contains(&name.chars().count()) && !name.contains(char::is_control);
    if legal {
        return Ok(name);
    }
    Err(ControlError::BadAddress {
        address: address.to_owned(),
        allowed: ALLOWED,
    })
}
