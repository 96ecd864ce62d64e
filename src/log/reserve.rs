//! Space kept on the disk for work that frees space: on a full disk, too, sessions can be removed and files let go.
//!
//! A file of zeros that is deleted right before such work, and made again when there is room. Nothing ever depends on it: that
//! it cannot be made or deleted is no error.

use std::sync::Arc;

use parking_lot::Mutex;

use super::segments::Segments;
use crate::limits::RESERVE_BYTES;

/// Its name. Other releases leave it alone.
pub(super) const RESERVE_NAME: &str = "reserve.tmp";
static ZEROS: [u8; 4 << 10] = [0; 4 << 10];

#[derive(Debug)]
pub(super) struct Reserve {
    segments: Arc<Segments>,
    /// The file is there.
    is_held: Mutex<bool>,
}

impl Reserve {
    /// That of a store, as its directory shows it.
    pub(super) fn new(segments: Arc<Segments>, is_held: bool) -> Self {
        Self { segments, is_held: Mutex::new(is_held) }
    }

    /// Frees the space, for work that begins at once.
    pub(super) fn release(&self) {
        let mut is_held = self.is_held.lock();
        if *is_held {
            *is_held = self.segments.storage().remove(RESERVE_NAME).is_err();
        }
    }

    /// Takes the space again, if it was freed.
    pub(super) fn renew(&self) {
        let mut is_held = self.is_held.lock();
        if !*is_held {
            *is_held = self.make().is_ok();
            if !*is_held {
                let _ = self.segments.storage().remove(RESERVE_NAME);
            }
        }
    }

    fn make(&self) -> std::io::Result<()> {
        let file = self.segments.storage().create_new(RESERVE_NAME)?;
        for at in (0..RESERVE_BYTES).step_by(ZEROS.len()) {
            file.write_all_at(&ZEROS, at)?;
        }
        file.sync_data()
    }
}
