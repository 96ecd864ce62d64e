//! Which session an id names.
//!
//! Holds no id itself: an entry knows its own. So an entry's name must not change while it is in here, and whoever names one
//! takes it out first.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::session::Entry;

/// Sessions by their ids, stand-in ids included.
#[derive(Debug, Default)]
pub(super) struct ById(HashSet<Named>);

/// An entry, equal to those of the same id.
#[derive(Debug)]
struct Named(Arc<Entry>);

impl ById {
    pub(super) fn reserve(&mut self, more: usize) {
        self.0.reserve(more);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, id: &str) -> Option<&Arc<Entry>> {
        self.0.get(id).map(|named| &named.0)
    }

    /// Puts an entry in the place of the one that has its id.
    pub(super) fn insert(&mut self, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        self.0.replace(Named(entry)).map(|named| named.0)
    }

    pub(super) fn remove(&mut self, id: &str) {
        self.0.remove(id);
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.0.iter().map(|named| &named.0)
    }
}

impl Named {
    fn id(&self) -> &str {
        &self.0.header().id
    }
}

impl Borrow<str> for Named {
    fn borrow(&self) -> &str {
        self.id()
    }
}

impl Hash for Named {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Named {}
