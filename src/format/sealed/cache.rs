//! What was decoded from sealed files lately: a bounded number of bytes, shared by all files of a store.
//!
//! Holds whole units and pieces, each under the file that it came from and its number there. A file has its own place as
//! long as it is open and takes it along when it is let go, so nothing of a rewritten file is ever found under the new one.
//! Never holds more than its limit, nor anything so large that it would drive out much else. What is evicted is what was not
//! asked for since the hand of a clock came by last: one pass over new things leaves those in use where they are.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::Unit;
use crate::limits::SEALED_UNIT_TEXT_BYTES;

/// Something larger than this part of the cache is not kept.
const ENTRY_PART_MAX: usize = 8;
/// A unit that takes more is not used again for another one, in bytes.
const SPARE_BYTES_MAX: usize = 4 * SEALED_UNIT_TEXT_BYTES;
/// What an entry takes beside what it holds, in bytes, about.
const ENTRY_BYTES: usize = 192;

/// Decoded units and pieces of any number of files. Shared by any number of threads.
#[derive(Debug)]
pub struct DecodedCache {
    bytes_max: usize,
    clock: Mutex<Clock>,
    files: AtomicU64,
}

/// One file's part of a [`DecodedCache`]; dropping it drops what is kept of the file.
#[derive(Debug)]
pub struct FileCache {
    cache: Arc<DecodedCache>,
    file: u64,
}

impl DecodedCache {
    /// A cache of at most so many bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, clock: Mutex::default(), files: AtomicU64::new(0) })
    }

    /// The part of a file that was opened; empty.
    #[must_use]
    pub fn of_file(self: &Arc<Self>) -> FileCache {
        FileCache { cache: Arc::clone(self), file: self.files.fetch_add(1, Ordering::Relaxed) }
    }

    fn get(&self, key: Key) -> Option<Kept> {
        self.clock.lock().get(key)
    }

    fn keep(&self, key: Key, bytes: usize, make: impl FnOnce() -> Kept) {
        let bytes = bytes.saturating_add(ENTRY_BYTES);
        if bytes <= self.bytes_max / ENTRY_PART_MAX {
            let entry = Entry { key, kept: make(), bytes, is_used: false };
            self.clock.lock().keep(entry, self.bytes_max);
        }
    }
}

impl FileCache {
    /// The part of another file that was opened; empty.
    #[must_use]
    pub fn of_another_file(&self) -> Self {
        self.cache.of_file()
    }

    pub(super) fn unit(&self, index: u32) -> Option<Arc<Unit>> {
        match self.cache.get(Key { file: self.file, part: Part::Unit(index) })? {
            Kept::Unit(unit) => Some(unit),
            Kept::Piece(_) => None,
        }
    }

    /// Memory for the next unit: that of the one that was evicted last, so that reads which find nothing do not ask the
    /// system for fresh pages each time.
    pub(super) fn spare_unit(&self) -> Unit {
        self.cache.clock.lock().spare.take().unwrap_or_default()
    }

    pub(super) fn keep_unit(&self, index: u32, unit: &Arc<Unit>) {
        let bytes = unit.memory_bytes();
        self.cache
            .keep(Key { file: self.file, part: Part::Unit(index) }, bytes, || Kept::Unit(Arc::clone(unit)));
    }

    pub(super) fn piece(&self, id: u32) -> Option<Arc<str>> {
        match self.cache.get(Key { file: self.file, part: Part::Piece(id) })? {
            Kept::Piece(text) => Some(text),
            Kept::Unit(_) => None,
        }
    }

    pub(super) fn keep_piece(&self, id: u32, text: &str) {
        self.cache.keep(Key { file: self.file, part: Part::Piece(id) }, text.len(), || {
            Kept::Piece(Arc::from(text))
        });
    }
}

impl Drop for FileCache {
    fn drop(&mut self) {
        self.cache.clock.lock().forget(self.file);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    file: u64,
    part: Part,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    Unit(u32),
    Piece(u32),
}

#[derive(Debug, Clone)]
enum Kept {
    Unit(Arc<Unit>),
    Piece(Arc<str>),
}

impl Kept {
    /// The unit, if it is one and nobody reads it.
    fn into_unit(self) -> Option<Unit> {
        match self {
            Self::Unit(unit) => Arc::into_inner(unit),
            Self::Piece(_) => None,
        }
    }
}

#[derive(Debug)]
struct Entry {
    key: Key,
    kept: Kept,
    bytes: usize,
    /// Asked for since the hand came by.
    is_used: bool,
}

/// Entries in a circle, and a hand that goes round.
#[derive(Debug, Default)]
struct Clock {
    places: HashMap<Key, usize>,
    circle: Vec<Option<Entry>>,
    vacant: Vec<usize>,
    hand: usize,
    bytes: usize,
    spare: Option<Unit>,
}

impl Clock {
    fn get(&mut self, key: Key) -> Option<Kept> {
        let entry = self.circle.get_mut(*self.places.get(&key)?)?.as_mut()?;
        entry.is_used = true;
        Some(entry.kept.clone())
    }

    fn keep(&mut self, entry: Entry, bytes_max: usize) {
        if self.places.contains_key(&entry.key) {
            return;
        }
        while self.bytes + entry.bytes > bytes_max && !self.places.is_empty() {
            self.turn();
        }
        // Where the hand has just been, so that it comes back to this entry last.
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.circle.push(None);
            self.circle.len() - 1
        });
        self.bytes += entry.bytes;
        self.places.insert(entry.key, place);
        self.circle[place] = Some(entry);
    }

    /// Moves the hand on by one entry, which goes if it was not asked for.
    fn turn(&mut self) {
        let place = self.hand;
        self.hand = if place + 1 < self.circle.len() { place + 1 } else { 0 };
        match self.circle.get_mut(place).and_then(Option::as_mut) {
            Some(entry) if entry.is_used => entry.is_used = false,
            _ => {
                let evicted = self.remove(place).and_then(Kept::into_unit);
                self.spare = evicted.filter(|unit| unit.memory_bytes() <= SPARE_BYTES_MAX);
            }
        }
    }

    fn remove(&mut self, place: usize) -> Option<Kept> {
        let gone = self.circle.get_mut(place)?.take()?;
        self.bytes -= gone.bytes;
        self.places.remove(&gone.key);
        self.vacant.push(place);
        Some(gone.kept)
    }

    fn forget(&mut self, file: u64) {
        for place in 0..self.circle.len() {
            if self.circle[place].as_ref().is_some_and(|entry| entry.key.file == file) {
                self.remove(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE_BYTES: usize = 1_000;
    const PIECES: usize = 20;

    fn cache() -> Arc<DecodedCache> {
        DecodedCache::new(PIECES * (PIECE_BYTES + ENTRY_BYTES))
    }

    fn keep(file: &FileCache, ids: impl IntoIterator<Item = u32>) {
        let text = "x".repeat(PIECE_BYTES);
        ids.into_iter().for_each(|id| file.keep_piece(id, &text));
    }

    fn kept(file: &FileCache, ids: impl IntoIterator<Item = u32>) -> Vec<u32> {
        ids.into_iter().filter(|id| file.piece(*id).is_some()).collect()
    }

    #[test]
    fn no_more_is_kept_than_the_limit_and_the_oldest_goes_first() {
        let cache = cache();
        let file = cache.of_file();
        keep(&file, 0..50);
        assert!(cache.clock.lock().bytes <= cache.bytes_max);
        assert_eq!(kept(&file, 0..50), (30..50).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_in_use_outlives_a_pass_over_new_things() {
        let cache = cache();
        let file = cache.of_file();
        keep(&file, 0..20);
        for new in 100..200 {
            assert_eq!(kept(&file, [3, 7]), [3, 7], "when {new} is kept");
            keep(&file, [new]);
        }
        assert_eq!(kept(&file, 0..20), [3, 7]);
    }

    #[test]
    fn what_is_too_large_is_not_kept() {
        let cache = cache();
        let file = cache.of_file();
        keep(&file, 0..20);
        file.keep_piece(77, &"x".repeat(cache.bytes_max / ENTRY_PART_MAX));
        assert!(file.piece(77).is_none());
        assert_eq!(kept(&file, 0..20).len(), 20);
    }

    #[test]
    fn a_file_that_is_let_go_takes_its_own_along_and_nothing_else() {
        let cache = cache();
        let (one, other) = (cache.of_file(), cache.of_file());
        keep(&one, 0..9);
        keep(&other, 0..9);
        drop(one);
        assert_eq!(kept(&other, 0..9).len(), 9);
        let next = cache.of_file();
        assert!(kept(&next, 0..9).is_empty());
        let clock = cache.clock.lock();
        assert_eq!((clock.places.len(), clock.bytes), (9, 9 * (PIECE_BYTES + ENTRY_BYTES)));
    }

    #[test]
    fn units_and_pieces_of_one_number_are_different_things() {
        let file = cache().of_file();
        keep(&file, [1]);
        assert!(file.unit(1).is_none());
        file.keep_unit(1, &Arc::new(Unit::default()));
        assert!(file.unit(1).is_some() && file.piece(1).is_some());
    }
}
