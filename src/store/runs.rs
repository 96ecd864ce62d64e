//! Where a session's events lie, and reading them run by run: frames of raw segments, units of sealed files.
//!
//! Sealing moves events while others read them. A read that finds its place gone looks up the new one and goes on at
//! the event where it was; nothing is shown twice.

use std::ops::Range;

use super::catalog::Shared;
use super::places::{Place, Run};
use super::records::{owned_event, read_event};
use super::session::{Entry, EntryState, Session};
use crate::event::{Event, RefusalKind};
use crate::format::sealed::{SealedItem, SealedName, StoredPiece};
use crate::format::{Record, RecordReader};
use crate::ids::{Position, Seq};
use crate::limits::CACHED_RANGE_UNITS_MAX;
use crate::log::{Frame, FrameReader, Want};
use crate::{Error, ErrorKind, Result};

/// Rule of the error for a place that sealing took away.
pub(super) const MOVED: &str = "moved";
/// How often a read looks up a place anew before it gives up.
const LOOKUPS_MAX: u32 = 8;

/// How the data of one event is stored.
pub(super) enum StoredData {
    /// As it is.
    Plain,
    /// As so many bytes that say what changed since an earlier one.
    Patch(u64),
    /// As a piece of a sealed file.
    Piece(SealedName, StoredPiece),
    /// Compressed together with that of other events.
    Shared,
}

/// How events are read.
#[derive(Clone, Copy)]
pub(super) struct Reading<'r> {
    /// The events whose data is wanted; that of others is left out where it would have to be decoded.
    pub(super) want: &'r Want<'r>,
    /// They may be asked for again: unless there are many, what was decoded of sealed files is kept.
    pub(super) keeps: bool,
}

impl Reading<'_> {
    /// All data, and none is kept.
    pub(super) const SCAN: Self = Self { want: &|_, _| true, keeps: false };
    /// All data.
    pub(super) const KEEPING: Self = Self { want: &|_, _| true, keeps: true };
}

pub(super) type Each<'e> = dyn FnMut(Event<'_>) -> Result<()> + 'e;
pub(super) type EachRecord<'e> = dyn FnMut(Seq, &Record<'_>) -> Result<()> + 'e;

impl Session {
    /// Reads `range` from the files.
    pub(super) fn scan(&self, range: Range<Seq>, each: &mut Each<'_>) -> Result<()> {
        self.read_range(range, Reading::SCAN, &mut |seq, record| each(read_event(seq, record)?))
    }

    /// Reads `range`, looking up its places again when they are gone. No lock is held while `each` runs.
    pub(super) fn read_range(
        &self,
        range: Range<Seq>,
        reading: Reading<'_>,
        each: &mut EachRecord<'_>,
    ) -> Result<()> {
        let mut next = range.start;
        loop {
            let start = next;
            let read = self.again_if_moved(&mut || {
                let places = self.places(&(next..range.end))?;
                let rest = next..places.end;
                self.read_runs(&places, &rest, reading, &mut |seq, record| {
                    next = seq.next();
                    each(seq, record)
                })
            });
            // A long scan may meet many places that are gone; it gives up where it stands still.
            match read {
                Err(error) if error.rule() == Some(MOVED) && next > start => {}
                read => return read,
            }
        }
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
        let places = Places { frames: self.store.frames(), runs, end };
        self.read_runs(&places, &(range.start..end), Reading::SCAN, &mut |seq, record| {
            each(read_event(seq, record)?)
        })
    }

    /// Reads one event; `None` if there is none.
    pub(super) fn read_one(&self, seq: Seq) -> Result<Option<Event<'static>>> {
        let mut event = None;
        self.again_if_moved(&mut || {
            let Some((frames, run)) = self.place_of(seq)? else { return Ok(()) };
            self.read_run(&frames, &run, &(seq..seq.next()), Reading::KEEPING, &mut |seq, record| {
                event = Some(owned_event(seq, record)?);
                Ok(())
            })
        })?;
        Ok(event)
    }

    /// Reads those of `wanted`, which is in order, that stand in one frame or unit with the first of them.
    pub(super) fn read_beside(&self, wanted: &[Seq], each: &mut Each<'_>) -> Result<()> {
        let Some(&first) = wanted.first() else { return Ok(()) };
        self.again_if_moved(&mut || {
            let Some((frames, run)) = self.place_of(first)? else { return Ok(()) };
            let end = piece_end(&run, first);
            let beside = &wanted[..wanted.partition_point(|seq| *seq < end)];
            let range = first..beside.last().map_or(first, |last| last.next());
            let is_wanted = |seq| beside.binary_search(&seq).is_ok();
            let reading = Reading { want: &|seq, _| is_wanted(seq), keeps: true };
            self.read_run(&frames, &run, &range, reading, &mut |seq, record| {
                if is_wanted(seq) { each(read_event(seq, record)?) } else { Ok(()) }
            })
        })
    }

    /// How the data of an event is stored.
    pub(super) fn stored_data(&self, seq: Seq) -> Result<StoredData> {
        self.again_if_moved(&mut || {
            let places = self.places(&(seq..seq.next()))?;
            match places.runs.last().map(|run| &run.at) {
                Some(Place::Sealed(file, row)) => {
                    let piece = self.store.with_decoder(|decoder| file.piece_of(row, seq, decoder))?;
                    Ok(piece.map_or(StoredData::Shared, |piece| StoredData::Piece(file.name(), piece)))
                }
                Some(Place::Frame(at)) => {
                    let header = read_frame(&places.frames, *at)?.header;
                    let patch = header.is_patch().then(|| u64::from(header.payload_bytes));
                    Ok(patch.map_or(StoredData::Plain, StoredData::Patch))
                }
                None => Ok(StoredData::Plain),
            }
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

    /// Where the event `seq` lies; `None` if it is not written.
    fn place_of(&self, seq: Seq) -> Result<Option<(FrameReader, Run)>> {
        let mut state = self.lock()?;
        state.settle()?;
        if seq.get() >= state.row.next_seq {
            return Ok(None);
        }
        let run = match self.entry.shared().filter(|shared| seq < shared.end) {
            None => run_at(&state.row.runs, seq),
            Some(shared) => inherited_run(shared, seq),
        };
        let frames = self.store.frames();
        drop(state);
        run.map(|run| Some((frames, run))).ok_or_else(|| self.missing(seq))
    }

    /// The runs that hold events of `range`, inherited ones first.
    pub(super) fn runs(&self, state: &EntryState, range: &Range<Seq>) -> Vec<Run> {
        let mut runs = Vec::new();
        if range.start < range.end {
            inherited_runs(&self.entry, range, &mut runs);
            runs.extend(overlapping(&state.row.runs, range));
        }
        runs
    }

    /// Reads the runs of `range`. Every seq lies in exactly one of them (invariant 4).
    fn read_runs(
        &self,
        places: &Places,
        range: &Range<Seq>,
        reading: Reading<'_>,
        each: &mut EachRecord<'_>,
    ) -> Result<()> {
        let reading = Reading { keeps: reading.keeps && is_short(&places.runs, range), ..reading };
        let mut next = range.start;
        for run in &places.runs {
            self.check_next(run, next, range)?;
            self.read_run(&places.frames, run, range, reading, each)?;
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

    pub(super) fn missing(&self, seq: Seq) -> Error {
        let message = format!("read session {}: events are damaged or missing; run verify", self.id());
        Error::new(ErrorKind::Corrupt, message).with_refusal(RefusalKind::SeqGap).with_seq(seq)
    }

    fn read_run(
        &self,
        frames: &FrameReader,
        run: &Run,
        range: &Range<Seq>,
        reading: Reading<'_>,
        each: &mut EachRecord<'_>,
    ) -> Result<()> {
        self.check_cancelled()?;
        let range = range.start.max(run.first)..range.end.min(run.end());
        let (file, row) = match &run.at {
            Place::Frame(at) => return read_events(frames, *at, run, range, each),
            Place::Sealed(file, row) => (file, row),
        };
        let mut visit = |item: SealedItem<'_>| match item {
            SealedItem::Event(seq, record) => each(seq, &record),
            SealedItem::Unreadable(lost, error) => Err(error.with_seq(lost.start)),
        };
        self.store.with_decoder(|decoder| match reading.keeps {
            true => file.events_cached(row, range, reading.want, decoder, &mut visit),
            // The system maps pages in clusters: a single event would hold many times its own memory.
            false if range.start.next() == range.end => {
                file.by_position()?.events(row, range, reading.want, decoder, &mut visit)
            }
            false => file.events(row, range, reading.want, decoder, &mut visit),
        })
    }
}

/// Reads events of a frame.
fn read_events(
    frames: &FrameReader,
    at: Position,
    run: &Run,
    range: Range<Seq>,
    each: &mut EachRecord<'_>,
) -> Result<()> {
    let frame = read_frame(frames, at).map_err(|error| match error.kind() {
        ErrorKind::NotFound => error,
        _ => error.with_seq(run.first),
    })?;
    for item in RecordReader::new(&frame.payload, run.first, frame.header.count) {
        let (seq, record) = item?;
        if seq >= range.end {
            break;
        }
        if seq >= range.start {
            each(seq, &record)?;
        }
    }
    Ok(())
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
    /// Few enough are read to keep what is decoded for later reads.
    keeps: bool,
    piece: std::vec::IntoIter<Event<'static>>,
}

impl Events {
    pub(super) fn new(session: &Session, range: Range<Seq>) -> Result<Self> {
        let Places { frames, runs, end } = session.places(&range)?;
        let range = range.start..end;
        let keeps = is_short(&runs, &range);
        let (runs, piece) = (runs.into_iter(), Vec::new().into_iter());
        Ok(Self { session: session.clone(), range, frames, runs, run: None, keeps, piece })
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
        let reading = Reading { keeps: self.keeps, ..Reading::SCAN };
        let read = self.session.read_run(&self.frames, &run, &piece, reading, &mut |seq, record| {
            events.push(owned_event(seq, record)?);
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

/// Reads a frame where it was; sealing may have taken it away.
fn read_frame(frames: &FrameReader, at: Position) -> Result<Frame> {
    frames.read(at).map_err(|error| match error.kind() {
        ErrorKind::NotFound => error.with_rule(MOVED),
        _ => error,
    })
}

/// Where the frame or unit that holds `seq` ends.
fn piece_end(run: &Run, seq: Seq) -> Seq {
    match &run.at {
        Place::Frame(_) => run.end(),
        // A damaged directory row costs its events only.
        Place::Sealed(file, row) => file.unit_end(row, seq).unwrap_or_else(|_| seq.next()).min(run.end()),
    }
}

/// Whether so few frames and units hold the range that what is decoded of them is worth keeping.
fn is_short(runs: &[Run], range: &Range<Seq>) -> bool {
    let pieces = |run: &Run| match &run.at {
        Place::Frame(_) => 1,
        Place::Sealed(file, row) => {
            file.units_within(row, &(range.start.max(run.first)..range.end.min(run.end())))
        }
    };
    let at_most = usize::try_from(CACHED_RANGE_UNITS_MAX).unwrap_or(usize::MAX);
    runs.len() <= at_most && runs.iter().map(pieces).fold(0, u32::saturating_add) <= CACHED_RANGE_UNITS_MAX
}

/// The run that holds an event which a session shares, as far as it is shared: its owner may go on in it.
fn inherited_run(shared: &Shared, seq: Seq) -> Option<Run> {
    let (mut owner, mut end) = (&shared.owner, shared.end);
    while let Some(shared) = owner.shared().filter(|shared| seq < shared.end) {
        (owner, end) = (&shared.owner, end.min(shared.end));
    }
    let run = run_at(&owner.state.lock().row.runs, seq)?;
    Some(clipped(run, end))
}

/// The run that holds `seq`; runs are in seq order.
fn run_at(runs: &[Run], seq: Seq) -> Option<Run> {
    let run = runs.get(runs.partition_point(|run| run.end() <= seq))?;
    (run.first <= seq).then(|| run.clone())
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
