//! A pass over the lines of a text: each is taken apart into the records, padding and junk that stand on it.

use super::{Findings, Object, Pass, Place, Route, Sink, placed, step};
use crate::error::Result;
use crate::event::{Refusal, RefusalKind, RepairKind, SessionState, parse_header_line};
use crate::import::{Decoded, Item, JudgeOptions, PADDING_RULES, Record, Session};
use crate::repair::pieces::{Junk, Pieces, What};
use crate::repair::plan::{Action, Step};
use crate::repair::source::Source;

const NUL_TAIL: &str = RepairKind::NulTail.as_str();

/// What a pass knows of the lines so far.
#[derive(Debug, Default)]
pub(super) struct LineState {
    /// The log of another session begins: nothing that follows belongs to this one.
    foreign: bool,
    /// The first line that a carriage return ends, and how many there are.
    carriage_returns: Option<(Place, u64)>,
    /// A line of nothing but NULs: where it begins, how much of it was seen, and its step.
    padding: Option<(u64, u64, usize)>,
}

/// Makes one pass.
pub(in crate::repair) fn run(
    source: &Source,
    options: &JudgeOptions,
    route: &Route,
    progress: &dyn Fn(u64),
    sink: &mut dyn Sink,
) -> Result<Findings> {
    let mut reader = source.open(progress)?;
    let mut pass = Pass::new(options, route, sink);
    while let Some((item, frame)) = source.next(&mut reader)?.filter(|_| !pass.is_decided()) {
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
    pass.end_lines();
    Ok(pass.finish())
}

impl Pass<'_> {
    /// What is to be told of the text as a whole.
    fn end_lines(&mut self) {
        if self.header.is_none() {
            let (kind, message) = match self.steps.is_empty() {
                true => (RefusalKind::Empty, "there is nothing in it, not even a session header"),
                false => (RefusalKind::NoHeader, "no session header can be read in it"),
            };
            self.refusal.get_or_insert_with(|| Refusal::new(kind, "header-line", message));
        }
        if let Some((place, lines)) = self.lines.carriage_returns.take() {
            let message = format!("a carriage return stands before the line feed of {lines} lines: they go");
            self.step(Action::StripCarriageReturns, "crlf", place, lines, || message);
        }
    }

    fn line(&mut self, record: &Record<'_>, frame: Option<u64>) -> Result<()> {
        let place = Place { line: Some(record.line), offset: Some(record.offset), frame, ..Place::default() };
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
                        self.lines.padding = Some((record.offset, seen, index));
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
            self.lines.carriage_returns.get_or_insert((place, 0)).1 += 1;
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
        if let Some((offset, seen, index)) = self.lines.padding.take().filter(|_| known) {
            self.steps.add_bytes(index, next_offset.saturating_sub(offset + seen));
        }
    }

    fn fault(&mut self, refusal: Refusal, frame: Option<u64>) {
        let frame = frame.filter(|_| refusal.kind != RefusalKind::Limit);
        self.digest.bytes(refusal.kind.as_str().as_bytes());
        self.digest.bytes(&refusal.offset.unwrap_or_default().to_le_bytes());
        let place = Place { line: refusal.line, offset: refusal.offset, frame, ..Place::default() };
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
        let place = Place { offset: Some(offset), frame, ..Place::default() };
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
        let object = Object::new(place, bytes, decoded);
        if !self.counts(&object) {
            return Ok(());
        }
        let Some((header, header_digest)) = &self.header else {
            self.header_line(&object);
            return Ok(());
        };
        if self.lines.foreign {
            return self.cut(&object, RefusalKind::NotAnEvent, "it follows the header of another session");
        }
        if decoded.member("type").is_some_and(|name| name.is_str("session"))
            && decoded.member("seq").is_none()
        {
            if *header_digest == object.digest {
                self.repeated(&object);
                return Ok(());
            }
            self.lines.foreign = !decoded.member("id").is_some_and(|id| id.is_str(&header.id));
            let message = if self.lines.foreign {
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
}
