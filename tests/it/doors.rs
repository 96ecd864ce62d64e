//! One table of bad events, brought to every door of the store: there is one gate behind all of them.
//!
//! Where two doors differ, the table of spec section 20 says so, or the door has no way to say the fault: a host gives
//! no seq to a seed, and a stored record has no envelope.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::value::RawValue;
use sessionlog::event::{Family, RefusalKind as K, SessionHeader, WarningKind, code_of};
use sessionlog::format::{CreatePayload, EventType, FrameKind, Record, RecordWriter, SurfaceOp};
use sessionlog::import::{Importer, JudgeOptions, SourceReport, Verdict};
use sessionlog::log::{Batch, Damage, FrameDraft, Log, LogOptions, Visitor};
use sessionlog::storage::MemoryStorage;
use sessionlog::{
    AppendOptions, Draft, Durability, Error, ErrorKind, Position, Result, Seq, SessionCondition,
};

use crate::support::{Shaped, in_every_shape, lines, memory_store, open};

/// What a door answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// It refuses, and nothing of the batch is stored.
    Refuses(K),
    /// It takes the event as it is, perhaps with a warning.
    Takes,
    /// It takes the event, brought up to date.
    Normalises,
    /// The fault cannot be said at this door.
    Mute,
}

use Answer::{Mute, Normalises, Refuses, Takes};

/// One bad event and what each door answers to it.
struct Bad {
    json: String,
    append: Answer,
    seed: Answer,
    load: Answer,
    import: Answer,
}

/// The seq of a bad event: that many good ones stand before it, enough of them for a checkpoint.
const NEXT: u64 = 77;

const USER: &str = r#"{"id":"u","role":"user","content":[],"source":{"kind":"user"}}"#;

/// An open turn with a call and its answer, and notes behind them.
fn good() -> Vec<String> {
    let call = r#"{"type":"tool-call","id":"c","name":"sh","arguments":"{}"}"#;
    let assistant = format!(
        r#"{{"turn":1,"step":1,"message":{{"id":"a","role":"assistant","content":[{call}],"source":{{"kind":"model","provider":"p","model":"m"}}}}}}"#
    );
    let surface = r#","surfaceOp":"append""#;
    let events = [
        ("turn/start", r#"{"turn":1}"#.to_owned(), ""),
        ("user/message", USER.to_owned(), surface),
        ("step/start", r#"{"turn":1,"step":1}"#.to_owned(), ""),
        ("assistant/message", assistant, surface),
        ("tool/call", r#"{"turn":1,"step":1,"callId":"c","name":"sh","arguments":"{}"}"#.to_owned(), ""),
        ("tool/result", result("r", "c", "c", "[]"), r#","sourceEventSeqs":[4],"surfaceOp":"append""#),
        ("step/end", r#"{"turn":1,"step":1}"#.to_owned(), ""),
    ];
    let line = |(seq, (kind, data, marks)): (u64, &(&str, String, &str))| event(seq, kind, data, marks);
    let told = (0..).zip(&events).map(line);
    let notes = (events.len() as u64..NEXT).map(|seq| event(seq, "todo/write", r#""note""#, ""));
    told.chain(notes).collect()
}

fn event(seq: u64, kind: &str, data: &str, marks: &str) -> String {
    format!(r#"{{"type":"{kind}","seq":{seq},"time":10,"data":{data}{marks}}}"#)
}

fn result(id: &str, source_call: &str, block_call: &str, content: &str) -> String {
    format!(
        r#"{{"turn":1,"step":1,"message":{{"id":"{id}","role":"user","source":{{"kind":"tool","callId":"{source_call}"}},"content":[{{"type":"tool-result","toolCallId":"{block_call}","content":{content}}}]}}}}"#
    )
}

impl Bad {
    fn at_all(json: String, answer: Answer) -> Self {
        Self { json, append: answer, seed: answer, load: answer, import: answer }
    }

    /// A fault of the text: no stored record can have it.
    fn in_text(json: String, kind: K) -> Self {
        Self { load: Mute, ..Self::at_all(json, Refuses(kind)) }
    }

    /// A fault that only those who write are refused for (spec section 20).
    fn on_write(json: String, kind: K) -> Self {
        Self { load: Takes, import: Takes, ..Self::at_all(json, Refuses(kind)) }
    }

    /// A shape of older writers (spec section 20).
    fn older(kind: &str, data: &str, marks: &str) -> Self {
        let json = event(NEXT, kind, data, marks);
        Self { import: Normalises, ..Self::at_all(json, Refuses(K::EventShape)) }
    }
}

fn table() -> Vec<Bad> {
    [legacy_and_vocabulary(), envelopes(), numbers_and_seqs(), shapes(), surfaces()]
        .into_iter()
        .flatten()
        .collect()
}

fn legacy_and_vocabulary() -> Vec<Bad> {
    let all = |kind: &str, data: &str, marks: &str, refusal| {
        Bad::at_all(event(NEXT, kind, data, marks), Refuses(refusal))
    };
    let header = |reason: &str| {
        format!(r#"{{"header":{{"config":{{"provider":"p","model":"m"}}}},"reason":{reason}}}"#)
    };
    vec![
        all("request/header-delta", r#"{"tools":{}}"#, "", K::LegacyHeaderDelta),
        all("request/header-delta", "null", r#","ignorable":true"#, K::LegacyHeaderDelta),
        all("request/header", &header(r#""fallback""#), "", K::LegacyFallbackReason),
        all("request/header", r#"{"reason":"f\u0061llback"}"#, "", K::LegacyFallbackReason),
        all("mode/set", r#"{"mode":"plan"}"#, "", K::LegacyModeSet),
        Bad::on_write(event(NEXT, "request/header", &header(r#""because""#), ""), K::HeaderReason),
        // What is stored was registered when it was appended.
        Bad { load: Takes, ..all("acme/unknown", "{}", "", K::UnsupportedEvent) },
        all(&"x".repeat(1_025), "{}", r#","ignorable":true"#, K::Limit),
    ]
}

fn envelopes() -> Vec<Bad> {
    let todo = event(NEXT, "todo/write", "{}", "");
    let text = |from: &str, to: &str| Bad::in_text(todo.replace(from, to), K::Envelope);
    vec![
        text(r#""data""#, r#""foreign":1,"data""#),
        text(r#""time":10"#, r#""time":1.5"#),
        text(r#""time":10"#, r#""time":9007199254740992"#),
        text(r#","data":{}"#, ""),
        text(r#""todo/write""#, "7"),
        text(r#""todo/write""#, r#""\ud800""#),
        text("}}", r#"},"ignorable":false}"#),
        text(&format!(r#""seq":{NEXT}"#), r#""seq":-1"#),
        text(&format!(r#""seq":{NEXT}"#), r#""seq":"77""#),
        Bad::in_text("[1]".into(), K::NotAnEvent),
        Bad::in_text(r#"{"type":"todo/write","da"#.into(), K::CorruptRecord),
    ]
}

fn numbers_and_seqs() -> Vec<Bad> {
    let todo = |seq, data: &str| event(seq, "todo/write", data, "");
    let seqs = |seq, kind| Bad { seed: Mute, ..Bad::at_all(todo(seq, "{}"), Refuses(kind)) };
    vec![
        Bad::at_all(todo(NEXT, r#"{"n":1e400}"#), Refuses(K::NonFinite)),
        Bad::on_write(todo(NEXT, r#"[1,-0.0]"#), K::NegativeZero),
        Bad::on_write(todo(NEXT, "-0"), K::NegativeZero),
        seqs(NEXT + 2, K::SeqGap),
        seqs(NEXT - 1, K::SeqFork),
    ]
}

fn shapes() -> Vec<Bad> {
    let surface = r#","surfaceOp":"append""#;
    let all = |kind: &str, data: &str, marks: &str, refusal| {
        Bad::at_all(event(NEXT, kind, data, marks), Refuses(refusal))
    };
    let message = |kind: &str, data: &str| all(kind, data, surface, K::MessageShape);
    let header = |members: &str| {
        all(
            "request/header",
            &format!(r#"{{"header":{{{members}}},"reason":"initial"}}"#),
            "",
            K::HeaderShape,
        )
    };
    let bare = r#"{"id":"a","role":"assistant","content":[],"source":{"kind":"model"}}"#;
    vec![
        message("user/message", &USER.replace(r#""u""#, r#""""#)),
        message("user/message", &USER.replace(r#""role":"user""#, r#""role":"system""#)),
        message("user/message", &USER.replace("[]", "{}")),
        message("user/message", "null"),
        message("assistant/message", &format!(r#"{{"turn":1,"step":1,"message":{bare}}}"#)),
        message("tool/result", r#"{"turn":1,"step":1,"message":5}"#),
        all("turn/start", r#"{"turn":0}"#, "", K::EventShape),
        all("turn/end", r#"{"turn":1,"reason":"done"}"#, "", K::EventShape),
        all("step/start", "null", "", K::EventShape),
        Bad::older("turn/start", r#"{"turn":2,"trigger":{"kind":"user"}}"#, ""),
        Bad::older("turn/end", r#"{"turn":1,"reason":{"kind":"disposed"}}"#, ""),
        Bad::older("steering/message", &format!(r#"{{"turn":1,"message":{USER}}}"#), surface),
        Bad { import: Normalises, ..message("user/message", r#"{"content":[],"source":{"kind":"user"}}"#) },
        all("tool/result", &result("r2", "c", "other", "[]"), surface, K::ToolResultShape),
        all("tool/result", &result("r2", "c", "c", "{}"), surface, K::ToolResultShape),
        all("tool/result", &result("r2", "", "", "[]"), surface, K::EmptyCallId),
        header(r#""config":{"provider":"p"}"#),
        header(r#""config":{"provider":"p","model":"m"},"system":5"#),
        header(r#""config":{"provider":"p","model":"m"},"adapterDefaults":{"maxTokens":true}"#),
        all("request/header", "null", "", K::HeaderShape),
    ]
}

fn surfaces() -> Vec<Bad> {
    let marked = |kind: &str, data: &str, marks: &str| event(NEXT, kind, data, marks);
    let user = |marks: &str, refusal| Bad::at_all(marked("user/message", USER, marks), Refuses(refusal));
    let op = |op: &str| {
        Bad::in_text(marked("user/message", USER, &format!(r#","surfaceOp":{op}"#)), K::SurfaceOpShape)
    };
    let replace = |start, end, sources: &str| {
        format!(r#","sourceEventSeqs":{sources},"surfaceOp":{{"op":"replace","start":{start},"end":{end}}}"#)
    };
    let sources = |list: &str| format!(r#","sourceEventSeqs":{list},"surfaceOp":"append""#);
    let rewrite = |id: &str, marks: &str| {
        Bad::at_all(marked("tool/result", &result(id, "c", "c", "[1]"), marks), Refuses(K::Surface))
    };
    let malformed_source = marked("user/message", USER, &sources(r#"[1,"2"]"#));
    let ranges = |list: &str| Bad::in_text(marked("user/message", USER, &sources(list)), K::RangeProvenance);
    vec![
        user("", K::Surface),
        Bad::at_all(marked("todo/write", "{}", r#","surfaceOp":"append""#), Refuses(K::Surface)),
        Bad::at_all(marked("todo/write", "{}", r#","sourceEventSeqs":[1]"#), Refuses(K::Surface)),
        user(&replace(2, 2, "[2]"), K::Surface),
        user(&replace(5, 1, "[1,3,5]"), K::Surface),
        user(&replace(1, 3, "[1]"), K::Surface),
        rewrite("r", &replace(3, 5, "[3,5]")),
        rewrite("r", &replace(3, 3, "[3]")),
        rewrite("other", &replace(5, 5, "[5]")),
        op("null"),
        op(r#""prepend""#),
        op(r#"{"op":"replace","startSeq":1,"endSeq":3}"#),
        user(&sources("[]"), K::Provenance),
        user(&sources("[1,1]"), K::Provenance),
        user(&sources("[77]"), K::Provenance),
        Bad::in_text(malformed_source, K::Provenance),
        Bad { import: Normalises, ..ranges("[0,[1,3]]") },
        ranges("[[3,1]]"),
        ranges("[[1,2,3]]"),
    ]
}

/// Kinds that say what is wrong with a file, a line or a header; no event by itself can be refused for them.
const OF_CONTAINERS: [K; 24] = [
    K::Empty,
    K::NoHeader,
    K::Bom,
    K::Header,
    K::NewerFormat,
    K::OlderFormat,
    K::BlankRecord,
    K::GluedRecord,
    K::NulPadding,
    K::InvalidUtf8,
    K::PackedRow,
    K::ZstdFirstFrame,
    K::FrameMagic,
    K::FrameBlock,
    K::FrameChecksum,
    K::DuplicateId,
    K::IdConflict,
    K::NotSqlite,
    K::SqliteSchema,
    K::SqliteCorrupt,
    K::SqliteTruncated,
    K::Busy,
    K::OrphanEvents,
    K::Value,
];

#[test]
fn every_kind_that_an_event_can_be_refused_for_has_a_row() {
    let refused = |bad: &Bad| match bad.append {
        Refuses(kind) => Some(kind),
        _ => None,
    };
    let rows: BTreeSet<K> = table().iter().filter_map(refused).collect();
    let containers = BTreeSet::from(OF_CONTAINERS);
    assert_eq!(rows.intersection(&containers).collect::<Vec<_>>(), Vec::<&K>::new());
    let missing: Vec<_> =
        K::ALL.iter().filter(|kind| !rows.contains(kind) && !containers.contains(kind)).collect();
    assert_eq!(missing, Vec::<&K>::new(), "kinds without a row");
}

in_every_shape! {
    append_answers_as_the_table_says,
    loading_answers_as_the_table_says,
    importing_into_what_is_stored_answers_as_the_table_says,
}

fn append_answers_as_the_table_says(case: &mut Shaped) {
    for (n, bad) in table().into_iter().enumerate() {
        let session = case.write(&format!("s{n}"), &drafts(&good()));
        let revision = session.revision().unwrap();
        let outcome = Draft::parse(&bad.json).and_then(|(draft, expected)| {
            let options = AppendOptions { expected, durability: Durability::Synced };
            session.append(&[draft], options)?.wait()
        });
        assert_eq!(answer(&outcome), bad.append, "{}: {outcome:?}", bad.json);
        assert_eq!(session.revision().unwrap(), revision, "{}", bad.json);
        let next = AppendOptions { expected: Some(Seq::new(NEXT)), durability: Durability::Synced };
        session.append(&[Draft::new("todo/write", "{}")], next).unwrap().wait().unwrap();
    }
}

#[test]
fn seeding_answers_as_the_table_says() {
    for bad in table().iter().filter(|bad| bad.seed != Mute) {
        let store = memory_store();
        let texts: Vec<String> = good().into_iter().chain([bad.json.clone()]).collect();
        let parsed: Result<Vec<_>> =
            texts.iter().map(|text| Draft::parse(text).map(|(draft, _)| draft)).collect();
        let outcome = parsed.and_then(|seed| store.seed_session(SessionHeader::new("s", 5), &seed)).map(drop);
        assert_eq!(answer(&outcome), bad.seed, "{}: {outcome:?}", bad.json);
        assert!(store.list().unwrap().is_empty());
        let again = store.seed_session(SessionHeader::new("s", 5), &drafts(&good())).unwrap();
        assert_eq!(lines(&again).len() as u64, NEXT + 1, "the id is free, and the end of the seed is marked");
    }
}

fn loading_answers_as_the_table_says(case: &mut Shaped) {
    for bad in table() {
        let Some(stored) = Stored::of(&bad.json) else {
            assert_eq!(bad.load, Mute, "{} cannot be stored", bad.json);
            continue;
        };
        case.store.clone().close().unwrap();
        case.storage = MemoryStorage::new();
        write_log(&case.storage, &stored);
        case.store = open(Arc::new(case.storage.clone()));
        case.settle();
        let store = &case.store;
        let session = store.session("s").unwrap();
        let outcome = session.with_state(|_| ());
        assert_eq!(answer(&outcome), bad.load, "{}: {outcome:?}", bad.json);
        if let Err(error) = outcome {
            let kind = match bad.load {
                Refuses(K::Limit) => ErrorKind::Limit,
                Refuses(kind) if kind.family() == Family::Unsupported => ErrorKind::Unsupported,
                _ => ErrorKind::Corrupt,
            };
            assert_eq!(error.kind(), kind, "{error}");
            let refused = session.append(&[Draft::new("todo/write", "{}")], AppendOptions::default());
            assert_eq!(refused.unwrap_err().kind(), kind, "nothing follows what is refused");
        }
        if matches!(bad.load, Refuses(K::SeqGap | K::SeqFork)) {
            let info = store.list().unwrap().into_iter().find(|info| info.header.id == "s");
            assert_eq!(info.map(|info| info.condition), Some(SessionCondition::Damaged));
            let read = session.for_each(Seq::new(0)..Seq::new(u64::MAX), &mut |_| Ok(()));
            assert_eq!(read.unwrap_err().kind(), ErrorKind::Corrupt, "no seq is served twice or left out");
        }
        assert_eq!(lines(&store.session("good").unwrap()), good(), "a bad session hides no other");
    }
}

/// The good events of a log are there already, and its bad one comes behind them or is refused with all the rest.
fn importing_into_what_is_stored_answers_as_the_table_says(case: &mut Shaped) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.jsonl");
    let importer = Importer::new(JudgeOptions::default());
    for (n, bad) in table().into_iter().enumerate() {
        let id = format!("s{n}");
        case.write(&id, &drafts(&good()));
        std::fs::write(&path, log_with(&id, &bad.json)).unwrap();
        let plan = importer.plan(std::slice::from_ref(&path));
        let imported = importer.import(&case.store, &plan.sources[0], &|_| ()).unwrap();
        assert_eq!(judged(&imported), bad.import, "{}: {:?}", bad.json, imported.judgement.refusal);
        let stored = lines(&case.store.session(&id).unwrap()).len() as u64;
        let refused = matches!(bad.import, Refuses(_));
        assert_eq!(stored, if refused { NEXT } else { NEXT + 2 }, "{}", bad.json);
    }
}

/// A log of the good events, a bad one, and the end of the turn.
fn log_with(id: &str, bad: &str) -> String {
    let end = event(NEXT + 1, "turn/end", r#"{"turn":1,"reason":{"kind":"completed"}}"#, "");
    let header = format!(r#"{{"type":"session","version":0,"id":"{id}","createdAt":5,"delegationDepth":0}}"#);
    [&[header], &good()[..], &[bad.to_owned(), end]].concat().join("\n") + "\n"
}

#[test]
fn importing_and_inspecting_answer_as_the_table_says() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.jsonl");
    let importer = Importer::new(JudgeOptions::default());
    for bad in table() {
        std::fs::write(&path, log_with("s", &bad.json)).unwrap();
        let plan = importer.plan(std::slice::from_ref(&path));
        let store = memory_store();
        let inspected = importer.inspect(&plan.sources[0], &|_| ()).unwrap();
        let imported = importer.import(&store, &plan.sources[0], &|_| ()).unwrap();
        for report in [&inspected, &imported] {
            assert_eq!(judged(report), bad.import, "{}: {:?}", bad.json, report.judgement.refusal);
        }
        assert_eq!(inspected.judgement.refusal, imported.judgement.refusal);
        let stored = store.session("s").map(|session| lines(&session).len() as u64).unwrap_or_default();
        assert_eq!(stored, if matches!(bad.import, Refuses(_)) { 0 } else { NEXT + 2 }, "{}", bad.json);
    }
}

/// A row can say less than a line: what it cannot hold is mute at this door.
#[cfg(feature = "sqlite")]
#[test]
fn rows_of_a_database_answer_as_lines_do() {
    use crate::sqlite::{add_session, database, inspect_all};
    let mut said = 0;
    for bad in table() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.db");
        let rows = database(&path);
        add_session(&rows, "s");
        let end = event(NEXT + 1, "turn/end", r#"{"turn":1,"reason":{"kind":"completed"}}"#, "");
        good().iter().chain([&end]).for_each(|json| assert!(add_row(&rows, json).is_some()));
        if add_row(&rows, &bad.json).is_some() {
            said += 1;
            let report = inspect_all(&path).remove(0);
            assert_eq!(judged(&report), bad.import, "{}: {:?}", bad.json, report.judgement.refusal);
            let rowid = report.judgement.refusal.as_ref().map(|refusal| refusal.rowid.is_some());
            assert!(rowid != Some(false), "{:?}", report.judgement.refusal);
        }
    }
    assert!(said > 40, "{said} of the table");
}

/// Adds the row of an event, if there is one.
#[cfg(feature = "sqlite")]
fn add_row(rows: &rusqlite::Connection, json: &str) -> Option<()> {
    let mut members: BTreeMap<String, Box<RawValue>> = serde_json::from_str(json).ok()?;
    let mut take = |name: &str| members.remove(name).map(|value| value.get().to_owned());
    let type_name: String = serde_json::from_str(&take("type")?).ok()?;
    let seq: u32 = serde_json::from_str(&take("seq")?).ok()?;
    let time: i64 = serde_json::from_str(&take("time")?).ok()?;
    let (data, op) = (take("data")?, take("surfaceOp"));
    let sources = match take("sourceEventSeqs") {
        Some(list) => Some(varints(&serde_json::from_str::<Vec<i64>>(&list).ok()?)),
        None => None,
    };
    let ignorable = match take("ignorable") {
        Some(mark) => Some((mark == "true").then_some(1)?),
        None => None,
    };
    let insert = "INSERT INTO events VALUES ('s', ?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let sound = members.is_empty() && time.abs() < 1 << 53;
    let cells = rusqlite::params![seq, type_name, time, data, sources, op, ignorable];
    sound.then(|| rows.execute(insert, cells).ok()).flatten().map(drop)
}

/// Small seqs as a cell: the first, then the differences, each in one byte.
#[cfg(feature = "sqlite")]
fn varints(list: &[i64]) -> Vec<u8> {
    let steps = list.windows(2).map(|pair| pair[1] - pair[0]).map(|step| (step << 1) ^ (step >> 63));
    list.first().copied().into_iter().chain(steps).map(|value| u8::try_from(value).unwrap()).collect()
}

fn answer(outcome: &Result<(), Error>) -> Answer {
    match outcome {
        Ok(()) => Takes,
        Err(error) => Refuses(error.refusal().unwrap_or_else(|| panic!("no refusal: {error:?}"))),
    }
}

fn judged(report: &SourceReport) -> Answer {
    let judgement = &report.judgement;
    let normalised = judgement.warnings.listed().iter().any(|w| w.kind == WarningKind::Normalised);
    match (&judgement.refusal, judgement.verdict()) {
        (Some(refusal), Verdict::Refuse) => Refuses(refusal.kind),
        (None, Verdict::Accept) if normalised => Normalises,
        (None, Verdict::Accept) => Takes,
        other => panic!("neither accepted nor refused: {other:?}"),
    }
}

fn drafts(events: &[String]) -> Vec<Draft<'_>> {
    events.iter().map(|json| Draft::parse(json).unwrap().0).collect()
}

/// An event as a record of the store, unless it has no such form.
struct Stored {
    seq: u64,
    type_name: String,
    ignorable: bool,
    surface_op: SurfaceOp,
    sources: Option<Vec<Seq>>,
    data: Box<RawValue>,
}

impl Stored {
    fn of(json: &str) -> Option<Self> {
        let mut members: BTreeMap<String, Box<RawValue>> = serde_json::from_str(json).ok()?;
        let stored = Self {
            type_name: serde_json::from_str(members.remove("type")?.get()).ok()?,
            seq: serde_json::from_str(members.remove("seq")?.get()).ok()?,
            ignorable: members
                .remove("ignorable")
                .map_or(Some(false), |m| (m.get() == "true").then_some(true))?,
            surface_op: members
                .remove("surfaceOp")
                .map_or(Some(SurfaceOp::None), |op| surface_op(op.get()))?,
            sources: members.remove("sourceEventSeqs").map(|list| seqs(list.get())).transpose().ok()?,
            data: members.remove("data")?,
        };
        let time: i64 = serde_json::from_str(members.remove("time")?.get()).ok()?;
        (members.is_empty() && time.abs() < 1 << 53).then_some(stored)
    }

    fn record(&self) -> Record<'_, &[Seq]> {
        Record {
            event_type: match code_of(&self.type_name) {
                Some(code) => EventType::Code(u32::from(code)),
                None => EventType::Name(&self.type_name),
            },
            time_ms: 10,
            ignorable: self.ignorable,
            surface_op: self.surface_op,
            sources: self.sources.as_deref(),
            data: self.data.get(),
        }
    }
}

fn seqs(list: &str) -> serde_json::Result<Vec<Seq>> {
    Ok(serde_json::from_str::<Vec<u64>>(list)?.into_iter().map(Seq::new).collect())
}

fn surface_op(op: &str) -> Option<SurfaceOp> {
    let op: serde_json::Value = serde_json::from_str(op).ok()?;
    if op == "append" {
        return Some(SurfaceOp::Append);
    }
    Some(SurfaceOp::Replace { start: Seq::new(op["start"].as_u64()?), end: Seq::new(op["end"].as_u64()?) })
}

/// A log with two sessions: `good`, and `s` with one more event, of which no gate has heard.
fn write_log(storage: &MemoryStorage, bad: &Stored) {
    let options = LogOptions { create: Some([7; 16]), background: false, ..LogOptions::default() };
    let log = Log::open(Arc::new(storage.clone()), options, &mut Blind).unwrap();
    let good: Vec<Stored> = good().iter().map(|json| Stored::of(json).unwrap()).collect();
    for (key, id) in [(1, "good"), (2, "s")] {
        let mut header = String::new();
        SessionHeader::new(id, 5).write_json(&mut header);
        let mut create = Vec::new();
        CreatePayload { shared: None, header: &header }.encode(&mut create);
        let mut batch = Batch::new();
        batch.push(FrameDraft { kind: FrameKind::CREATE, subject: key, tag: 0, count: 0 }, &create).unwrap();
        push_events(&mut batch, key, &good);
        if id == "s" {
            push_events(&mut batch, key, std::slice::from_ref(bad));
        }
        log.enqueue(batch, Durability::Synced).wait().unwrap();
    }
    log.close().unwrap();
}

/// One frame of events.
fn push_events(batch: &mut Batch, key: u64, events: &[Stored]) {
    let mut payload = Vec::new();
    let mut writer = RecordWriter::new();
    events.iter().for_each(|stored| writer.push(&mut payload, &stored.record()));
    let count = u32::try_from(events.len()).unwrap();
    let draft = FrameDraft { kind: FrameKind::EVENTS, subject: key, tag: events[0].seq, count };
    batch.push(draft, &payload).unwrap();
}

/// Looks at nothing.
struct Blind;

impl Visitor for Blind {
    fn frame(&mut self, _: Position, _: &sessionlog::format::FrameHeader, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn damage(&mut self, damage: &Damage) {
        panic!("a log just written has {damage:?}");
    }
}
