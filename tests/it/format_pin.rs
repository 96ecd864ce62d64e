//! The stores under `tests/fixtures/stores`, healthy and broken, are opened, read, verified and written to.
//!
//! They pin the bytes on disk: a change that can no longer read them is a change of the format. What they hold is stated here,
//! not read from them. `cargo test --test it format_pin::regenerate -- --ignored` writes them again.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use sessionlog::event::SessionHeader;
use sessionlog::format::{FORMAT_VERSION, crc32};
use sessionlog::{AppendOptions, Draft, ErrorKind, Seq, Session, Store, StoreOptions, VerifyOptions};

use crate::support::options;

const RAW: [&str; 3] = ["0000000000000001.log", "0000000000000002.log", "0000000000000003.log"];
const SEALED: &str = "0000000000000001-0000000000000001.1.sealed";
const TURN_EVENTS: u64 = 9;
/// Events of `alpha` that `gamma` shares.
const SHARED: u64 = 3 * TURN_EVENTS;
const ALPHA_EVENTS: u64 = 5 * TURN_EVENTS + 1;
const GAMMA_EVENTS: u64 = SHARED + 1 + TURN_EVENTS;

/// One directory, and what it is to be.
struct Fixture {
    name: &'static str,
    make: fn(&Path),
    expected: Expected,
}

enum Expected {
    /// It cannot be opened.
    Refused(ErrorKind),
    Opened {
        alpha: Held,
        gamma: Held,
        /// File, kind, session and seq of what verify finds at least.
        finding: Option<(&'static str, &'static str, Option<&'static str>, Option<u64>)>,
    },
}

/// How much of a session there is.
struct Held {
    events: u64,
    lost: Range<u64>,
}

const WHOLE: Expected =
    Expected::Opened { alpha: all(ALPHA_EVENTS), gamma: all(GAMMA_EVENTS), finding: None };

const fn all(events: u64) -> Held {
    Held { events, lost: 0..0 }
}

/// The second turn of `alpha` is gone, in its fork too.
const fn without_second_turn(file: &'static str, kind: &'static str, named: bool) -> Expected {
    let lost = TURN_EVENTS..2 * TURN_EVENTS;
    Expected::Opened {
        alpha: Held { events: ALPHA_EVENTS, lost: Range { ..lost } },
        gamma: Held { events: GAMMA_EVENTS, lost },
        finding: Some(match named {
            true => (file, kind, Some("alpha"), Some(TURN_EVENTS)),
            false => (file, kind, None, None),
        }),
    }
}

const FIXTURES: [Fixture; 11] = [
    Fixture { name: "healthy", make: sealed, expected: WHOLE },
    Fixture { name: "raw", make: raw, expected: WHOLE },
    Fixture { name: "killed", make: |dir| cut(dir, 40), expected: WHOLE },
    Fixture {
        name: "torn-tail",
        make: |dir| cut(dir, 140),
        expected: Expected::Opened { alpha: all(5 * TURN_EVENTS), gamma: all(GAMMA_EVENTS), finding: None },
    },
    Fixture {
        name: "damaged-segment",
        make: |dir| {
            raw(dir);
            let frame = second_turn(dir);
            change(&dir.join(RAW[0]), frame + 60, |byte| !byte);
        },
        expected: without_second_turn(RAW[0], "frame-checksum", true),
    },
    Fixture {
        name: "damaged-frame-header",
        make: |dir| {
            raw(dir);
            let frame = second_turn(dir);
            change(&dir.join(RAW[0]), frame + 9, |byte| !byte);
        },
        expected: without_second_turn(RAW[0], "frame-magic", false),
    },
    Fixture {
        name: "damaged-sealed-unit",
        make: damaged_unit,
        expected: Expected::Opened {
            alpha: Held { events: ALPHA_EVENTS, lost: 0..SHARED },
            gamma: Held { events: GAMMA_EVENTS, lost: 0..SHARED },
            finding: Some((SEALED, "frame-checksum", Some("alpha"), Some(0))),
        },
    },
    Fixture {
        name: "damaged-sealed-footer",
        make: |dir| {
            sealed(dir);
            let footer = fs::metadata(dir.join(SEALED)).unwrap().len() - 40;
            change(&dir.join(SEALED), footer, |byte| !byte);
        },
        expected: Expected::Opened {
            alpha: Held { events: ALPHA_EVENTS, lost: 0..SHARED },
            gamma: Held { events: GAMMA_EVENTS, lost: 0..SHARED },
            finding: Some((SEALED, "corrupt-record", None, None)),
        },
    },
    Fixture { name: "unfinished-sealing", make: unfinished_sealing, expected: WHOLE },
    Fixture {
        name: "missing-segment",
        make: |dir| {
            raw(dir);
            fs::remove_file(dir.join(RAW[1])).unwrap();
        },
        expected: Expected::Refused(ErrorKind::Corrupt),
    },
    Fixture {
        name: "newer-version",
        make: newer_version,
        expected: Expected::Refused(ErrorKind::Unsupported),
    },
];

#[test]
fn every_store_of_this_format_is_read_as_it_was_written() {
    for fixture in &FIXTURES {
        let dir = tempfile::tempdir().unwrap();
        copy(&stores().join(fixture.name), dir.path());
        check(fixture, dir.path());
    }
}

/// What is made now is what the test above demands of what was made then.
#[test]
fn a_store_made_today_is_the_same_store() {
    for fixture in &FIXTURES {
        let dir = tempfile::tempdir().unwrap();
        (fixture.make)(dir.path());
        let _ = fs::remove_file(dir.path().join("LOCK"));
        check(fixture, dir.path());
    }
}

#[test]
#[ignore = "writes the fixtures; run it when the format changes"]
fn regenerate() {
    for fixture in &FIXTURES {
        let dir = tempfile::tempdir().unwrap();
        (fixture.make)(dir.path());
        let target = stores().join(fixture.name);
        let _ = fs::remove_dir_all(&target);
        fs::create_dir_all(&target).unwrap();
        copy(dir.path(), &target);
    }
}

fn check(fixture: &Fixture, dir: &Path) {
    let name = fixture.name;
    let reader = Store::open_read_only(dir);
    let (alpha, gamma, finding) = match &fixture.expected {
        Expected::Refused(kind) => {
            let error = reader.expect_err(name);
            assert_eq!(error.kind(), *kind, "{name}: {error}");
            assert_eq!(writer().open(dir).expect_err(name).kind(), *kind, "{name}");
            return;
        }
        Expected::Opened { alpha, gamma, finding } => (alpha, gamma, finding),
    };
    let reader = reader.expect(name);
    check_contents(name, &reader, alpha, gamma);
    let verify = |store: &Store| {
        let report = store.verify(VerifyOptions { deep: true, strict: false }, &mut |_, _| ()).unwrap();
        report.findings
    };
    let found = verify(&reader);
    match finding {
        None => assert_eq!(found, [], "{name}"),
        Some((file, kind, session, seq)) => {
            let matches = found.iter().any(|finding| {
                finding.path.ends_with(file)
                    && finding.kind == *kind
                    && session.is_none_or(|id| finding.session.as_deref() == Some(id))
                    && seq.is_none_or(|seq| finding.seq == Some(Seq::new(seq)))
            });
            assert!(matches, "{name}: {found:?}");
        }
    }
    let store = writer().open(dir).expect(name);
    check_contents(name, &store, alpha, gamma);
    let session = store.create_session(SessionHeader::new("new", 2)).unwrap();
    session.append(&[Draft::new("todo/write", "{}")], AppendOptions::default()).unwrap().wait().unwrap();
    drop(session);
    store.close().unwrap();
    let store = writer().open(dir).expect(name);
    check_contents(name, &store, alpha, gamma);
    assert_eq!(store.session("new").unwrap().next_seq().unwrap(), Seq::new(1), "{name}");
    assert_eq!(verify(&store).is_empty(), finding.is_none(), "{name}");
}

fn check_contents(name: &str, store: &Store, alpha: &Held, gamma: &Held) {
    let listed = store.list().unwrap();
    let ids: Vec<_> = listed.iter().map(|info| &*info.header.id).filter(|id| *id != "new").collect();
    assert_eq!(ids, ["gamma", "alpha"], "{name}");
    for (id, held) in [("alpha", alpha), ("gamma", gamma)] {
        let script = script(id);
        let session = store.session(id).unwrap();
        assert_eq!(session.next_seq().unwrap().get(), held.events, "{name}: {id}");
        let mut read = Vec::new();
        for event in session.events(Seq::new(0)..Seq::new(u64::MAX)).unwrap().flatten() {
            let mut line = String::new();
            event.write_json(&mut line);
            read.push(line);
        }
        let expected: Vec<_> = (0..)
            .zip(&script)
            .take_while(|(seq, _)| *seq < held.events)
            .filter(|(seq, _)| !held.lost.contains(seq))
            .map(|(_, line)| line.clone())
            .collect();
        assert_eq!(read, expected, "{name}: {id}");
    }
    // A damaged file may have held the registration.
    let registered = store.vocabulary().registered().any(|name| name == "acme/note");
    assert!(registered || !alpha.lost.is_empty(), "{name}");
}

fn stores() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/stores")
}

fn writer() -> StoreOptions {
    options().create(false)
}

/// Copies the files of a store, without its lock.
fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        if !name.to_str().unwrap().starts_with("LOCK") {
            fs::write(to.join(&name), fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}

/// All events of a session as JSON lines.
fn script(id: &str) -> Vec<String> {
    let mut lines = Vec::new();
    if id == "gamma" {
        lines = script("alpha");
        lines.truncate(usize::try_from(SHARED).unwrap());
        lines.push(format!(r#"{{"type":"session/end-seed","seq":{SHARED},"time":1000,"data":{{}}}}"#));
        turn(&mut lines, 4, "gamma");
        return lines;
    }
    for n in 1..=5 {
        turn(&mut lines, n, id);
    }
    // Takes the place of the first two messages.
    let (seq, first, last) = (lines.len(), 1, 1 + TURN_EVENTS);
    let data = message(seq, "in short");
    lines.push(format!(
        r#"{{"type":"user/message","seq":{seq},"time":1795770000000,"data":{data},"sourceEventSeqs":[{first},{last}],"surfaceOp":{{"op":"replace","start":{first},"end":{last}}}}}"#
    ));
    lines
}

fn message(seq: usize, text: &str) -> String {
    format!(
        r#"{{"id":"m{seq}","role":"user","content":[{{"type":"text","text":"{text}"}}],"source":{{"kind":"user"}}}}"#
    )
}

/// One turn: a message, a header that changes a little, chunks, and an event of the host's own type.
fn turn(lines: &mut Vec<String>, n: u64, salt: &str) {
    let mut push = |type_name: &str, data: String, marks: &str| {
        let seq = lines.len();
        let time = 1_795_770_000_000 - i64::try_from(seq % 5).unwrap();
        lines.push(format!(r#"{{"type":"{type_name}","seq":{seq},"time":{time},"data":{data}{marks}}}"#));
    };
    push("turn/start", format!(r#"{{"turn":{n}}}"#), "");
    let first = usize::try_from((n - 1) * TURN_EVENTS).unwrap();
    // Long enough to be stored once where it occurs again.
    let text =
        if n.is_multiple_of(2) { "0123456789abcdef".repeat(260) } else { format!("\\ud83c é {salt} {n}") };
    push("user/message", message(first, &text), r#","surfaceOp":"append""#);
    let reason = if n == 1 { "initial" } else { "change" };
    push(
        "request/header",
        format!(
            r#"{{"header":{{"config":{{"provider":"p","model":"m","limit":1E3}},"system":"{} {n}"}},"reason":"{reason}"}}"#,
            "You are careful. ".repeat(60)
        ),
        "",
    );
    for word in 0..4 {
        let chunk =
            format!(r#"{{"turn":{n},"step":1,"chunk":{{"type":"text-delta","index":0,"text":"{word} "}}}}"#);
        push("assistant/chunk", chunk, "");
    }
    push("acme/note", format!(r#"{{"n":1E3,"of":{n}}}"#), r#","ignorable":true"#);
    push("turn/end", format!(r#"{{"turn":{n},"reason":{{"kind":"completed"}}}}"#), "");
}

/// Appends the turns of a session that begin in `range`, a batch each, and what follows the last one.
fn append(session: &Session, id: &str, range: Range<u64>) {
    let lines = script(id);
    let mut next = range.start;
    while next < range.end {
        let end = (next + TURN_EVENTS).min(range.end);
        let part = usize::try_from(next).unwrap()..usize::try_from(end).unwrap();
        let drafts: Vec<_> = lines[part].iter().map(|line| Draft::parse(line).unwrap().0).collect();
        let options = AppendOptions { expected: Some(Seq::new(next)), ..AppendOptions::default() };
        session.append(&drafts, options).unwrap().wait().unwrap();
        next = end;
    }
}

/// The first part of the story: `alpha` and `beta`.
fn begin(dir: &Path) {
    let store = options().register_type("acme/note").open(dir).unwrap();
    let alpha = store.create_session(SessionHeader::new("alpha", 1)).unwrap();
    append(&alpha, "alpha", 0..SHARED);
    let beta = store.create_session(SessionHeader::new("beta", 1)).unwrap();
    append(&beta, "beta", 0..TURN_EVENTS);
    drop((alpha, beta));
    store.close().unwrap();
}

/// The rest: a fork, a removal, a replacement.
fn go_on(dir: &Path) {
    let registered = || options().register_type("acme/note").open(dir).unwrap();
    let store = registered();
    append(&store.session("alpha").unwrap(), "alpha", SHARED..4 * TURN_EVENTS);
    let gamma = store.fork("alpha", Some(Seq::new(SHARED - 1)), "gamma").unwrap();
    append(&gamma, "gamma", SHARED + 1..GAMMA_EVENTS);
    drop(gamma);
    store.remove("beta").unwrap();
    store.close().unwrap();
    let store = registered();
    append(&store.session("alpha").unwrap(), "alpha", 4 * TURN_EVENTS..ALPHA_EVENTS);
    store.close().unwrap();
}

/// Three segments as they were written.
fn raw(dir: &Path) {
    begin(dir);
    go_on(dir);
}

/// A sealed file and what followed it.
fn sealed(dir: &Path) {
    begin(dir);
    let store = options().register_type("acme/note").open(dir).unwrap();
    store.compact().unwrap();
    store.close().unwrap();
    go_on(dir);
}

/// A crash after sealing gave the new file its name and before it let go of the old one.
fn unfinished_sealing(dir: &Path) {
    begin(dir);
    let old = fs::read(dir.join(RAW[0])).unwrap();
    let store = options().register_type("acme/note").open(dir).unwrap();
    store.compact().unwrap();
    store.close().unwrap();
    go_on(dir);
    fs::write(dir.join(RAW[0]), old).unwrap();
}

/// The newest segment without its last bytes: the end frame is 40 of them.
fn cut(dir: &Path, bytes: u64) {
    raw(dir);
    let file = fs::OpenOptions::new().write(true).open(dir.join(RAW[2])).unwrap();
    file.set_len(file.metadata().unwrap().len() - bytes).unwrap();
}

fn damaged_unit(dir: &Path) {
    sealed(dir);
    let path = dir.join(SEALED);
    let bytes = fs::read(&path).unwrap();
    // The first place that costs all of the unit's events.
    for at in (4_096..bytes.len()).rev().step_by(7) {
        change(&path, at as u64, |byte| !byte);
        let store = Store::open_read_only(dir).unwrap();
        let report = store.verify(VerifyOptions::default(), &mut |_, _| ()).unwrap();
        let alpha = store.session("alpha");
        let events =
            alpha.map(|alpha| alpha.events(Seq::new(0)..Seq::new(SHARED)).unwrap().flatten().count());
        let named = report.findings.iter().any(|finding| {
            finding.kind == "frame-checksum"
                && finding.session.as_deref() == Some("alpha")
                && finding.seq == Some(Seq::new(0))
        });
        if named && events.is_ok_and(|events| events == 0) {
            return;
        }
        fs::write(&path, &bytes).unwrap();
    }
    panic!("no byte costs the unit");
}

/// Where the frame with the second turn of `alpha` begins.
fn second_turn(dir: &Path) -> u64 {
    let bytes = fs::read(dir.join(RAW[0])).unwrap();
    let mut at = 4_096;
    loop {
        let word =
            |offset: usize| u64::from_le_bytes(bytes[at + offset..at + offset + 8].try_into().unwrap());
        let payload_bytes = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap());
        // An events frame of key 1.
        if bytes[at] == 4 && (word(8), word(16)) == (1, TURN_EVENTS) {
            return at as u64;
        }
        at += (40 + usize::try_from(payload_bytes).unwrap()).next_multiple_of(8);
    }
}

fn newer_version(dir: &Path) {
    raw(dir);
    let path = dir.join(RAW[0]);
    let mut bytes = fs::read(&path).unwrap();
    for copy in [0, 2_048] {
        bytes[copy + 8..copy + 12].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
        let crc = crc32(&bytes[copy..copy + 124]);
        bytes[copy + 124..copy + 128].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(path, bytes).unwrap();
}

fn change(path: &Path, at: u64, byte: impl Fn(u8) -> u8) {
    let mut bytes = fs::read(path).unwrap();
    let at = usize::try_from(at).unwrap();
    bytes[at] = byte(bytes[at]);
    fs::write(path, bytes).unwrap();
}
