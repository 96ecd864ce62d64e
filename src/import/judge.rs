//! Judges a log record by record: each goes through the gate and into the projections, and what cannot is
//! weighed by where it stands (spec sections 14.3, 20 and 21).
//!
//! Three outcomes of a fault: a fault of the *stream* (an unusable record, a wrong seq) costs an open tail and
//! is repaired by cutting it, unless a `turn/end` behind it shows that committed records would be lost; a fault
//! of an *event* refuses the log at once; a *legacy* event anywhere, cut records included, outranks both. Memory
//! is that of the largest record and the projections.

mod session;
mod tail;

pub(crate) use self::session::Session;
use self::tail::{Issue, sequence_fault};
use super::decode::{Decoded, decode, is_nul_run};
use super::judgement::{Judgement, Repair};
use super::packed::{self, CHUNK_TYPE, Rows};
use super::{Item, Record, RecordOrigin, RecordSource};
use crate::error::{Error, Result};
use crate::event::{
    Admitted, Candidate, Event, Origin, Payload, Refusal, RefusalKind, RepairKind, SessionHeader,
    SessionState, Vocabulary, Warning, WarningKind, admit, legacy_kind, legacy_refusal, parse_header_line,
    parse_record,
};
use crate::ids::Seq;

/// How to judge.
#[derive(Debug, Clone, Default)]
pub struct JudgeOptions {
    /// Event types beside the known ones.
    pub vocabulary: Vocabulary,
    /// Replace invalid UTF-8 by U+FFFD, with a warning, instead of refusing it.
    pub lossy_utf8: bool,
}

/// Takes each admitted event; an error ends the judging.
pub type Sink<'s> = dyn FnMut(&Admitted<'_>) -> Result<()> + 's;

/// Judges all of a source.
///
/// The sink sees events in order as they are admitted, so it may see events of a log that is refused later; it
/// does not see the closers.
///
/// # Errors
///
/// `Io` where the source cannot be read, and whatever the sink returns. A bad log is no error.
pub fn judge(
    source: &mut dyn RecordSource,
    options: &JudgeOptions,
    sink: &mut Sink<'_>,
) -> Result<Judgement> {
    let mut judge = Judge::new(options);
    while !judge.is_decided() {
        match source.next_item() {
            Ok(Some(item)) => judge.take(item, sink)?,
            Ok(None) => break,
            Err(error) => return Err(Error::io("read a log to judge it", error)),
        }
    }
    Ok(judge.finish())
}

/// A log under judgement.
#[derive(Debug)]
pub struct Judge<'o> {
    options: &'o JudgeOptions,
    header: Option<SessionHeader>,
    session: Option<Session>,
    issue: Option<Issue>,
    torn_frame: Option<TornFrame>,
    /// The event that stood, or should have stood, in a record that is none, and the first one that is found behind it.
    lost: Option<(Seq, Option<Seq>)>,
    refusal: Option<Refusal>,
    legacy: Option<Refusal>,
    /// End of the text taken so far.
    end_offset: u64,
}

impl<'o> Judge<'o> {
    /// Before the first record.
    #[must_use]
    pub fn new(options: &'o JudgeOptions) -> Self {
        Self {
            options,
            header: None,
            session: None,
            issue: None,
            torn_frame: None,
            lost: None,
            refusal: None,
            legacy: None,
            end_offset: 0,
        }
    }

    /// The session header, once its line was taken and found good.
    #[must_use]
    pub fn header(&self) -> Option<&SessionHeader> {
        self.header.as_ref()
    }

    /// Whether nothing that may follow can change the verdict.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        let foreign = |r: &Refusal| matches!(r.kind, RefusalKind::NewerFormat | RefusalKind::OlderFormat);
        self.refusal.as_ref().is_some_and(foreign)
            || self.legacy.as_ref().is_some_and(|r| legacy_rank(r.kind) == Some(0))
    }

    /// Takes the next item.
    ///
    /// # Errors
    ///
    /// Those of the sink.
    pub fn take(&mut self, item: Item<'_>, sink: &mut Sink<'_>) -> Result<()> {
        match item {
            Item::Record(record) => self.record(&record, sink),
            Item::HeaderRow { header, .. } => {
                self.begin(*header);
                Ok(())
            }
            Item::Unusable(record, refusal) => {
                self.unusable(&record, refusal);
                Ok(())
            }
            Item::Fault(refusal) => {
                self.refuse(refusal);
                Ok(())
            }
            Item::TornFrame { offset, bytes } => {
                self.torn_frame = Some(TornFrame { offset, bytes, begins: self.end_offset });
                Ok(())
            }
        }
    }

    /// The judgement, after the last item.
    #[must_use]
    pub fn finish(mut self) -> Judgement {
        if self.session.is_none() && self.refusal.is_none() && self.legacy.is_none() {
            let message = "there is nothing in it, not even a session header";
            self.refuse(Refusal::new(RefusalKind::Empty, "header-line", message));
        }
        let mut closers = Vec::new();
        let events = self.session.as_ref().map_or(0, |s| s.state.next_seq().get());
        if self.refusal.is_none() && self.legacy.is_none() {
            match self.close() {
                Ok(added) => closers = added,
                Err(refusal) => self.refuse(refusal),
            }
        }
        let repair = self.repair(&closers);
        let refusal = self.legacy.or(self.refusal).map(|refusal| with_advice(refusal, self.lost));
        let session = self.session.unwrap_or_else(|| Session::new("", None));
        let seed_length = self.header.as_ref().and_then(|h| h.seed_length);
        let has_parent = self.header.as_ref().is_some_and(|h| h.parent_session.is_some());
        let warnings = match refusal {
            None => session.anomalies.finish(seed_length, has_parent, events),
            Some(_) => session.anomalies.into_warnings(),
        };
        Judgement {
            header: self.header,
            state: refusal.is_none().then_some(session.state),
            replacements: session.replacements,
            headers: session.headers,
            usage: session.usage,
            closers,
            warnings,
            repair: repair.filter(|_| refusal.is_none()),
            refusal,
        }
    }

    fn record(&mut self, record: &Record<'_>, sink: &mut Sink<'_>) -> Result<()> {
        self.end_offset = record.offset + record.bytes.len() as u64 + u64::from(record.ended);
        if self.refusal.is_some() || self.legacy.is_some() {
            if let Ok(decoded) = decode(record.bytes, self.options.lossy_utf8) {
                self.note_found(&decoded);
                self.look_for_legacy(record, &decoded);
            }
        } else if self.session.is_none() {
            self.header_line(record);
        } else if self.issue.is_some() {
            self.behind_issue(record);
        } else {
            self.next_record(record, sink)?;
        }
        Ok(())
    }

    /// The first record (spec section 1.2).
    fn header_line(&mut self, record: &Record<'_>) {
        let place = |refusal: Refusal| record.place().mark(refusal);
        let no_header = |message: String| Refusal::new(RefusalKind::NoHeader, "header-line", message);
        if record.bytes.starts_with(b"\xEF\xBB\xBF") {
            let message = "the file begins with a byte order mark (EF BB BF): take these 3 bytes off a copy";
            return self.refuse(place(Refusal::new(RefusalKind::Bom, "header-line", message)));
        }
        let decoded = match decode(record.bytes, self.options.lossy_utf8) {
            Ok(decoded) => decoded,
            Err(unusable) => {
                let message = format!("the first line is no session header: {}", unusable.message);
                return self.refuse(place(no_header(message)));
            }
        };
        self.look_for_legacy(record, &decoded);
        if let Some(at) = decoded.bad_utf8.filter(|_| !self.options.lossy_utf8) {
            return self.refuse(invalid_utf8(record, at));
        }
        if !record.ended {
            let message = "the session header has no line feed: its write was cut".into();
            return self.refuse(place(no_header(message)));
        }
        match parse_header_line(&decoded.text) {
            Ok(header) => {
                self.begin(header);
                self.warn_of_repeated_key(record, &decoded, None);
            }
            Err(refusal) => self.refuse(place(refusal)),
        }
    }

    fn begin(&mut self, header: SessionHeader) {
        self.session = Some(Session::new(&header.id, header.seed_length));
        self.header = Some(header);
    }

    /// A record that its container cannot give.
    fn unusable(&mut self, record: &Record<'_>, refusal: Refusal) {
        self.end_offset = record.offset + record.bytes.len() as u64;
        match &mut self.issue {
            _ if self.refusal.is_some() || self.legacy.is_some() => {}
            Some(issue) => issue.cut(record, None),
            None => self.stream_fault(record, None, refusal, RepairKind::BadTail),
        }
    }

    fn next_record(&mut self, record: &Record<'_>, sink: &mut Sink<'_>) -> Result<()> {
        let decoded = match decode(record.bytes, self.options.lossy_utf8) {
            Ok(decoded) => decoded,
            Err(unusable) => {
                let repair = match record.ended {
                    _ if is_nul_run(record.bytes) => RepairKind::NulTail,
                    true => RepairKind::BadTail,
                    false => RepairKind::TornTail,
                };
                let refusal = Refusal::new(unusable.kind, "record", unusable.message);
                self.stream_fault(record, None, refusal, repair);
                return Ok(());
            }
        };
        if !record.ended {
            let message = "the last record has no line feed: its write was cut";
            let refusal = Refusal::new(RefusalKind::CorruptRecord, "record-end", message);
            self.stream_fault(record, Some(&decoded), refusal, RepairKind::TornTail);
            return Ok(());
        }
        if let Some(at) = decoded.bad_utf8
            && !self.accepts_lossy(record, at)
        {
            self.look_for_legacy(record, &decoded);
            self.refuse(invalid_utf8(record, at));
            return Ok(());
        }
        let rows = match record.origin {
            RecordOrigin::EventRow(_) => Ok(None),
            RecordOrigin::Line | RecordOrigin::PackedRow(_) => packed::expand(&decoded.text, &decoded.scan),
        };
        match rows {
            Ok(None) => self.event(record, &decoded, sink),
            Ok(Some(rows)) => {
                self.warn_of_repeated_key(record, &decoded, Some(rows.next_seq()));
                self.packed_row(record, &decoded, rows, sink)
            }
            Err(refusal) => {
                self.stream_fault(record, Some(&decoded), refusal, RepairKind::BadTail);
                Ok(())
            }
        }
    }

    fn event(&mut self, record: &Record<'_>, decoded: &Decoded<'_>, sink: &mut Sink<'_>) -> Result<()> {
        let seq = decoded.seq_member("seq");
        if !self.continues(record, decoded, seq) {
            return Ok(());
        }
        match parse_record(&decoded.text, &decoded.scan) {
            Ok(candidate) => self.admit(record, candidate, sink),
            Err(refusal) => {
                self.refuse(record.place().mark(refusal));
                Ok(())
            }
        }
    }

    /// A packed row counts as a whole: it continues the log or all of it is dropped.
    fn packed_row(
        &mut self,
        record: &Record<'_>,
        decoded: &Decoded<'_>,
        rows: Rows<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let first = decoded.seq_member("seq0");
        if !self.continues(record, decoded, first) {
            return Ok(());
        }
        for member in rows {
            let candidate = Candidate {
                type_name: CHUNK_TYPE.into(),
                seq: Some(member.seq),
                time: member.time,
                data: Payload::from(member.data),
                surface_op: None,
                sources: None,
                ignorable: false,
            };
            self.admit(record, candidate, sink)?;
            if self.refusal.is_some() {
                break;
            }
        }
        Ok(())
    }

    fn admit(&mut self, record: &Record<'_>, candidate: Candidate<'_>, sink: &mut Sink<'_>) -> Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        match admit(session, candidate, Origin::Import, &self.options.vocabulary) {
            Ok(event) => {
                session.fold(&event, record.line_number());
                sink(&event)
            }
            Err(refusal) => {
                self.refuse(record.place().mark(refusal));
                Ok(())
            }
        }
    }

    /// Whether a record has the seq that must come next; anything else is a fault of the stream.
    fn continues(&mut self, record: &Record<'_>, decoded: &Decoded<'_>, seq: Option<Seq>) -> bool {
        let Some(session) = &self.session else { return false };
        let expected = session.state.next_seq();
        if seq == Some(expected) {
            return true;
        }
        let (refusal, repair) = sequence_fault(decoded, seq, expected, &session.last_type);
        self.stream_fault(record, Some(decoded), refusal, repair);
        false
    }

    /// A fault that costs the tail from here on, if it is one.
    fn stream_fault(
        &mut self,
        record: &Record<'_>,
        decoded: Option<&Decoded<'_>>,
        refusal: Refusal,
        repair: RepairKind,
    ) {
        let mut refusal = record.place().mark(refusal);
        let expected = self.session.as_ref().map(|session| session.state.next_seq());
        refusal.seq = refusal.seq.or(expected);
        if decoded.is_none() {
            self.lost = expected.map(|seq| (seq, None));
        }
        if decoded.is_some_and(|d| self.look_for_legacy(record, d)) {
            return;
        }
        let committed = record.ended && decoded.is_some_and(Decoded::is_turn_end);
        if committed || !record.lenient {
            return self.refuse(refusal);
        }
        let mut issue = Issue::new(refusal, repair, record);
        issue.cut(record, decoded);
        self.issue = Some(issue);
    }

    /// A record behind the fault: cut, unless it shows that the fault lies in a committed part.
    fn behind_issue(&mut self, record: &Record<'_>) {
        let decoded = decode(record.bytes, self.options.lossy_utf8).ok();
        decoded.iter().for_each(|decoded| self.note_found(decoded));
        if decoded.as_ref().is_some_and(|d| self.look_for_legacy(record, d)) {
            return;
        }
        let committed = record.ended && decoded.as_ref().is_some_and(Decoded::is_turn_end);
        match &mut self.issue {
            Some(issue) if committed => {
                let mut refusal = issue.refusal.clone();
                refusal.message +=
                    &format!("; the turn/end {} shows that committed records follow", behind(record));
                self.refuse(refusal);
            }
            Some(issue) => issue.cut(record, decoded.as_ref()),
            None => {}
        }
    }

    /// Notes the first event behind a record that is none: it tells what was lost.
    fn note_found(&mut self, decoded: &Decoded<'_>) {
        if let Some((lost, found @ None)) = &mut self.lost {
            let seq = decoded.seq_member("seq").or_else(|| decoded.seq_member("seq0"));
            *found = seq.filter(|seq| *seq >= *lost);
        }
    }

    fn warn_of_repeated_key(&mut self, record: &Record<'_>, decoded: &Decoded<'_>, seq: Option<Seq>) {
        let (Some(session), Some(at)) = (&mut self.session, decoded.scan.notes.duplicate_key) else { return };
        let kind = WarningKind::DuplicateKey;
        session.anomalies.warnings_mut().add(kind, || {
            let place = record.byte_place(u64::from(at));
            let message = format!("a key stands twice in its object, again at {place}; the last one counts");
            Warning { kind, line: record.line_number(), seq, message }
        });
    }

    /// Notes a legacy record; of several kinds the first in the order of spec section 6.1 is reported.
    fn look_for_legacy(&mut self, record: &Record<'_>, decoded: &Decoded<'_>) -> bool {
        let Some(kind) = legacy_kind(&decoded.text, &decoded.scan) else { return false };
        let refusal = legacy_refusal(kind, decoded.seq_member("seq"));
        self.refuse(record.place().mark(refusal));
        true
    }

    /// The first refusal stands, but a legacy kind outranks every other and an earlier one of them a later.
    fn refuse(&mut self, refusal: Refusal) {
        let Some(rank) = legacy_rank(refusal.kind) else {
            self.refusal.get_or_insert(refusal);
            return;
        };
        let standing = self.legacy.as_ref().and_then(|r| legacy_rank(r.kind));
        if standing.is_none_or(|standing| rank < standing) {
            self.legacy = Some(refusal);
        }
    }

    fn accepts_lossy(&mut self, record: &Record<'_>, at: u64) -> bool {
        let Some(session) = self.session.as_mut().filter(|_| self.options.lossy_utf8) else { return false };
        let (kind, line, seq) =
            (WarningKind::Normalised, record.line_number(), Some(session.state.next_seq()));
        session.anomalies.warnings_mut().add(kind, || {
            let place = record.byte_place(at);
            let message = format!("bytes that are not UTF-8, from {place} on, were replaced by U+FFFD");
            Warning { kind, line, seq, message }
        });
        true
    }

    /// Closes an open turn through the gate (spec section 9).
    fn close(&mut self) -> Result<Vec<Event<'static>>, Refusal> {
        let Some(session) = &mut self.session else { return Ok(Vec::new()) };
        let mut closers = Vec::new();
        for candidate in session.state.closers()? {
            let event = admit(session, candidate, Origin::Import, &self.options.vocabulary)?;
            session.fold(&event, None);
            closers.push(event.into_event());
        }
        Ok(closers)
    }

    fn repair(&mut self, closers: &[Event<'_>]) -> Option<Repair> {
        let torn_frame = self.torn_frame.take();
        if let Some(issue) = self.issue.take() {
            let mut repair = issue.into_repair(self.end_offset);
            if let Some(frame) = torn_frame {
                repair.kind = RepairKind::TornFrame;
                repair.frame_offset = Some(frame.offset);
            }
            return Some(repair);
        }
        if let Some(frame) = torn_frame {
            let yields = self.end_offset > frame.begins;
            let message = match yields {
                true => "the last zstd frame is cut; all records that it still yields are kept",
                false => "the last zstd frame is cut and yields nothing; the records in it are lost",
            };
            let mut repair = Repair::lossless(RepairKind::TornFrame, message);
            repair.frame_offset = Some(frame.offset);
            repair.bytes_cut = if yields { 0 } else { frame.bytes };
            return Some(repair);
        }
        (!closers.is_empty()).then(|| {
            let close = match closers.len() {
                1 => "1 event closes it".to_owned(),
                more => format!("{more} events close it"),
            };
            let message = format!("the last turn was interrupted: {close}");
            Repair::lossless(RepairKind::InterruptedTurn, message)
        })
    }
}

/// The last zstd frame, which is cut.
#[derive(Debug)]
struct TornFrame {
    offset: u64,
    bytes: u64,
    /// Where its text begins in that of the log.
    begins: u64,
}

/// The refusal, its message ending with what is lost and what to do next.
fn with_advice(mut refusal: Refusal, lost: Option<(Seq, Option<Seq>)>) -> Refusal {
    if let Some((from, Some(next))) = lost.filter(|(from, _)| refusal.seq == Some(*from)) {
        refusal.message += &match next.get() - from.get() {
            0 => "; no event is lost by it".to_owned(),
            1 => format!("; the event of seq {from} is lost"),
            _ => format!("; the events of seq {from} to {} are lost", next.get() - 1),
        };
    }
    if let Some(advice) = refusal.kind.advice() {
        refusal.message += "; ";
        refusal.message += advice;
    }
    refusal
}

/// Where a record stands, as a sentence goes on.
fn behind(record: &Record<'_>) -> String {
    record.rowid().map_or_else(|| format!("on line {}", record.line), |rowid| format!("in row {rowid}"))
}

fn legacy_rank(kind: RefusalKind) -> Option<u8> {
    match kind {
        RefusalKind::LegacyHeaderDelta => Some(0),
        RefusalKind::LegacyFallbackReason => Some(1),
        RefusalKind::LegacyModeSet => Some(2),
        _ => None,
    }
}

fn invalid_utf8(record: &Record<'_>, at: u64) -> Refusal {
    let place = record.byte_place(at);
    let message =
        format!("a byte at {place} begins no UTF-8 character; replace it on request, or mend a copy");
    let refusal = Refusal::new(RefusalKind::InvalidUtf8, "utf8", message);
    match record.rowid() {
        None => refusal.at_line(record.line, record.offset + at),
        Some(rowid) => refusal.at_row(rowid),
    }
}

#[cfg(test)]
mod tests;
