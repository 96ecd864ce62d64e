//! One pass over a log: places records on branches, and runs those of the way that is kept through the gate. Where records
//! come from, and what stands between them, is the part of [`lines`] and of `rows`.
//!
//! A plan is what a pass finds without writing; applying it is the same pass with a [`Sink`]. Both decide alike because
//! nothing here knows which of the two it is. Memory is that of the largest record, the projections and the branches.

pub(super) mod lines;
#[cfg(feature = "sqlite")]
pub(super) mod rows;

use self::lines::LineState;
use super::branches::{Branches, Claim, Spot, Stands};
use super::plan::{Action, Step, Steps, Summary};
use crate::error::Result;
use crate::event::json::Digester;
use crate::event::{
    Candidate, Event, Family, Origin, Payload, Refusal, RefusalKind, SessionHeader, SessionState,
    WarningKind, admit, legacy_kind, legacy_refusal, parse_record,
};
use crate::ids::Seq;
use crate::import::packed::{self, CHUNK_TYPE, Rows};
use crate::import::{Decoded, JudgeOptions, Session};

/// Takes what a pass keeps, and what it cuts.
pub(super) trait Sink {
    /// The next event of the repaired log.
    fn keep(&mut self, event: &Event<'_>) -> Result<()>;
    /// A whole record that is lost to it, as its bytes stand in the source.
    fn save(&mut self, record: &[u8]) -> Result<()>;
}

/// The sink of a plan.
pub(super) struct Nowhere;

impl Sink for Nowhere {
    fn keep(&mut self, _event: &Event<'_>) -> Result<()> {
        Ok(())
    }

    fn save(&mut self, _record: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Which records are kept, as far as that is chosen and not found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route {
    /// The branches on the way, and where the way leaves each of them.
    pub(super) way: Vec<(usize, Option<Seq>)>,
    /// Where the way ends, and why it must.
    pub(super) end: Option<(Seq, RefusalKind)>,
    /// Of rows: in the order in which they were written, which tells writers apart, not in that of their seqs.
    pub(super) as_written: bool,
}

impl Default for Route {
    fn default() -> Self {
        Self { way: vec![(0, None)], end: None, as_written: false }
    }
}

/// What a pass found.
pub(super) struct Findings {
    pub(super) header: Option<SessionHeader>,
    pub(super) steps: Steps,
    pub(super) summary: Summary,
    pub(super) branches: Branches,
    pub(super) packed: bool,
    pub(super) digest: u128,
    /// Why no repair helps.
    pub(super) refusal: Option<Refusal>,
    /// Why the turn that is open at the end cannot be closed, and the end of the last one that is closed.
    pub(super) unclosable: Option<(Seq, RefusalKind)>,
    /// Rows that were read in the order of their seqs claim one twice: the order in which they were written tells by whom.
    pub(super) unordered: bool,
}

struct Pass<'p> {
    options: &'p JudgeOptions,
    route: &'p Route,
    sink: &'p mut dyn Sink,
    header: Option<(SessionHeader, u128)>,
    session: Session,
    branches: Branches,
    steps: Steps,
    summary: Summary,
    packed: bool,
    digest: Digester,
    refusal: Option<Refusal>,
    legacy: Option<Refusal>,
    /// Why the next event of the way is missing, once it is known.
    broken: Option<RefusalKind>,
    /// Seq after the last `turn/end`.
    last_closed: Seq,
    lines: LineState,
}

/// Where something stands.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    line: Option<u64>,
    offset: Option<u64>,
    frame: Option<u64>,
    row: Option<i64>,
}

/// A record that is a JSON object.
#[derive(Clone, Copy)]
struct Object<'a> {
    place: Place,
    bytes: &'a [u8],
    decoded: &'a Decoded<'a>,
    digest: u128,
    seq: Option<Seq>,
    events: u64,
    /// It may be a packed row: its type says so.
    may_pack: bool,
}

impl<'a> Object<'a> {
    fn new(place: Place, bytes: &'a [u8], decoded: &'a Decoded<'a>) -> Self {
        Self { place, bytes, decoded, digest: digest_of(bytes), seq: None, events: 1, may_pack: true }
    }
}

impl<'p> Pass<'p> {
    fn new(options: &'p JudgeOptions, route: &'p Route, sink: &'p mut dyn Sink) -> Self {
        Self {
            options,
            route,
            sink,
            header: None,
            session: Session::new("", None),
            branches: Branches::new(),
            steps: Steps::default(),
            summary: Summary::default(),
            packed: false,
            digest: Digester::default(),
            refusal: None,
            legacy: None,
            broken: None,
            last_closed: Seq::new(0),
            lines: LineState::default(),
        }
    }

    fn finish(mut self) -> Findings {
        self.summary.events_kept = self.session.next_seq().get();
        let unclosable = match self.close() {
            Ok(open_turn) => {
                self.summary.open_turn = open_turn;
                None
            }
            Err(refusal) => Some((self.last_closed, refusal.kind)),
        };
        Findings {
            unordered: false,
            header: self.header.map(|(header, _)| header),
            steps: self.steps,
            summary: self.summary,
            branches: self.branches,
            packed: self.packed,
            digest: self.digest.finish(),
            refusal: self.legacy.or(self.refusal),
            unclosable,
        }
    }

    /// Whether nothing that may follow can change that the log is refused.
    fn is_decided(&self) -> bool {
        let foreign =
            |refusal: &Refusal| matches!(refusal.kind, RefusalKind::NewerFormat | RefusalKind::OlderFormat);
        self.refusal.as_ref().is_some_and(foreign)
            || self.legacy.as_ref().is_some_and(|legacy| legacy.kind == RefusalKind::LegacyHeaderDelta)
    }

    /// Takes note of a record; `false` if the log is refused and no record counts any more.
    fn counts(&mut self, object: &Object<'_>) -> bool {
        let decoded = object.decoded;
        self.digest.bytes(&object.digest.to_le_bytes());
        if let Some(kind) = legacy_kind(&decoded.text, &decoded.scan) {
            let refusal = placed(legacy_refusal(kind, decoded.seq_member("seq")), object.place);
            // The kinds stand in the order in which the format looks for them (spec section 6.1).
            if self.legacy.as_ref().is_none_or(|standing| kind < standing.kind) {
                self.legacy = Some(refusal);
            }
        }
        self.refusal.is_none() && self.legacy.is_none()
    }

    /// Whether a turn is open at the end; every load must be able to close it (spec section 9).
    fn close(&mut self) -> std::result::Result<bool, Refusal> {
        let closers = self.session.state.closers()?;
        let open = !closers.is_empty();
        for closer in closers {
            let event = admit(&self.session, closer, Origin::Import, &self.options.vocabulary)?;
            self.session.fold(&event, None);
        }
        Ok(open)
    }

    fn event(&mut self, mut object: Object<'_>) -> Result<()> {
        let decoded = object.decoded;
        let rows = match object.may_pack.then(|| packed::expand(&decoded.text, &decoded.scan)).transpose() {
            Ok(rows) => rows.flatten(),
            Err(refusal) => {
                object.seq = refusal.seq;
                return self.cut(&object, refusal.kind, &refusal.message);
            }
        };
        let seq = match &rows {
            None => decoded.seq_member("seq"),
            Some(rows) => {
                (object.events, self.packed) = (rows.count_members(), true);
                Some(rows.next_seq())
            }
        };
        let Some(seq) = seq else {
            return self.cut(&object, RefusalKind::Envelope, "it has no usable seq");
        };
        object.seq = Some(seq);
        let type_name = decoded.type_word().unwrap_or_default();
        let time = decoded.member("time").or(decoded.member("time0")).and_then(|time| time.safe_integer());
        let claim = Claim {
            seq,
            events: object.events,
            time,
            type_name: &type_name,
            digest: object.digest,
            place: match object.place.row {
                Some(row) => Spot::Row(row),
                None => Spot::Text {
                    line: object.place.line.unwrap_or_default(),
                    offset: object.place.offset.unwrap_or_default(),
                },
            },
        };
        match self.branches.place(&claim) {
            Stands::On(branch) => match self.route.way.iter().find(|(on, _)| *on == branch) {
                Some(&(_, until)) if until.is_none_or(|until| seq < until) => {
                    self.gate(object, seq, rows, (branch, until))
                }
                _ => self.other_branch(&object, branch),
            },
            Stands::Repeats => {
                self.repeated(&object);
                Ok(())
            }
            Stands::BehindGap => self.behind_gap(&object, seq),
            Stands::OneTooMany => self.cut(
                &object,
                RefusalKind::SeqFork,
                "its seq is taken, in more branches than can be told apart",
            ),
        }
    }

    /// Runs an event, or the events of a row as far as the way goes along its branch, through the gate.
    fn gate(
        &mut self,
        object: Object<'_>,
        seq: Seq,
        rows: Option<Rows<'_>>,
        (branch, until): (usize, Option<Seq>),
    ) -> Result<()> {
        if let Some((end, kind)) = self.route.end
            && seq >= end
        {
            let message = "it belongs to a turn that no load could close";
            return self.cut(&object, kind, message);
        }
        if seq != self.session.next_seq() {
            return self.behind_gap(&object, seq);
        }
        match rows {
            Some(rows) => self.members(&object, rows, (branch, until))?,
            None => match parse_record(&object.decoded.text, &object.decoded.scan) {
                Ok(candidate) => self.admit(&object, candidate)?,
                Err(refusal) => self.refused(&object, refusal)?,
            },
        }
        if self.session.next_seq() > seq {
            self.replaced_bytes(&object);
        }
        Ok(())
    }

    fn members(
        &mut self,
        object: &Object<'_>,
        rows: Rows<'_>,
        (branch, until): (usize, Option<Seq>),
    ) -> Result<()> {
        let end = rows.next_seq().get() + object.events;
        for member in rows {
            // What is kept of a row is not lost with the rest of it.
            let rest = Object { seq: Some(member.seq), events: end - member.seq.get(), ..*object };
            if until.is_some_and(|until| member.seq >= until) {
                return self.other_branch(&rest, branch);
            }
            let mut candidate = Candidate::new(CHUNK_TYPE, member.time, Payload::from(member.data));
            candidate.seq = Some(member.seq);
            self.admit(&rest, candidate)?;
            if self.broken.is_some() || self.refusal.is_some() {
                break;
            }
        }
        Ok(())
    }

    fn admit(&mut self, object: &Object<'_>, candidate: Candidate<'_>) -> Result<()> {
        let event = match admit(&self.session, candidate, Origin::Import, &self.options.vocabulary) {
            Ok(event) => event,
            Err(refusal) => return self.refused(object, refusal),
        };
        let normalised = event.warnings().iter().filter(|warning| warning.kind == WarningKind::Normalised);
        for warning in normalised {
            let message = || warning.message.clone();
            let kind = WarningKind::Normalised.as_str();
            self.steps.add(Action::Normalise, kind, (1, 0), || Step {
                seq: warning.seq,
                type_name: object.decoded.type_word(),
                ..step(Action::Normalise, kind, object.place, 1, 0, message())
            });
        }
        self.session.fold(&event, object.place.line);
        if event.event().type_name == "turn/end" {
            self.last_closed = self.session.next_seq();
        }
        self.sink.keep(event.event())
    }

    /// The gate refuses the event that comes next: the log of this way ends here.
    fn refused(&mut self, object: &Object<'_>, refusal: Refusal) -> Result<()> {
        if refusal.family() == Family::Unsupported && refusal.kind != RefusalKind::Limit {
            self.refusal = Some(placed(refusal, object.place));
            return Ok(());
        }
        self.broken = Some(refusal.kind);
        self.cut(object, refusal.kind, &refusal.message)
    }

    fn behind_gap(&mut self, object: &Object<'_>, seq: Seq) -> Result<()> {
        let expected = self.session.next_seq();
        self.lose(expected, 0);
        let kind = self.broken.unwrap_or(RefusalKind::SeqGap);
        self.cut(object, kind, &format!("the log can only go on with seq {expected}, this is seq {seq}"))
    }

    fn repeated(&mut self, object: &Object<'_>) {
        let message = "it repeats an earlier record byte for byte: it goes";
        self.record_step(Action::DropRepeated, RefusalKind::SeqFork.as_str(), object, message);
    }

    fn other_branch(&mut self, object: &Object<'_>, branch: usize) -> Result<()> {
        let message = format!("it belongs to branch {}, which is not kept", branch + 1);
        self.lost(Action::DropBranch, RefusalKind::SeqFork.as_str(), object, &message)
    }

    fn cut(&mut self, object: &Object<'_>, kind: RefusalKind, why: &str) -> Result<()> {
        self.lost(Action::Cut, kind.as_str(), object, &format!("{why}: it is cut"))
    }

    /// A whole record is lost to the log and saved beside it.
    fn lost(&mut self, action: Action, kind: &'static str, object: &Object<'_>, message: &str) -> Result<()> {
        self.summary.events_lost += object.events;
        self.summary.records_saved += 1;
        self.lose(object.seq.unwrap_or(self.session.next_seq()), object.bytes.len() as u64);
        self.record_step(action, kind, object, message);
        self.sink.save(object.bytes)
    }

    fn lose(&mut self, seq: Seq, bytes: u64) {
        self.summary.bytes_lost += bytes;
        self.summary.first_lost = Some(self.summary.first_lost.map_or(seq, |first| first.min(seq)));
    }

    /// Bytes of a record that is kept which are no UTF-8.
    fn replaced_bytes(&mut self, object: &Object<'_>) {
        let Some(at) = object.decoded.bad_utf8 else { return };
        let bytes: usize = object.bytes.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
        let offset = object.place.offset.map(|offset| offset + at);
        let place = Place { offset, ..object.place };
        let kind = RefusalKind::InvalidUtf8.as_str();
        let (seq, bytes) = (object.decoded.seq_member("seq"), bytes as u64);
        self.summary.bytes_lost += bytes;
        self.steps.add(Action::ReplaceBytes, kind, (1, bytes), || Step {
            seq,
            type_name: object.decoded.type_word(),
            ..step(
                Action::ReplaceBytes,
                kind,
                place,
                1,
                bytes,
                format!("bytes that are no UTF-8 ({bytes}) become U+FFFD; the event is kept"),
            )
        });
    }

    fn record_step(&mut self, action: Action, kind: &'static str, object: &Object<'_>, message: &str) {
        let (events, bytes) = (object.events, object.bytes.len() as u64);
        self.steps.add(action, kind, (events, bytes), || Step {
            seq: object.seq,
            type_name: object.decoded.type_word(),
            ..step(action, kind, object.place, events, bytes, message.to_owned())
        });
    }

    fn step(
        &mut self,
        action: Action,
        kind: &'static str,
        place: Place,
        bytes: u64,
        message: impl FnOnce() -> String,
    ) {
        self.steps.add(action, kind, (0, bytes), || step(action, kind, place, 0, bytes, message()));
    }
}

fn step(action: Action, kind: &'static str, place: Place, events: u64, bytes: u64, message: String) -> Step {
    let Place { line, offset, frame, row } = place;
    Step { action, kind, line, offset, frame, row, seq: None, type_name: None, events, bytes, message }
}

fn placed(mut refusal: Refusal, place: Place) -> Refusal {
    refusal.line = refusal.line.or(place.line);
    refusal.offset = refusal.offset.or(place.offset);
    refusal
}

/// Of a record without the white space around it.
fn digest_of(bytes: &[u8]) -> u128 {
    let mut digester = Digester::default();
    digester.bytes(bytes.trim_ascii());
    digester.finish()
}
