//! What a disk holds and what its page cache holds, and which of the latter a power loss leaves.
//!
//! Owns no faults, no counting and no locking. It keeps one invariant: what is durable plus the unsynced
//! changes in their order is what a crash that loses nothing leaves. That is what readers see as well, except
//! after a failed sync, whose forgotten bytes may still be in the cache.

use super::CrashMode;
use crate::storage::ram::{Contents, Directory, pieces};
use std::collections::BTreeSet;
use std::io;

/// A directory and its files, in the cache and on the disk.
#[derive(Debug, Default)]
pub(super) struct Model {
    directory: Directory<FileId>,
    durable_directory: Directory<FileId>,
    unsynced: Vec<NameChange>,
    /// By [`FileId`]. A removed file stays, for handles and for a removal that a crash undoes.
    files: Vec<File>,
}

/// A file's place in [`Model::files`], whatever its name.
pub(super) type FileId = usize;

impl Model {
    pub(super) fn names(&self) -> Vec<String> {
        self.directory.names()
    }

    pub(super) fn find(&self, name: &str) -> io::Result<FileId> {
        self.directory.get(name).copied()
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.directory.iter().map(|(_, id)| self.files[*id].cached.len()).sum()
    }

    /// A file as readers see it.
    pub(super) fn file(&self, id: FileId) -> &Contents {
        &self.files[id].cached
    }

    pub(super) fn create(&mut self, name: &str) -> io::Result<FileId> {
        let id = self.files.len();
        self.change_name(NameChange::Create { name: name.to_owned(), id })?;
        self.files.push(File::default());
        Ok(id)
    }

    pub(super) fn change_name(&mut self, change: NameChange) -> io::Result<()> {
        change.apply(&mut self.directory)?;
        self.unsynced.push(change);
        Ok(())
    }

    pub(super) fn sync_directory(&mut self) {
        self.durable_directory = self.directory.clone();
        self.unsynced.clear();
    }

    pub(super) fn write(&mut self, id: FileId, buf: &[u8], offset: u64) -> io::Result<()> {
        self.files[id].change(FileChange::Write { offset, bytes: buf.into() })
    }

    pub(super) fn set_len(&mut self, id: FileId, len: u64) -> io::Result<()> {
        self.files[id].change(FileChange::SetLen(len))
    }

    pub(super) fn sync(&mut self, id: FileId) {
        self.files[id].settle(&mut Draw::certain(true));
    }

    /// How many syncs of a file failed.
    pub(super) fn failed_syncs(&self, id: FileId) -> u64 {
        self.files[id].failed_syncs
    }

    /// Some pages reach the disk, the others are clean and forgotten.
    pub(super) fn fail_sync(&mut self, id: FileId, random: &mut Random) {
        let file = &mut self.files[id];
        file.failed_syncs += 1;
        file.settle(&mut Draw::new(CrashMode::TornPages, random.next()));
        if random.next().is_multiple_of(2) {
            file.cached = file.durable.clone();
        }
    }

    /// The disk after a power loss.
    pub(super) fn survivor(&self, mode: CrashMode, seed: u64) -> Model {
        let mut draw = Draw::new(mode, seed);
        let mut directory = self.durable_directory.clone();
        let mut stale = BTreeSet::new();
        for change in &self.unsynced {
            let fresh = change.names().all(|name| !stale.contains(name));
            if fresh && draw.survives() {
                let applied = change.apply(&mut directory);
                debug_assert!(
                    applied.is_ok(),
                    "the names of {change:?} are in the state that it was made in"
                );
            } else {
                stale.extend(change.names());
            }
        }
        let mut left = Model::default();
        for (name, id) in directory.iter() {
            let contents = self.files[*id].survivor(&mut draw);
            let named = left.durable_directory.create(name, left.files.len());
            debug_assert!(named.is_ok(), "{name} is in a directory, so it is a name");
            left.files.push(File { cached: contents.clone(), durable: contents, ..File::default() });
        }
        left.directory = left.durable_directory.clone();
        left
    }
}

/// A change of the directory, all of which a crash keeps or loses.
#[derive(Debug)]
pub(super) enum NameChange {
    Create { name: String, id: FileId },
    Rename { from: String, to: String },
    Remove { name: String },
}

impl NameChange {
    fn apply(&self, directory: &mut Directory<FileId>) -> io::Result<()> {
        match self {
            Self::Create { name, id } => directory.create(name, *id),
            Self::Rename { from, to } => directory.rename(from, to),
            Self::Remove { name } => directory.remove(name).map(drop),
        }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let (one, other) = match self {
            Self::Create { name, .. } | Self::Remove { name } => (name, None),
            Self::Rename { from, to } => (from, Some(to)),
        };
        std::iter::once(one).chain(other).map(String::as_str)
    }
}

#[derive(Debug, Default)]
struct File {
    cached: Contents,
    durable: Contents,
    unsynced: Vec<FileChange>,
    failed_syncs: u64,
}

#[derive(Debug)]
enum FileChange {
    Write { offset: u64, bytes: Box<[u8]> },
    SetLen(u64),
}

impl File {
    fn change(&mut self, change: FileChange) -> io::Result<()> {
        match &change {
            FileChange::Write { offset, bytes } => self.cached.write_all_at(bytes, *offset)?,
            FileChange::SetLen(len) => self.cached.set_len(*len)?,
        }
        self.unsynced.push(change);
        Ok(())
    }

    /// What is durable, and what the draw keeps of the rest.
    fn survivor(&self, draw: &mut Draw) -> Contents {
        replay(&self.unsynced, self.durable.clone(), draw)
    }

    /// Makes durable what the draw keeps, and forgets the rest.
    fn settle(&mut self, draw: &mut Draw) {
        self.durable = replay(&self.unsynced, std::mem::take(&mut self.durable), draw);
        self.unsynced.clear();
    }
}

fn replay(changes: &[FileChange], mut left: Contents, draw: &mut Draw) -> Contents {
    let mut stale = BTreeSet::new();
    for change in changes {
        let applied = match change {
            FileChange::Write { offset, bytes } => write_torn(&mut left, bytes, *offset, &mut stale, draw),
            FileChange::SetLen(len) if draw.survives() => left.set_len(*len),
            FileChange::SetLen(_) => break,
        };
        debug_assert!(applied.is_ok(), "the cache took the same change");
    }
    left
}

/// Writes the blocks that survive and that missed no earlier write; `stale` holds those that did.
fn write_torn(
    left: &mut Contents,
    bytes: &[u8],
    offset: u64,
    stale: &mut BTreeSet<u64>,
    draw: &mut Draw,
) -> io::Result<()> {
    for piece in pieces(offset, bytes.len(), draw.block_bytes) {
        if !stale.contains(&piece.granule) && draw.survives() {
            left.write_all_at(&bytes[piece.range.clone()], offset + piece.range.start as u64)?;
        } else {
            stale.insert(piece.granule);
        }
    }
    let end = offset + bytes.len() as u64;
    if !bytes.is_empty() && end > left.len() && draw.survives() {
        left.set_len(end)?;
    }
    Ok(())
}

/// Decides what survives one crash.
struct Draw {
    random: Random,
    block_bytes: usize,
    /// Eighths of the changes that survive.
    surviving_eighths: u64,
}

impl Draw {
    fn new(mode: CrashMode, seed: u64) -> Self {
        let block_bytes = match mode {
            CrashMode::DropUnsynced => return Self::certain(false),
            CrashMode::KeepUnsynced => return Self::certain(true),
            CrashMode::TornSectors => 512,
            CrashMode::TornPages => 4096,
        };
        let mut random = Random::new(seed);
        // Crashes that lose little and crashes that lose much find different faults.
        let surviving_eighths = 1 + random.next() % 7;
        Self { random, block_bytes, surviving_eighths }
    }

    fn certain(survives: bool) -> Self {
        let surviving_eighths = if survives { 8 } else { 0 };
        Self { random: Random::new(0), block_bytes: usize::MAX, surviving_eighths }
    }

    fn survives(&mut self) -> bool {
        self.random.next() % 8 < self.surviving_eighths
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}
