//! The open tail of a log: the fault that costs it, and what a repair cuts.

use crate::event::{Refusal, RefusalKind, RepairKind};
use crate::ids::Seq;
use crate::import::Record;
use crate::import::decode::{Decoded, is_nul_run};
use crate::import::judgement::{CutRecord, Repair, word};

/// The first fault of the stream and what it costs as long as no `turn/end` follows.
#[derive(Debug)]
pub(super) struct Issue {
    pub(super) refusal: Refusal,
    repair: Repair,
    /// Offset of the first record that is cut.
    begins: u64,
}

impl Issue {
    /// A fault at a record; `kind` is the repair that cuts it.
    pub(super) fn new(refusal: Refusal, kind: RepairKind, record: &Record<'_>) -> Self {
        let mut repair = Repair::lossless(kind, "");
        repair.rowid = record.rowid();
        repair.line = record.line_number();
        repair.offset = repair.line.map(|_| record.offset);
        Self { refusal, repair, begins: record.offset }
    }

    /// A run of NULs was never a record; anything else behind the first fault is one that is lost.
    pub(super) fn cut(&mut self, record: &Record<'_>, decoded: Option<&Decoded<'_>>) {
        if is_nul_run(record.bytes) {
            return;
        }
        if self.repair.kind == RepairKind::NulTail {
            self.repair.kind = RepairKind::BadTail;
        }
        self.repair.cut(|| CutRecord {
            line: record.line,
            offset: record.offset,
            rowid: record.rowid(),
            seq: decoded.and_then(|d| d.seq_member("seq").or(d.seq_member("seq0"))),
            type_name: decoded.and_then(Decoded::type_word),
        });
    }

    pub(super) fn into_repair(self, end_offset: u64) -> Repair {
        let mut repair = self.repair;
        repair.bytes_cut = end_offset.saturating_sub(self.begins);
        repair.message = match repair.cut_total {
            0 => format!("{}; nothing is lost by cutting them", self.refusal.message),
            1 => format!("{}; this record is cut", self.refusal.message),
            cut => format!("{}; {cut} records from here on are cut", self.refusal.message),
        };
        repair
    }
}

/// A seq other than the expected one: higher is loss, lower a second writer (spec section 20).
pub(super) fn sequence_fault(
    decoded: &Decoded<'_>,
    seq: Option<Seq>,
    expected: Seq,
    last_type: &str,
) -> (Refusal, RepairKind) {
    let type_name = decoded.type_word();
    let type_name = type_name.as_deref().unwrap_or("an event");
    match seq {
        Some(seq) if seq > expected => {
            let message = format!("expected seq {expected}, got {seq} ({type_name}): events are missing");
            (Refusal::new(RefusalKind::SeqGap, "seq", message).at_seq(expected), RepairKind::SeqGapTail)
        }
        Some(seq) => {
            let earlier =
                if seq.next() == expected { format!("{}, then ", word(last_type)) } else { String::new() };
            let message = format!(
                "expected seq {expected}, got {seq} again ({earlier}{type_name}): a second writer appended from an older state"
            );
            (Refusal::new(RefusalKind::SeqFork, "seq", message).at_seq(seq), RepairKind::SeqForkTail)
        }
        None => {
            let (kind, what) = match type_name {
                "session" => (RefusalKind::NotAnEvent, "a second session header"),
                _ => (RefusalKind::Envelope, "no usable seq"),
            };
            let message = format!("expected seq {expected}, found {what}");
            (Refusal::new(kind, "envelope-seq", message).at_seq(expected), RepairKind::BadTail)
        }
    }
}
