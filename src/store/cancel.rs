//! A way to stop long work from another thread.

use std::sync::{Arc, OnceLock};

use crate::{Error, ErrorKind, Result};

/// A shared switch. Once it is thrown, reads, sealing and compaction through a handle made by
/// [`Store::cancellable`](super::Store::cancellable) and imports by a
/// [cancellable](crate::import::Importer::cancellable) importer end with [`ErrorKind::Cancelled`] and the reason as message.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<OnceLock<String>>);

impl Cancel {
    /// A switch that is not thrown.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Throws the switch. The first reason stays.
    pub fn cancel(&self, reason: impl Into<String>) {
        let _ = self.0.set(reason.into());
    }

    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`] once the switch is thrown.
    pub(crate) fn check(&self) -> Result<()> {
        self.0.get().map_or(Ok(()), |reason| Err(Error::new(ErrorKind::Cancelled, reason.clone())))
    }

    /// Whether the switch is thrown.
    pub(crate) fn is_thrown(&self) -> bool {
        self.0.get().is_some()
    }
}
