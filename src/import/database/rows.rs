//! One session of a database as a stream of records: each row becomes the JSON line that it stands for.
//!
//! A cell of the wrong shape is a fault wherever it stands; a cell that does not decode makes its row unusable, which
//! an open tail may hold (spec section 21). Nothing is coerced: every cell is looked at as what it is stored as. Memory
//! is one row. Text of a cell joins a line only after it was found to be JSON by itself. A salvage alone reads loose types
//! as well, where what they stand for is certain.

use std::io;

use rusqlite::types::ValueRef;
use rusqlite::{Row, Rows};

use super::cells::{integer, optional_text, text, value};
use super::{disagree, fault};
use crate::event::json::{JsonString, Value, validate, write_string};
use crate::event::{Refusal, RefusalKind};
use crate::format::compress::{DecodeFault, FrameDecoder};
use crate::ids::Seq;
use crate::import::packed::RowKind;
use crate::import::packed::{ROW_DATA_BYTES_MAX, ROW_MEMBERS_MAX, ROW_MEMBERS_MIN};
use crate::import::{Item, Record, RecordOrigin, RecordSource};
use crate::limits::RECORD_BYTES_MAX;
use crate::sqlite::data::{self, BlobFault};
use crate::sqlite::{Schema, sources};

/// The first bytes of a zstd frame.
const FRAME_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// The records of one session. Its header, or why there is none, comes first.
pub(super) struct SessionRows<'a> {
    announced: Option<Item<'static>>,
    /// The rows to come, as [`statement`] selects them; `None` behind the last.
    rows: Option<Rows<'a>>,
    composer: Composer,
    /// Rows of any kind, records, and their bytes so far.
    read: u64,
    line: u64,
    offset: u64,
    /// The seq behind the last row, as far as it says.
    next_seq: u64,
    cut_short: bool,
    /// Rows that the table has of the session, if they were counted.
    rows_counted: Option<u64>,
    /// Told the number of each row.
    progress: &'a dyn Fn(u64),
}

/// Selects the events of the session with a key, in the order of their seqs. They are found by the index, which is named
/// so that no statistics in the database make SQLite sort, and hold, all of them; they are read from the table, and the
/// last column says whether both agree.
pub(super) fn statement(schema: Schema) -> String {
    format!(
        "SELECT t.rowid, t.seq, t.type, t.time, t.data, t.source_event_seqs, t.surface_op, t.{}, \
         t.session_id = i.session_id AND t.seq = i.seq \
         FROM events AS i INDEXED BY sqlite_autoindex_events_1 LEFT JOIN events AS t ON t.rowid = i.rowid \
         WHERE i.session_id = ?1 ORDER BY i.seq",
        schema.packed_column()
    )
}

impl<'a> SessionRows<'a> {
    pub(super) fn new(
        header: Item<'static>,
        rows: Rows<'a>,
        schema: Schema,
        options: RowOptions,
        progress: &'a dyn Fn(u64),
    ) -> io::Result<Self> {
        let decoder = FrameDecoder::new().map_err(|e| io::Error::new(io::ErrorKind::OutOfMemory, e))?;
        Ok(Self {
            announced: Some(header),
            rows: Some(rows),
            composer: Composer {
                schema,
                lossy_utf8: options.lossy_utf8,
                loose: false,
                decoder,
                line: Vec::new(),
                retyped: None,
            },
            read: 0,
            line: 0,
            offset: 0,
            next_seq: 0,
            cut_short: options.cut_short,
            rows_counted: options.rows,
            progress,
        })
    }
}

/// How rows are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowOptions {
    /// Bytes that are no UTF-8 are to be replaced, not refused.
    pub(super) lossy_utf8: bool,
    /// Rows that the table has of the session, if they were counted.
    pub(super) rows: Option<u64>,
    /// The database file is too short for its pages.
    pub(super) cut_short: bool,
}

impl RecordSource for SessionRows<'_> {
    fn next_item(&mut self) -> io::Result<Option<Item<'_>>> {
        if let Some(item) = self.announced.take() {
            return Ok(Some(item));
        }
        let Some(rows) = &mut self.rows else { return Ok(None) };
        let row = match rows.next() {
            Ok(Some(row)) => row,
            Ok(None) => {
                self.rows = None;
                let lost = self.rows_counted.is_some_and(|counted| counted != self.read);
                return Ok(lost.then(|| Item::Fault(disagree("events").at_seq(Seq::new(self.next_seq)))));
            }
            Err(error) => {
                self.rows = None;
                let refusal = fault(error, "read the events of the session", self.cut_short)?;
                return Ok(Some(Item::Fault(refusal.at_seq(Seq::new(self.next_seq)))));
            }
        };
        self.read += 1;
        (self.progress)(self.read);
        let composed = match Cells::of(row, self.composer.schema, false) {
            Ok(cells) => {
                self.next_seq = cells.seq + 1;
                let placed = |refusal: Refusal| refusal.at_row(cells.rowid).at_seq(Seq::new(cells.seq));
                match self.composer.compose(&cells) {
                    Ok(()) => Ok((cells.origin(), None)),
                    Err(RowFault::Unusable(refusal)) => Ok((cells.origin(), Some(placed(refusal)))),
                    Err(RowFault::Fatal(refusal)) => Err(placed(refusal)),
                }
            }
            Err(refusal) => Err(refusal),
        };
        let (origin, unusable) = match composed {
            Ok(composed) => composed,
            Err(refusal) => return Ok(Some(Item::Fault(refusal))),
        };
        let bytes = &self.composer.line[..];
        self.line += 1;
        let record =
            Record { bytes, line: self.line, offset: self.offset, ended: true, lenient: true, origin };
        self.offset += bytes.len() as u64 + 1;
        Ok(Some(match unusable {
            Some(refusal) => Item::Unusable(record, refusal),
            None => Item::Record(record),
        }))
    }
}

/// A row, its cells in the shapes that the format gives them.
pub(super) struct Cells<'r> {
    rowid: i64,
    seq: u64,
    type_name: &'r str,
    time: i64,
    data: Data<'r>,
    sources: Option<Sources<'r>>,
    surface_op: Option<&'r str>,
    mark: Mark,
}

#[derive(Clone, Copy)]
enum Data<'r> {
    Text(&'r [u8]),
    Blob(&'r [u8]),
    Integer(i64),
    Real(f64),
}

#[derive(Clone, Copy)]
enum Sources<'r> {
    Varints(&'r [u8]),
    Json(&'r str),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Plain,
    Ignorable,
    Packed,
}

/// What is wrong with a row.
pub(super) enum RowFault {
    /// A cell has the wrong shape.
    Fatal(Refusal),
    /// A cell does not decode.
    Unusable(Refusal),
}

impl<'r> Cells<'r> {
    /// The cells of a row. `loose` takes numbers as data and JSON text as sources, too.
    pub(super) fn of(row: &'r Row<'_>, schema: Schema, loose: bool) -> Result<Self, Refusal> {
        let cell = |index| row.get_ref(index).unwrap_or(ValueRef::Null);
        let ValueRef::Integer(rowid) = cell(0) else { return Err(disagree("events")) };
        if cell(8) != ValueRef::Integer(1) {
            return Err(disagree("events").at_row(rowid));
        }
        let seq = integer(cell(1), "seq").map_err(|refusal| refusal.at_row(rowid))?;
        let seq = u64::try_from(seq).map_err(|_| value("seq is negative").at_row(rowid))?;
        Self::at((rowid, seq), cell, schema, loose)
            .map_err(|refusal| refusal.at_row(rowid).at_seq(Seq::new(seq)))
    }

    fn at(
        (rowid, seq): (i64, u64),
        cell: impl Fn(usize) -> ValueRef<'r>,
        schema: Schema,
        loose: bool,
    ) -> Result<Self, Refusal> {
        let type_name = text(cell(2), "type")?;
        if type_name.is_empty() {
            return Err(value("type is empty"));
        }
        let data = match cell(4) {
            ValueRef::Text(text) => Data::Text(text),
            ValueRef::Blob(blob) => Data::Blob(blob),
            ValueRef::Integer(number) if loose => Data::Integer(number),
            ValueRef::Real(number) if loose && number.is_finite() => Data::Real(number),
            other => return Err(value(format!("data is {}, not TEXT or BLOB", other.data_type()))),
        };
        let sources = match cell(5) {
            ValueRef::Null => None,
            ValueRef::Blob(blob) => Some(Sources::Varints(blob)),
            cell @ ValueRef::Text(_) if loose => Some(Sources::Json(text(cell, "source_event_seqs")?)),
            other => return Err(value(format!("source_event_seqs is {}, not a BLOB", other.data_type()))),
        };
        let column = schema.packed_column();
        let mark = match (schema, cell(7)) {
            (Schema::V17, ValueRef::Null) | (Schema::V19, ValueRef::Integer(0)) => Mark::Plain,
            (Schema::V17, ValueRef::Integer(0)) | (Schema::V19, ValueRef::Integer(1)) => Mark::Packed,
            (Schema::V17, ValueRef::Integer(1)) => Mark::Ignorable,
            (_, ValueRef::Integer(number)) => return Err(value(format!("{column} is {number}"))),
            (_, other) => return Err(value(format!("{column} is {}", other.data_type()))),
        };
        Ok(Self {
            rowid,
            seq,
            type_name,
            time: integer(cell(3), "time")?,
            data,
            sources,
            surface_op: optional_text(cell(6), "surface_op")?,
            mark,
        })
    }

    pub(super) fn type_name(&self) -> &'r str {
        self.type_name
    }

    pub(super) fn origin(&self) -> RecordOrigin {
        match self.mark {
            Mark::Packed => RecordOrigin::PackedRow(self.rowid),
            Mark::Plain | Mark::Ignorable => RecordOrigin::EventRow(self.rowid),
        }
    }
}

/// Makes the line that a row stands for.
pub(super) struct Composer {
    schema: Schema,
    lossy_utf8: bool,
    /// Cells of loose types are read.
    loose: bool,
    decoder: FrameDecoder,
    line: Vec<u8>,
    /// What of the row was of a loose type.
    retyped: Option<&'static str>,
}

impl Composer {
    /// One that reads all that can be read.
    pub(super) fn salvaging(schema: Schema) -> io::Result<Self> {
        let decoder = FrameDecoder::new().map_err(|e| io::Error::new(io::ErrorKind::OutOfMemory, e))?;
        Ok(Self { schema, lossy_utf8: true, loose: true, decoder, line: Vec::new(), retyped: None })
    }

    /// The line of the last row, and what of it was of a loose type.
    pub(super) fn composed(&self) -> (&[u8], Option<&'static str>) {
        (&self.line, self.retyped)
    }

    /// Replaces the line by that of a row, `data` last.
    pub(super) fn compose(&mut self, cells: &Cells<'_>) -> Result<(), RowFault> {
        let packed = cells.mark == Mark::Packed;
        let (seq_key, time_key) = if packed { ("seq0", "time0") } else { ("seq", "time") };
        let mut head = String::from("{\"type\":");
        write_string(&mut head, &JsonString::from(cells.type_name));
        head.push_str(&format!(",\"{seq_key}\":{},\"{time_key}\":{}", cells.seq, cells.time));
        if packed && (cells.sources.is_some() || cells.surface_op.is_some()) {
            return Err(packed_row("it has sources or a surface op"));
        }
        self.retyped = None;
        match cells.sources {
            None => {}
            Some(Sources::Varints(cell)) => write_sources(cell, &mut head)?,
            Some(Sources::Json(text)) => {
                self.retyped = Some("source_event_seqs is TEXT, not a BLOB");
                write_json_sources(text, &mut head)?;
            }
        }
        if let Some(op) = cells.surface_op {
            validate(op).map_err(|fault| {
                unusable(
                    RefusalKind::SurfaceOpShape,
                    "surface-op-json",
                    format!("surface_op is not JSON: {fault}"),
                )
            })?;
            head.push_str(",\"surfaceOp\":");
            head.push_str(op);
        }
        if cells.mark == Mark::Ignorable {
            head.push_str(",\"ignorable\":true");
        }
        head.push_str(",\"data\":");
        self.line.clear();
        self.line.extend_from_slice(head.as_bytes());
        let start = self.line.len();
        self.append_data(cells, if packed { ROW_DATA_BYTES_MAX } else { record_bytes_max() })?;
        self.check_data(cells, start)?;
        self.line.push(b'}');
        if self.line.len() > record_bytes_max() {
            return Err(RowFault::Fatal(too_long()));
        }
        Ok(())
    }

    fn append_data(&mut self, cells: &Cells<'_>, bytes_max: usize) -> Result<(), RowFault> {
        let too_long = || match cells.mark {
            Mark::Packed => packed_row("its data is longer than 1 MiB"),
            Mark::Plain | Mark::Ignorable => RowFault::Fatal(too_long()),
        };
        let frame =
            |kind, what: String| Err(unusable(kind, "data-frame", format!("data is no zstd frame: {what}")));
        match cells.data {
            Data::Text(text) if text.len() > bytes_max => Err(too_long()),
            Data::Text(text) => {
                self.line.extend_from_slice(text);
                Ok(())
            }
            Data::Integer(number) => {
                self.append_number(&number.to_string(), "data is INTEGER, not TEXT or BLOB")
            }
            // The shortest text that reads as the same number.
            Data::Real(number) => {
                self.append_number(&format!("{number:?}"), "data is REAL, not TEXT or BLOB")
            }
            Data::Blob(text) if self.loose && text.len() <= bytes_max && is_json_object(text) => {
                self.retyped = Some("data is a BLOB of plain JSON, not TEXT");
                self.line.extend_from_slice(text);
                Ok(())
            }
            Data::Blob(blob) => match data::decode(&mut self.decoder, blob, bytes_max, &mut self.line) {
                Ok(()) => Ok(()),
                Err(BlobFault::TooLong) => Err(too_long()),
                Err(BlobFault::Cut) => frame(RefusalKind::FrameBlock, "it is cut".into()),
                Err(BlobFault::Frame(DecodeFault::Checksum)) => {
                    frame(RefusalKind::FrameChecksum, "its checksum does not match".into())
                }
                Err(BlobFault::Frame(DecodeFault::Damaged(_))) if !blob.starts_with(&FRAME_MAGIC) => {
                    frame(RefusalKind::FrameMagic, "it does not begin as one".into())
                }
                Err(BlobFault::Frame(DecodeFault::Damaged(what))) => {
                    frame(RefusalKind::FrameBlock, what.into())
                }
                Err(BlobFault::Frame(DecodeFault::OutOfMemory)) => Err(RowFault::Fatal(no_memory())),
            },
        }
    }

    fn append_number(&mut self, number: &str, what: &'static str) -> Result<(), RowFault> {
        self.retyped = Some(what);
        self.line.extend_from_slice(number.as_bytes());
        Ok(())
    }

    /// Whether the data, which begins at `start`, is JSON. Invalid UTF-8 in a TEXT is left to the judge, as in a line.
    fn check_data(&self, cells: &Cells<'_>, start: usize) -> Result<(), RowFault> {
        let bytes = &self.line[start..];
        let text = match (std::str::from_utf8(bytes), cells.data) {
            (Ok(text), _) => text.into(),
            (Err(error), Data::Blob(_)) if !self.lossy_utf8 => {
                let message = format!("data is not UTF-8 from its byte {} on", error.valid_up_to());
                return Err(unusable(RefusalKind::InvalidUtf8, "utf8", message));
            }
            (Err(_), _) => String::from_utf8_lossy(bytes),
        };
        validate(&text).map_err(|fault| {
            unusable(RefusalKind::CorruptRecord, "data-json", format!("data is not JSON: {fault}"))
        })?;
        if cells.mark == Mark::Packed { check_packed(cells.type_name, &text) } else { Ok(()) }
    }
}

/// No frame begins as an object does.
fn is_json_object(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'{') && std::str::from_utf8(bytes).is_ok_and(|text| validate(text).is_ok())
}

/// The bounds of a packed row; its shape is the judge's part.
fn check_packed(type_name: &str, data: &str) -> Result<(), RowFault> {
    let Some(kind) = RowKind::ALL.into_iter().find(|kind| kind.tag() == type_name) else {
        return Err(packed_row("its type is none of a packed row"));
    };
    let tokens = Value::new(data).get(kind.tokens_key());
    let members = tokens.map_or(0, |tokens| tokens.elements().take(ROW_MEMBERS_MAX + 1).count());
    if (ROW_MEMBERS_MIN..=ROW_MEMBERS_MAX).contains(&members) {
        return Ok(());
    }
    Err(packed_row("it must have 3 to 1,024 members"))
}

/// Appends the list, as far as a record may be long.
fn write_sources(cell: &[u8], line: &mut String) -> Result<(), RowFault> {
    line.push_str(",\"sourceEventSeqs\":[");
    let mut first = true;
    let decoded = sources::decode(cell, |seq| {
        if line.len() <= record_bytes_max() {
            line.push_str(if first { "" } else { "," });
            line.push_str(&seq.to_string());
            first = false;
        }
    });
    line.push(']');
    if line.len() > record_bytes_max() {
        return Err(RowFault::Fatal(too_long()));
    }
    decoded.map_err(|what| {
        let message = format!("source_event_seqs does not decode: {what}");
        unusable(RefusalKind::Provenance, "source-varints", message)
    })
}

/// Appends a list that stands as JSON; what is in it is the judge's part.
fn write_json_sources(text: &str, line: &mut String) -> Result<(), RowFault> {
    validate(text).map_err(|fault| {
        let message = format!("source_event_seqs is TEXT and not JSON: {fault}");
        unusable(RefusalKind::Provenance, "source-varints", message)
    })?;
    line.push_str(",\"sourceEventSeqs\":");
    line.push_str(text);
    Ok(())
}

fn unusable(kind: RefusalKind, rule: &'static str, message: String) -> RowFault {
    RowFault::Unusable(Refusal::new(kind, rule, message))
}

fn packed_row(what: &str) -> RowFault {
    unusable(RefusalKind::PackedRow, "packed-row-shape", format!("packed chunk row: {what}"))
}

fn too_long() -> Refusal {
    let message =
        format!("the row is longer than {RECORD_BYTES_MAX} bytes as JSON, the most that is supported");
    Refusal::new(RefusalKind::Limit, "record-bytes", message)
}

fn no_memory() -> Refusal {
    Refusal::new(RefusalKind::Limit, "frame-window", "there is no memory for the window of the row's frame")
}

fn record_bytes_max() -> usize {
    usize::try_from(RECORD_BYTES_MAX).unwrap_or(usize::MAX)
}
