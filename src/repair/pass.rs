//! One pass over a source: takes lines apart, places records on branches, and runs those of the way that is kept through
//! the gate.
//!
//! A plan is what a pass finds without writing; applying it is the same pass with a [`Sink`]. Both decide alike because
//! nothing here knows which of the two it is. Memory is that of the largest record, the projections and the branches.

use super::branches::{Branches, Claim, Stands};
use super::pieces::{Junk, Pieces, What};
use super::plan::{Action, Step, Steps, Summary};
use super::source::Source;
use crate::error::Result;
use crate::event::json::Digester;
use crate::event::{
    Candidate, Event, Family, Origin, Payload, Refusal, RefusalKind, RepairKind, SessionHeader, SessionState,
    WarningKind, admit, legacy_kind, legacy_refusal, parse_header_line, parse_record,
};
use crate::ids::Seq;
use crate::import::packed::{self, CHUNK_TYPE, Rows};
use crate::import::{Decoded, Item, JudgeOptions, PADDING_RULES, Record, Session};

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
}

impl Default for Route {
    fn default() -> Self {
        Self { way: vec![(0, None)], end: None }
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
}

/// Makes one pass.
pub(super) fn run(
    source: &Source,
    options: &JudgeOptions,
    route: &Route,
    progress: &dyn Fn(u64),
    sink: &mut dyn Sink,
) -> Result<Findings> {
    let mut reader = source.open(progress)?;
    let mut pass = Pass::new(options, route, sink);
    while let Some((item, frame)) = source.next(&mut reader)? {
        match item {
            Item::Record(record) => pass.line(&record, frame)?,
            Item::Fault(refusal) => pass.fault(refusal, frame),
            Item::TornFrame { offset, bytes } => pass.torn_frame(offset, bytes, frame),
            // Readers of databases alone yield these, and no pass uses one.
            Item::Unusable(_, refusal) => pass.fault(refusal, frame),
            Item::HeaderRow { .. } => {}
        }
    }
    pass.settle_padding(source.stamp.bytes, source.is_plain());
    Ok(pass.finish())
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
    /// The log of another session begins: nothing that follows belongs to this one.
    foreign: bool,
    /// Seq after the last `turn/end`.
    last_closed: Seq,
    /// The first line that a carriage return ends, and how many there are.
    carriage_returns: Option<(Place, u64)>,
    /// A line of nothing but NULs: where it begins, how much of it was seen, and its step.
    padding: Option<(u64, u64, usize)>,
}

/// Where something stands.
#[derive(Debug, Clone, Copy)]
struct Place {
    line: Option<u64>,
    offset: Option<u64>,
    frame: Option<u64>,
}

/// An object on its line.
struct Object<'a> {
    place: Place,
    bytes: &'a [u8],
    decoded: &'a Decoded<'a>,
    digest: u128,
    seq: Option<Seq>,
    events: u64,
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
            foreign: false,
            last_closed: Seq::new(0),
            carriage_returns: None,
            padding: None,
        }
    }

    fn finish(mut self) -> Findings {
        if self.header.is_none() {
            let (kind, message) = match self.steps.is_empty() {
                true => (RefusalKind::Empty, "there is nothing in it, not even a session header"),
                false => (RefusalKind::NoHeader, "no session header can be read in it"),
            };
            self.refusal.get_or_insert_with(|| Refusal::new(kind, "header-line", message));
        }
        if let Some((place, lines)) = self.carriage_returns.take() {
            let message = format!("a carriage return stands before the line feed of {lines} lines: they go");
            self.step(Action::StripCarriageReturns, "crlf", place, lines, || message);
        }
        self.summary.events_kept = self.session.next_seq().get();
        let unclosable = match self.close() {
            Ok(open_turn) => {
                self.summary.open_turn = open_turn;
                None
            }
            Err(refusal) => Some((self.last_closed, refusal.kind)),
        };
        Findings {
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

    fn line(&mut self, record: &Record<'_>, frame: Option<u64>) -> Result<()> {
        let place = Place { line: Some(record.line), offset: Some(record.offset), frame };
        self.settle_padding(record.offset, true);
        self.digest.bytes(&record.offset.to_le_bytes());
        let (mut pieces, mut objects, mut last_is_object) = (0_u64, 0_u64, false);
        for piece in Pieces::of(record.bytes) {
            let place = Place { offset: Some(record.offset + piece.at as u64), ..place };
            let bytes = piece.bytes.len() as u64;
            pieces += 1;
            last_is_object = false;
            match piece.what {
                What::Bom => {
                    let message = "a byte order mark stands before the record: it goes";
                    self.step(Action::StripBom, RefusalKind::Bom.as_str(), place, bytes, || message.into());
                }
                What::Nuls => {
                    let message = "NUL bytes that no writer wrote: they go";
                    let kind = if record.ended { RefusalKind::NulPadding.as_str() } else { NUL_TAIL };
                    self.step(Action::StripPadding, kind, place, bytes, || message.into());
                    if piece.at == 0 && piece.bytes.len() == record.bytes.len() {
                        let seen = bytes + u64::from(record.ended);
                        let index = self.steps.listed().len().saturating_sub(1);
                        self.padding = Some((record.offset, seen, index));
                    }
                }
                What::Object(decoded) => {
                    (objects, last_is_object) = (objects + 1, true);
                    if objects == 2 {
                        let message = "several whole records stand on this line: each gets its own";
                        let kind = RefusalKind::GluedRecord.as_str();
                        self.step(Action::SplitLine, kind, place, 0, || message.into());
                    }
                    self.object(place, piece.bytes, &decoded)?;
                }
                What::Junk(junk) => self.junk(place, piece.bytes, junk, record.ended),
            }
        }
        if pieces == 0 {
            let bytes = record.bytes.len() as u64 + u64::from(record.ended);
            let kind = RefusalKind::BlankRecord.as_str();
            self.step(Action::DropBlank, kind, place, bytes, || "the line is blank: it goes".into());
        } else if record.ended && record.bytes.ends_with(b"\r") {
            self.carriage_returns.get_or_insert((place, 0)).1 += 1;
        }
        if last_is_object && !record.ended {
            let message = "the last record is whole and has no line feed: it gets one";
            let kind = RepairKind::TornTail.as_str();
            self.step(Action::EndLine, kind, place, 0, || message.into());
        }
        Ok(())
    }

    /// A long run of NULs is handed over shortened; where the next line begins tells its length.
    fn settle_padding(&mut self, next_offset: u64, known: bool) {
        if let Some((offset, seen, index)) = self.padding.take().filter(|_| known) {
            self.steps.add_bytes(index, next_offset.saturating_sub(offset + seen));
        }
    }

    fn fault(&mut self, refusal: Refusal, frame: Option<u64>) {
        let frame = frame.filter(|_| refusal.kind != RefusalKind::Limit);
        self.digest.bytes(refusal.kind.as_str().as_bytes());
        self.digest.bytes(&refusal.offset.unwrap_or_default().to_le_bytes());
        let place = Place { line: refusal.line, offset: refusal.offset, frame };
        let (action, what) = match refusal.kind {
            RefusalKind::ZstdFirstFrame => (Action::Reframe, "the text is framed anew"),
            _ if PADDING_RULES.contains(&refusal.rule) => (Action::StripPadding, "they go"),
            RefusalKind::Limit => (Action::Drop, "it is lost"),
            _ => (Action::Drop, "what the frame held is lost"),
        };
        if action == Action::Drop {
            self.summary.events_lost += u64::from(refusal.kind == RefusalKind::Limit);
            self.lose(self.session.next_seq(), 0);
        }
        self.step(action, refusal.kind.as_str(), place, 0, || format!("{}: {what}", refusal.message));
    }

    fn torn_frame(&mut self, offset: u64, bytes: u64, frame: Option<u64>) {
        self.digest.bytes(&[offset, bytes].map(u64::to_le_bytes).concat());
        let place = Place { line: None, offset: Some(offset), frame };
        self.step(Action::Drop, RepairKind::TornFrame.as_str(), place, 0, || {
            format!("the zstd frame is cut or broken within its {bytes} bytes: what it still yields is read, the rest is lost")
        });
    }

    fn junk(&mut self, place: Place, bytes: &[u8], junk: Junk, ended: bool) {
        self.digest.bytes(bytes);
        let kind = if ended || !junk.was_record { junk.kind.as_str() } else { RepairKind::TornTail.as_str() };
        let (events, count) = (u64::from(junk.was_record), bytes.len() as u64);
        self.summary.events_lost += events;
        if junk.was_record {
            self.lose(junk.seq.unwrap_or(self.session.next_seq()), count);
        } else {
            self.summary.bytes_lost += count;
        }
        self.steps.add(Action::Drop, kind, (events, count), || Step {
            seq: junk.seq,
            type_name: junk.type_name,
            ..step(Action::Drop, kind, place, events, count, format!("{}; it is lost", junk.message))
        });
    }

    fn object(&mut self, place: Place, bytes: &[u8], decoded: &Decoded<'_>) -> Result<()> {
        let digest = digest_of(bytes);
        self.digest.bytes(&digest.to_le_bytes());
        if let Some(kind) = legacy_kind(&decoded.text, &decoded.scan) {
            let refusal = placed(legacy_refusal(kind, decoded.seq_member("seq")), place);
            // The kinds stand in the order in which the format looks for them (spec section 6.1).
            if self.legacy.as_ref().is_none_or(|standing| kind < standing.kind) {
                self.legacy = Some(refusal);
            }
        }
        if self.refusal.is_some() || self.legacy.is_some() {
            return Ok(());
        }
        let object = Object { place, bytes, decoded, digest, seq: None, events: 1 };
        let Some((header, header_digest)) = &self.header else {
            self.header_line(&object);
            return Ok(());
        };
        if self.foreign {
            return self.cut(&object, RefusalKind::NotAnEvent, "it follows the header of another session");
        }
        if decoded.member("type").is_some_and(|name| name.is_str("session"))
            && decoded.member("seq").is_none()
        {
            if *header_digest == digest {
                self.repeated(&object);
                return Ok(());
            }
            self.foreign = !decoded.member("id").is_some_and(|id| id.is_str(&header.id));
            let message = if self.foreign {
                "the log of another session begins here"
            } else {
                "a second header of this session"
            };
            return self.cut(&object, RefusalKind::NotAnEvent, message);
        }
        self.event(object)
    }

    fn header_line(&mut self, object: &Object<'_>) {
        match parse_header_line(&object.decoded.text) {
            Ok(header) => {
                self.session = Session::new(&header.id, header.seed_length);
                self.header = Some((header, object.digest));
                self.replaced_bytes(object);
            }
            Err(refusal) => self.refusal = Some(placed(refusal, object.place)),
        }
    }

    fn event(&mut self, mut object: Object<'_>) -> Result<()> {
        let decoded = object.decoded;
        let rows = match packed::expand(&decoded.text, &decoded.scan) {
            Ok(rows) => rows,
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
            line: object.place.line.unwrap_or_default(),
            offset: object.place.offset.unwrap_or_default(),
        };
        match self.branches.place(&claim) {
            Stands::On(branch) => match self.route.way.iter().find(|(on, _)| *on == branch) {
                Some(&(_, until)) if until.is_none_or(|until| seq < until) => {
                    self.gate(object, seq, rows, until)
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

    /// Runs an event, or the events of a row below `until`, through the gate.
    fn gate(
        &mut self,
        object: Object<'_>,
        seq: Seq,
        rows: Option<Rows<'_>>,
        until: Option<Seq>,
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
        let Some(rows) = rows else {
            let candidate = parse_record(&object.decoded.text, &object.decoded.scan);
            return match candidate {
                Ok(candidate) => self.admit(&object, candidate),
                Err(refusal) => self.refused(&object, refusal),
            };
        };
        for member in rows {
            if until.is_some_and(|until| member.seq >= until) {
                let left = seq.get() + object.events - member.seq.get();
                return self.other_branch(&Object { seq: Some(member.seq), events: left, ..object }, 0);
            }
            if self.broken.is_none() {
                let mut candidate = Candidate::new(CHUNK_TYPE, member.time, Payload::from(member.data));
                candidate.seq = Some(member.seq);
                self.admit(&object, candidate)?;
            }
        }
        Ok(())
    }

    fn admit(&mut self, object: &Object<'_>, candidate: Candidate<'_>) -> Result<()> {
        let event = match admit(&self.session, candidate, Origin::Import, &self.options.vocabulary) {
            Ok(event) => event,
            Err(refusal) => return self.refused(object, refusal),
        };
        self.replaced_bytes(object);
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

const NUL_TAIL: &str = RepairKind::NulTail.as_str();

fn step(action: Action, kind: &'static str, place: Place, events: u64, bytes: u64, message: String) -> Step {
    let Place { line, offset, frame } = place;
    Step { action, kind, line, offset, frame, seq: None, type_name: None, events, bytes, message }
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
