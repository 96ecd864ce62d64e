//! Reading a log without its lock, beside a writer in this or another process.
//!
//! Writes nothing. Sees whole batches only; a bad tail is the end for now, never damage.

use std::sync::Arc;

use super::cursor::{Cursor, Walked, rewritten};
use super::scan::Visitor;
use super::segments::{Frame, Segments};
use crate::format::StoreId;
use crate::ids::Position;
use crate::storage::Storage;
use crate::{ErrorKind, Result};

/// How often an opening begins anew because files were rewritten meanwhile.
const OPENINGS_MAX: u32 = 8;

/// A view of a log that follows its writer when asked to.
#[derive(Debug)]
pub struct LogReader {
    segments: Arc<Segments>,
    cursor: Cursor,
    store_id: StoreId,
}

/// Reads frames by position. Cheap to clone, and free of the reader's own state: it never waits for a refresh.
#[derive(Debug, Clone)]
pub struct FrameReader(Arc<Segments>);

impl FrameReader {
    pub(super) fn new(segments: &Arc<Segments>) -> Self {
        Self(Arc::clone(segments))
    }

    /// Reads the frame at `at`.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt), with file and offset, if there is no sound frame;
    /// [`NotFound`](crate::ErrorKind::NotFound) if sealing took the segment away.
    pub fn read(&self, at: Position) -> Result<Frame> {
        self.0.read(at)
    }
}

/// What [`LogReader::refresh`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Refreshed {
    /// The visitor was shown everything that was new.
    Current,
    /// The writer crashed, and its successor moved batches that this reader had already shown: they would
    /// appear twice. Or files that it had shown in part were rewritten as one, without what was removed in
    /// them. What was built from what was shown is void; open a new reader.
    Superseded,
}

impl LogReader {
    /// Opens the log and shows the visitor all of it.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no log; [`Conflict`](crate::ErrorKind::Conflict) if
    /// its files were rewritten meanwhile ([`open_fresh`](Self::open_fresh) then begins anew); [`Corrupt`](crate::ErrorKind::Corrupt)
    /// if a segment file is missing or belongs elsewhere; [`Unsupported`](crate::ErrorKind::Unsupported),
    /// [`Io`](crate::ErrorKind::Io), and those of the visitor. Damage inside segments is no error: it is
    /// shown to the visitor.
    pub fn open(storage: Arc<dyn Storage>, visitor: &mut dyn Visitor) -> Result<Self> {
        let segments = Arc::new(Segments::new(storage));
        for name in segments.open_all_sealed()?.foreign {
            visitor.foreign_file(&name);
        }
        let mut cursor = Cursor::open(Arc::clone(&segments), visitor)?;
        if cursor.walk_to_newest(visitor)? == Walked::TooFar {
            return Err(rewritten(&segments));
        }
        let store_id = cursor.store_id()?;
        let mut reader = Self { segments, cursor, store_id };
        reader.show_newest(visitor)?;
        Ok(reader)
    }

    /// Opens the log and shows a new visitor all of it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_fresh<V: Visitor + Default>(storage: &Arc<dyn Storage>) -> Result<(Self, V)> {
        for _ in 1..OPENINGS_MAX {
            let mut visitor = V::default();
            match Self::open(Arc::clone(storage), &mut visitor) {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                opened => return opened.map(|reader| (reader, visitor)),
            }
        }
        let mut visitor = V::default();
        Self::open(Arc::clone(storage), &mut visitor).map(|reader| (reader, visitor))
    }

    /// Shows the visitor what was added since.
    ///
    /// # Errors
    /// As [`open`](Self::open). The reader is then to be dropped: the visitor may have been shown part of
    /// what was new.
    pub fn refresh(&mut self, visitor: &mut dyn Visitor) -> Result<Refreshed> {
        for name in self.segments.new_sealed()? {
            // One that reaches beyond what was shown is met on the way. One that is gone by now was replaced.
            if name.last < self.cursor.position().segment
                && let Some(file) = self.segments.open_sealed(name)?
            {
                visitor.sealed(&file)?;
            }
        }
        if self.cursor.walk_to_newest(visitor)? == Walked::TooFar {
            return Ok(Refreshed::Superseded);
        }
        if !self.cursor.is_blank_ahead()? {
            self.show_newest(visitor)?;
        }
        Ok(Refreshed::Current)
    }

    fn show_newest(&mut self, visitor: &mut dyn Visitor) -> Result<()> {
        let survey = self.cursor.survey()?;
        self.cursor.visit_to(survey.valid_end, visitor)
    }

    /// Reads the frame at `at`.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt), with file and offset, if there is no sound frame.
    pub fn read(&self, at: Position) -> Result<Frame> {
        self.segments.read(at)
    }

    /// Reads frames beside the next refresh.
    #[must_use]
    pub fn frames(&self) -> FrameReader {
        FrameReader::new(&self.segments)
    }

    /// The position below which the files say that everything is durable: at most a group behind the writer.
    #[must_use]
    pub fn synced_through(&self) -> Position {
        self.cursor.synced_through()
    }

    /// Up to where the log was shown.
    #[must_use]
    pub fn position(&self) -> Position {
        self.cursor.position()
    }

    /// The store that the log belongs to.
    #[must_use]
    pub fn store_id(&self) -> StoreId {
        self.store_id
    }
}
