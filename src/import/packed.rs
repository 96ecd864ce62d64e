//! Packed chunk rows: one record that stands for a run of `assistant/chunk` events (spec section 13).
//!
//! Numbers, ids and tokens are spliced as raw text into each member, so every spelling stays as it was.
//! Memory is one member at a time: a row is walked in place.

use crate::event::json::{Elements, Kind, Scan, Value};
use crate::event::{Refusal, RefusalKind};
use crate::ids::Seq;
use crate::limits::SAFE_INTEGER_MAX;

/// Type of every event that a row stands for.
pub const CHUNK_TYPE: &str = "assistant/chunk";
/// Fewest members of a row that is written, or that a database holds; shorter runs are single events.
pub(crate) const ROW_MEMBERS_MIN: usize = 3;
/// Most members of such a row.
pub(crate) const ROW_MEMBERS_MAX: usize = 1024;
/// Longest data text of such a row, in bytes of UTF-8.
pub(crate) const ROW_DATA_BYTES_MAX: usize = 1 << 20;

/// The kinds of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RowKind {
    Text,
    Reasoning,
    ToolCall,
}

impl RowKind {
    pub(crate) const ALL: [Self; 3] = [Self::Text, Self::Reasoning, Self::ToolCall];

    /// The `type` of the row.
    pub(crate) const fn tag(self) -> &'static str {
        match self {
            Self::Text => "text-chunks",
            Self::Reasoning => "reasoning-chunks",
            Self::ToolCall => "tool-call-chunks",
        }
    }

    /// The `type` of the chunk in each member.
    pub(crate) const fn chunk_type(self) -> &'static str {
        match self {
            Self::Text => "text-delta",
            Self::Reasoning => "reasoning-delta",
            Self::ToolCall => "tool-call-delta",
        }
    }

    /// The key of the tokens in the row.
    pub(crate) const fn tokens_key(self) -> &'static str {
        match self {
            Self::Text | Self::Reasoning => "texts",
            Self::ToolCall => "args",
        }
    }

    /// The key of the token in each member.
    pub(crate) const fn token_key(self) -> &'static str {
        match self {
            Self::Text | Self::Reasoning => "text",
            Self::ToolCall => "argumentsDelta",
        }
    }
}

/// The members of a row, in order.
#[derive(Debug, Clone)]
pub struct Rows<'a> {
    next_seq: i64,
    next_time: i64,
    steps: Elements<'a>,
    tokens: Elements<'a>,
    /// The data text of every member up to its token.
    head: String,
}

/// One event that a row stands for: an [`CHUNK_TYPE`] without any further envelope member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowMember {
    /// Position in the session.
    pub seq: Seq,
    /// Milliseconds since the Unix epoch.
    pub time: i64,
    /// The payload text.
    pub data: String,
}

/// Expands the record `text`, which `scan` describes, if its type is a row's.
///
/// The whole row is checked here: iterating it cannot fail.
///
/// # Errors
///
/// Refusal kind `packed-row` for a malformed row.
pub fn expand<'a>(text: &'a str, scan: &Scan) -> Result<Option<Rows<'a>>, Refusal> {
    let Some(kind) = row_kind(text, scan) else { return Ok(None) };
    let mut row = [None; 4];
    for member in record(text, scan).members() {
        match ["type", "seq0", "time0", "data"].iter().position(|k| member.is(k)) {
            Some(at) => row[at] = Some(member.value),
            None => return Err(malformed(format!("{} is no member of a row", member.key))),
        }
    }
    let [_, seq, time, Some(data)] = row else { return Err(malformed("data is missing")) };
    let seq = safe_integer(seq, "seq0")?;
    if seq < 0 {
        return Err(malformed("seq0 is negative"));
    }
    let time = safe_integer(time, "time0")?;
    rows(kind, seq, time, data).map(Some).map_err(|r| r.at_seq(seq_of(seq)))
}

/// Whether `type_name` is that of a row: in JSONL no event can have it.
#[must_use]
pub fn is_row_type(type_name: &str) -> bool {
    RowKind::ALL.iter().any(|k| k.tag() == type_name)
}

impl Rows<'_> {
    /// How many members are still to come.
    pub(crate) fn count_members(&self) -> u64 {
        self.tokens.clone().count() as u64
    }

    /// Seq of the next member; of the whole row before the first was taken.
    #[must_use]
    pub fn next_seq(&self) -> Seq {
        seq_of(self.next_seq)
    }
}

impl Iterator for Rows<'_> {
    type Item = RowMember;

    fn next(&mut self) -> Option<RowMember> {
        let token = self.tokens.next()?.raw();
        let mut data = String::with_capacity(self.head.len() + token.len() + 2);
        data.push_str(&self.head);
        data.push_str(token);
        data.push_str("}}");
        let member = RowMember { seq: seq_of(self.next_seq), time: self.next_time, data };
        self.next_seq += 1;
        self.next_time += self.steps.next().and_then(|s| s.safe_integer()).unwrap_or(0);
        Some(member)
    }
}

/// The kind of row that a record is; most are none, so this must be quick.
fn row_kind(text: &str, scan: &Scan) -> Option<RowKind> {
    let type_value = if scan.more_members {
        record(text, scan).get("type")?
    } else {
        let slice = |(start, end): (u32, u32)| text.get(start as usize..end as usize).unwrap_or_default();
        let is_type = |key: &str| key == "\"type\"" || key.contains('\\') && Value::new(key).is_str("type");
        let member = scan.members.iter().rev().find(|m| is_type(slice(m.key)))?;
        Value::new(slice(member.value))
    };
    RowKind::ALL.into_iter().find(|k| type_value.is_str(k.tag()))
}

fn record<'a>(text: &'a str, scan: &Scan) -> Value<'a> {
    Value::new(text.get(scan.value.0 as usize..scan.value.1 as usize).unwrap_or_default())
}

fn rows(kind: RowKind, seq: i64, time: i64, data: Value<'_>) -> Result<Rows<'_>, Refusal> {
    if !data.is_object() {
        return Err(malformed("data is no object"));
    }
    let keys = ["turn", "step", "index", "dt", kind.tokens_key(), "id", "name"];
    let known = if kind == RowKind::ToolCall { &keys[..] } else { &keys[..5] };
    let mut found = [None; 7];
    for member in data.members() {
        match known.iter().position(|k| member.is(k)) {
            Some(at) => found[at] = Some(member.value),
            None => return Err(malformed(format!("{} is no member of its data", member.key))),
        }
    }
    let [turn, step, index, dt, tokens, id, name] = found;
    let (turn, step, index) = (number(turn, "turn")?, number(step, "step")?, number(index, "index")?);
    let mut head =
        format!(r#"{{"turn":{turn},"step":{step},"chunk":{{"type":"{}","index":{index}"#, kind.chunk_type());
    if kind == RowKind::ToolCall {
        let id = id.ok_or_else(|| malformed("id is missing"))?;
        head.push_str(r#","id":"#);
        head.push_str(id.raw());
        if let Some(name) = name {
            head.push_str(r#","name":"#);
            head.push_str(name.raw());
        }
    }
    head.push_str(r#",""#);
    head.push_str(kind.token_key());
    head.push_str(r#"":"#);
    let (dt, tokens) = (array(dt, "dt")?, array(tokens, kind.tokens_key())?);
    check_run(seq, time, dt.elements(), tokens.elements())?;
    Ok(Rows { next_seq: seq, next_time: time, steps: dt.elements(), tokens: tokens.elements(), head })
}

/// At least one token, all of them strings, one step fewer, and every seq and time a safe integer.
fn check_run(
    mut seq: i64,
    mut time: i64,
    mut steps: Elements<'_>,
    tokens: Elements<'_>,
) -> Result<(), Refusal> {
    let mut count = 0_u64;
    for token in tokens {
        if token.kind() != Kind::String {
            return Err(malformed(format!("token {count} is no string")));
        }
        if count > 0 {
            let step = steps.next().ok_or_else(|| malformed("dt is shorter than the run"))?;
            seq += 1;
            time += safe_integer(Some(step), "a member of dt")?;
            if seq > SAFE_INTEGER_MAX || time.abs() > SAFE_INTEGER_MAX {
                return Err(malformed("the run leaves the safe integers"));
            }
        }
        count += 1;
    }
    if count == 0 {
        return Err(malformed("it has no token"));
    }
    if steps.next().is_some() {
        return Err(malformed("dt is longer than the run"));
    }
    Ok(())
}

fn safe_integer(value: Option<Value<'_>>, name: &str) -> Result<i64, Refusal> {
    value.and_then(|v| v.safe_integer()).ok_or_else(|| malformed(format!("{name} is no safe integer")))
}

/// The raw text of a number.
fn number<'a>(value: Option<Value<'a>>, name: &str) -> Result<&'a str, Refusal> {
    let value = value.filter(|v| v.kind() == Kind::Number);
    value.map(|v| v.raw()).ok_or_else(|| malformed(format!("{name} is no number")))
}

fn array<'a>(value: Option<Value<'a>>, name: &str) -> Result<Value<'a>, Refusal> {
    value.filter(Value::is_array).ok_or_else(|| malformed(format!("{name} is no array")))
}

fn malformed(what: impl std::fmt::Display) -> Refusal {
    Refusal::new(RefusalKind::PackedRow, "packed-row-shape", format!("packed chunk row: {what}"))
}

/// Seqs were checked not to be negative.
fn seq_of(seq: i64) -> Seq {
    Seq::new(seq.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::json::scan;

    type Members = Vec<(u64, i64, String)>;

    fn expanded(text: &str) -> Result<Option<Members>, Refusal> {
        let rows = expand(text, &scan(text).unwrap())?;
        Ok(rows.map(|rows| rows.map(|m| (m.seq.get(), m.time, m.data)).collect()))
    }

    #[test]
    fn tokens_and_numbers_keep_their_spelling() {
        let row = r#" {"data":{"texts":["a\u0062","\ud83c", "" ],"dt":[3,-2e0],"index":0.0,"step":1,"turn":1E0},"time0":-1,"seq0":7,"type":"text-chunks"} "#;
        let data = |token: &str| {
            format!(r#"{{"turn":1E0,"step":1,"chunk":{{"type":"text-delta","index":0.0,"text":{token}}}}}"#)
        };
        let members = expanded(row).unwrap().unwrap();
        assert_eq!(
            members,
            [(7, -1, data(r#""a\u0062""#)), (8, 2, data(r#""\ud83c""#)), (9, 0, data(r#""""#))]
        );
    }

    #[test]
    fn tool_calls_keep_id_and_name_in_order() {
        let row = r#"{"type":"tool-call-chunks","seq0":0,"time0":5,"data":{"turn":1,"step":2,"index":3,"dt":[],"name":null,"id":"c","args":["{"]}}"#;
        let data = r#"{"turn":1,"step":2,"chunk":{"type":"tool-call-delta","index":3,"id":"c","name":null,"argumentsDelta":"{"}}"#;
        assert_eq!(expanded(row).unwrap().unwrap(), [(0, 5, data.to_owned())]);
    }

    #[test]
    fn other_records_are_none() {
        for text in ["{}", "[]", "1", r#"{"type":"assistant/chunk"}"#, r#"{"type":["text-chunks"]}"#] {
            assert_eq!(expanded(text), Ok(None));
        }
        // The last of repeated keys wins, however it is spelled.
        assert_eq!(expanded(r#"{"type":"text-chunks","t\u0079pe":"x"}"#), Ok(None));
        assert!(expanded(r#"{"type":"x","t\u0079pe":"text-chunks"}"#).is_err());
        let many: String = (0..20).map(|i| format!(r#""k{i}":0,"#)).collect();
        assert!(expanded(&format!(r#"{{{many}"type":"reasoning-chunks"}}"#)).is_err());
        assert_eq!(expanded(&format!(r#"{{{many}"type":"x"}}"#)), Ok(None));
    }

    #[test]
    fn malformed_rows_are_refused() {
        let row = |head: &str, data: &str| format!(r#"{{"type":"text-chunks",{head},"data":{data}}}"#);
        let good_head = r#""seq0":1,"time0":2"#;
        let good_data = r#"{"turn":1,"step":1,"index":0,"dt":[1],"texts":["a","b"]}"#;
        assert!(expanded(&row(good_head, good_data)).unwrap().is_some());
        let heads = [
            r#""seq0":1"#,
            r#""time0":1"#,
            r#""seq0":-1,"time0":2"#,
            r#""seq0":1.5,"time0":2"#,
            r#""seq0":"1","time0":2"#,
            r#""seq0":9007199254740991,"time0":2"#,
            r#""seq0":1,"time0":9007199254740991"#,
            r#""seq0":1,"time0":9007199254740993"#,
            r#""seq0":1,"time0":2,"seq":1"#,
            r#""seq0":1,"time0":2,"ignorable":true"#,
        ];
        for head in heads {
            assert_eq!(expanded(&row(head, good_data)).unwrap_err().kind, RefusalKind::PackedRow, "{head}");
        }
        let datas = [
            "null",
            "[]",
            r#"{"step":1,"index":0,"dt":[1],"texts":["a","b"]}"#,
            r#"{"turn":"1","step":1,"index":0,"dt":[1],"texts":["a","b"]}"#,
            r#"{"turn":1,"step":1,"index":null,"dt":[1],"texts":["a","b"]}"#,
            r#"{"turn":1,"step":1,"index":0,"dt":[],"texts":["a","b"]}"#,
            r#"{"turn":1,"step":1,"index":0,"dt":[1,1],"texts":["a","b"]}"#,
            r#"{"turn":1,"step":1,"index":0,"dt":[0.5],"texts":["a","b"]}"#,
            r#"{"turn":1,"step":1,"index":0,"dt":{},"texts":["a","b"]}"#,
            r#"{"turn":1,"step":1,"index":0,"dt":[],"texts":[]}"#,
            r#"{"turn":1,"step":1,"index":0,"dt":[1],"texts":["a",1]}"#,
            r#"{"turn":1,"step":1,"index":0,"dt":[1],"args":["a","b"]}"#,
            r#"{"turn":1,"step":1,"index":0,"dt":[1],"texts":["a","b"],"id":"c"}"#,
        ];
        for data in datas {
            let refusal = expanded(&row(good_head, data)).unwrap_err();
            assert_eq!((refusal.kind, refusal.seq), (RefusalKind::PackedRow, Some(Seq::new(1))), "{data}");
        }
        let call = r#"{"type":"tool-call-chunks","seq0":1,"time0":2,"data":{"turn":1,"step":1,"index":0,"dt":[],"args":["a"]}}"#;
        assert!(expanded(call).is_err());
    }
}
