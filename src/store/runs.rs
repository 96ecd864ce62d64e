//! Where a session's events lie, and reading them run by run: frames of raw segments, units of sealed files.
//!
//! Sealing moves events while others read them. A read that finds its place gone looks up the new one and goes on at
//! the event where it was; nothing is shown twice.

use std::ops::Range;

use super::catalog::{Place, Run};
use super::records::{events_of, read_event};
use super::session::{Entry, EntryState, Session};
use crate::event::{Event, RefusalKind};
use crate::format::sealed::{SealedItem, SealedName, StoredPiece};
use crate::ids::Seq;
use crate::log::FrameReader;
use crate::{Error, ErrorKind, Result};

/// Rule of the error for a place that sealing took away.
const MOVED: &str = "moved";
/// How often a read looks up a place anew before it gives up.
const LOOKUPS_MAX: u32 = 8;

/// How the data of one event is stored.
pub(super) enum StoredData {
    /// As it is.
    Plain,
    /// As a piece of a sealed file.
    Piece(SealedName, StoredPiece),
    /// Compressed together with that of other events.
    Shared,
}

/// Is shown events in order.
pub(super) type Each<'e> = dyn FnMut(Event<'_>) -> Result<()> + 'e;

impl Session {
    /// Reads `range`, looking up its places again when they are gone. No lock is held while `each` runs.
    pub(super) fn read_range(&self, range: Range<Seq>, each: &mut Each<'_>) -> Result<()> {
        let mut next = range.start;
        self.again_if_moved(&mut || {
            let places = self.places(&(next..range.end))?;
            self.read_runs(&places, &(next..places.end), &mut |event| {
                next = event.seq.next();
                each(event)
            })
        })
    }

    /// Reads `range` while the session's state is locked.
    pub(super) fn read_locked(
        &self,
        state: &EntryState,
        range: Range<Seq>,
        each: &mut Each<'_>,
    ) -> Result<()> {
        let end = range.end.min(Seq::new(state.row.next_seq));
        let runs = self.runs(state, &(range.start..end));
        self.read_runs(&Places { frames: self.store.frames(), runs, end }, &(range.start..end), each)
    }

    /// Reads the events that stand in one frame or unit with `seq`, from it on.
    pub(super) fn read_beside(&self, seq: Seq, each: &mut Each<'_>) -> Result<()> {
        self.again_if_moved(&mut || {
            let places = self.places(&(seq..seq.next()))?;
            match places.runs.last() {
                Some(run) => self.read_run(&places.frames, run, &(seq..piece_end(run, seq)), each),
                None => Ok(()),
            }
        })
    }

    /// How the data of an event is stored.
    pub(super) fn stored_data(&self, seq: Seq) -> Result<StoredData> {
        self.again_if_moved(&mut || {
            let places = self.places(&(seq..seq.next()))?;
            let Some(Place::Sealed(file, row)) = places.runs.last().map(|run| &run.at) else {
                return Ok(StoredData::Plain);
            };
            let piece = self.store.with_decoder(|decoder| file.piece_of(row, seq, decoder))?;
            Ok(piece.map_or(StoredData::Shared, |piece| StoredData::Piece(file.name(), piece)))
        })
    }

    /// Runs `read` until it finds every place.
    pub(super) fn again_if_moved<T>(&self, read: &mut dyn FnMut() -> Result<T>) -> Result<T> {
        let mut lookups = 0;
        loop {
            match read() {
                Err(error) if error.rule() == Some(MOVED) && lookups < LOOKUPS_MAX => {
                    lookups += 1;
                    self.store.refresh()?;
                }
                result => return result,
            }
        }
    }

    /// Where what is written of `range` lies.
    fn places(&self, range: &Range<Seq>) -> Result<Places> {
        let mut state = self.lock()?;
        state.settle()?;
        let end = range.end.min(Seq::new(state.row.next_seq));
        let runs = self.runs(&state, &(range.start..end));
        Ok(Places { frames: self.store.frames(), runs, end })
    }

    /// The runs that hold events of `range`, inherited ones first.
    fn runs(&self, state: &EntryState, range: &Range<Seq>) -> Vec<Run> {
        let mut runs = Vec::new();
        if range.start < range.end {
            inherited_runs(&self.entry, range, &mut runs);
            runs.extend(overlapping(&state.row.runs, range));
        }
        runs
    }

    /// Reads the runs of `range`. Every seq lies in exactly one of them (invariant 4).
    fn read_runs(&self, places: &Places, range: &Range<Seq>, each: &mut Each<'_>) -> Result<()> {
        let mut next = range.start;
        for run in &places.runs {
            self.check_next(run, next, range)?;
            self.read_run(&places.frames, run, range, each)?;
            next = run.end();
        }
        if next < range.end { Err(self.missing(next)) } else { Ok(()) }
    }

    fn check_next(&self, run: &Run, next: Seq, range: &Range<Seq>) -> Result<()> {
        if run.first > next {
            return Err(self.missing(next));
        }
        if run.first < next && next > range.start {
            let message = format!("read session {}: events are stored twice; run verify", self.id());
            let error = Error::new(ErrorKind::Corrupt, message).with_refusal(RefusalKind::SeqFork);
            return Err(error.with_seq(run.first));
        }
        Ok(())
    }

    fn missing(&self, seq: Seq) -> Error {
        let message = format!("read session {}: events are damaged or missing; run verify", self.id());
        Error::new(ErrorKind::Corrupt, message).with_refusal(RefusalKind::SeqGap).with_seq(seq)
    }

    fn read_run(
        &self,
        frames: &FrameReader,
        run: &Run,
        range: &Range<Seq>,
        each: &mut Each<'_>,
    ) -> Result<()> {
        self.check_cancelled()?;
        let range = range.start.max(run.first)..range.end.min(run.end());
        match &run.at {
            Place::Frame(at) => {
                let frame = frames.read(*at).map_err(|error| match error.kind() {
                    ErrorKind::NotFound => error.with_rule(MOVED),
                    _ => error.with_seq(run.first),
                })?;
                for event in events_of(&frame.payload, run.first, frame.header.count) {
                    let event = event?;
                    if event.seq >= range.end {
                        break;
                    }
                    if event.seq >= range.start {
                        each(event)?;
                    }
                }
                Ok(())
            }
            Place::Sealed(file, row) => self.store.with_decoder(|decoder| {
                file.events(row, range.clone(), &|_| true, decoder, &mut |item| match item {
                    SealedItem::Event(seq, record) => each(read_event(seq, &record)?),
                    SealedItem::Unreadable(lost, error) => Err(error.with_seq(lost.start)),
                })
            }),
        }
    }
}

/// Where a range of events lies, and what reads it there.
struct Places {
    frames: FrameReader,
    runs: Vec<Run>,
    /// Where what is written of the range ends.
    end: Seq,
}

/// Iterator over stored events; see [`Session::events`].
#[derive(Debug)]
pub struct Events {
    session: Session,
    range: Range<Seq>,
    frames: FrameReader,
    runs: std::vec::IntoIter<Run>,
    /// The run that is being read.
    run: Option<Run>,
    piece: std::vec::IntoIter<Event<'static>>,
}

impl Events {
    pub(super) fn new(session: &Session, range: Range<Seq>) -> Result<Self> {
        let Places { frames, runs, end } = session.places(&range)?;
        let (runs, piece) = (runs.into_iter(), Vec::new().into_iter());
        Ok(Self { session: session.clone(), range: range.start..end, frames, runs, run: None, piece })
    }

    /// Reads the next frame or unit; a piece that cannot be read is passed over.
    fn next_piece(&mut self) -> Result<()> {
        let start = self.range.start;
        let run = match self.run.take().filter(|run| start < run.end()).or_else(|| self.runs.next()) {
            Some(run) if run.first <= start => run,
            // Damage took what stood here.
            later => {
                self.range.start = later.as_ref().map_or(self.range.end, |run| run.first);
                self.run = later;
                return Err(self.session.missing(start));
            }
        };
        let piece = start..piece_end(&run, start).min(self.range.end);
        let mut events = Vec::new();
        let read = self.session.read_run(&self.frames, &run, &piece, &mut |event| {
            events.push(event.into_owned());
            Ok(())
        });
        if read.as_ref().is_err_and(|error| error.rule() == Some(MOVED)) {
            self.session.store.refresh()?;
            let places = self.session.places(&self.range)?;
            (self.frames, self.runs) = (places.frames, places.runs.into_iter());
            return Ok(());
        }
        self.range.start = match &read {
            Ok(()) => piece.end,
            // Behind the event that is lost.
            Err(error) => error.seq().map_or(piece.end, |lost| lost.next().max(start.next())),
        };
        self.run = Some(run);
        self.piece = events.into_iter();
        read
    }
}

impl Iterator for Events {
    type Item = Result<Event<'static>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.piece.next() {
                return Some(Ok(event));
            }
            if self.range.start >= self.range.end {
                return None;
            }
            if let Err(error) = self.next_piece() {
                return Some(Err(error));
            }
        }
    }
}

/// Where the frame or unit that holds `seq` ends.
fn piece_end(run: &Run, seq: Seq) -> Seq {
    match &run.at {
        Place::Frame(_) => run.end(),
        // A damaged directory row costs its events only.
        Place::Sealed(file, row) => file.unit_end(row, seq).unwrap_or_else(|_| seq.next()).min(run.end()),
    }
}

fn inherited_runs(entry: &Entry, range: &Range<Seq>, runs: &mut Vec<Run>) {
    // Walk up the chain of owners, then collect from the oldest down.
    let mut chain = Vec::new();
    let mut shared = entry.shared();
    let mut end = range.end;
    while let Some(link) = shared {
        end = end.min(link.end);
        chain.push((&link.owner, end));
        shared = link.owner.shared();
    }
    for (owner, end) in chain.into_iter().rev().filter(|(_, end)| range.start < *end) {
        let state = owner.state.lock();
        runs.extend(overlapping(&state.row.runs, &(range.start..end)).map(|run| clipped(run, end)));
    }
}

/// The runs that hold a seq of `range`; runs are in seq order.
fn overlapping<'r>(runs: &'r [Run], range: &Range<Seq>) -> impl Iterator<Item = Run> + use<'r> {
    let from = runs.partition_point(|run| run.end() <= range.start);
    let to = runs.partition_point(|run| run.first < range.end);
    runs[from..to.max(from)].iter().cloned()
}

/// The run without events at or after `end`.
fn clipped(run: Run, end: Seq) -> Run {
    let count = end.get().saturating_sub(run.first.get()).min(u64::from(run.count));
    Run { count: u32::try_from(count).unwrap_or(run.count), ..run }
}
