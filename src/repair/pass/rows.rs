//! A pass over the rows of one session of a database.

use super::{Findings, Object, Pass, Place, Route, Sink, step};
use crate::error::Result;
use crate::event::{Refusal, RefusalKind, SessionHeader, SessionState};
use crate::ids::Seq;
use crate::import::salvage::{Salvage, Salvaged, SalvagedSession};
use crate::import::{JudgeOptions, Session, decode};
use crate::repair::plan::{Action, Step};

/// Makes one pass. `header` is that of the session.
pub(in crate::repair) fn run(
    (salvage, session): (&Salvage, &SalvagedSession),
    header: &SessionHeader,
    options: &JudgeOptions,
    route: &Route,
    sink: &mut dyn Sink,
) -> Result<Findings> {
    let mut pass = Pass::new(options, route, sink);
    pass.session = Session::new(&header.id, header.seed_length);
    let mut line = String::new();
    header.write_json(&mut line);
    pass.digest.bytes(line.as_bytes());
    pass.header = Some((header.clone(), 0));
    salvage.each_row(&session.owner, route.as_written, &mut |row| pass.row(row))?;
    let mut findings = pass.finish();
    findings.unordered = !route.as_written && findings.branches.forked();
    Ok(findings)
}

impl Pass<'_> {
    fn row(&mut self, row: Salvaged<'_>) -> Result<()> {
        match row {
            Salvaged::Record { bytes, rowid, packed, retyped } => {
                let place = Place { row: Some(rowid), ..Place::default() };
                self.row_record(place, bytes, packed, retyped)
            }
            Salvaged::Broken { refusal, type_name } => {
                self.unreadable(&refusal, type_name);
                Ok(())
            }
            Salvaged::Lost { rowid, seq } => {
                let seq = Seq::new(u64::try_from(seq).unwrap_or(0));
                // Another row of its place may be there.
                if seq >= self.session.next_seq() {
                    let message = "the index tells of a row that cannot be read";
                    let refusal = Refusal::new(RefusalKind::SqliteCorrupt, "database-pages", message);
                    self.unreadable(&refusal.at_row(rowid).at_seq(seq), None);
                }
                Ok(())
            }
        }
    }

    fn row_record(
        &mut self,
        place: Place,
        bytes: &[u8],
        packed: bool,
        retyped: Option<&'static str>,
    ) -> Result<()> {
        let decoded = match decode(bytes, true) {
            Ok(decoded) => decoded,
            Err(unusable) => {
                let refusal = Refusal::new(unusable.kind, "record", unusable.message);
                self.unreadable(&Refusal { rowid: place.row, ..refusal }, None);
                return Ok(());
            }
        };
        let object = Object { may_pack: packed, ..Object::new(place, bytes, &decoded) };
        if !self.counts(&object) {
            return Ok(());
        }
        let before = self.session.next_seq();
        self.event(object)?;
        if let Some(what) = retyped.filter(|_| self.session.next_seq() > before) {
            let events = self.session.next_seq().get() - before.get();
            let (action, kind) = (Action::Retype, RefusalKind::Value.as_str());
            self.steps.add(action, kind, (events, 0), || Step {
                seq: Some(before),
                type_name: decoded.type_word(),
                ..step(action, kind, place, events, 0, format!("{what}: it is stored as the format wants it"))
            });
        }
        Ok(())
    }

    /// A row without a record.
    fn unreadable(&mut self, refusal: &Refusal, type_name: Option<&str>) {
        let seq = refusal.seq.unwrap_or(self.session.next_seq());
        self.digest.bytes(refusal.kind.as_str().as_bytes());
        self.digest.bytes(&refusal.rowid.unwrap_or_default().to_le_bytes());
        self.summary.events_lost += 1;
        self.lose(seq, 0);
        let place = Place { row: refusal.rowid, ..Place::default() };
        let (action, kind) = (Action::Drop, refusal.kind.as_str());
        self.steps.add(action, kind, (1, 0), || Step {
            seq: Some(seq),
            type_name: type_name.map(|name| name.chars().take(TYPE_CHARS_MAX).collect()),
            ..step(action, kind, place, 1, 0, format!("{}: it is lost", refusal.message))
        });
    }
}

/// Longest type that a step repeats, in characters.
const TYPE_CHARS_MAX: usize = 80;
