//! A host in a second process: killed again and again while it appends and seals, and read beside.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use sessionlog::event::SessionHeader;
use sessionlog::{AppendOptions, Draft, Durability, Seq, Session, Store, VerifyOptions};

use crate::history::{Random, small_segments};
use crate::support::lines;

/// Where the host's store is.
const DIR: &str = "SESSIONLOG_TEST_HOST";
/// Who seals: the host between its appends, or the store by itself.
const UPKEEP: &str = "SESSIONLOG_TEST_UPKEEP";
const IDS: [&str; 3] = ["a", "b", "c"];
const BATCH: u64 = 3;

/// The process that the tests below start; no test of its own.
#[test]
#[ignore = "the other tests here start it"]
fn host() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let by_itself = std::env::var(UPKEEP).is_ok_and(|who| who == "itself");
    let store = small_segments().background(by_itself).open(dir).unwrap();
    let mut out = std::io::stdout().lock();
    for round in 0_u64.. {
        for id in IDS {
            let session = session(&store, id);
            let first = session.next_seq().unwrap().get();
            let draft = |seq| Draft::new("todo/write", data(id, seq)).at_time(7);
            let batch: Vec<_> = (first..first + BATCH).map(draft).collect();
            let durability = if round % 4 == 0 { Durability::Synced } else { Durability::Buffered };
            session.append(&batch, AppendOptions { expected: None, durability }).unwrap().wait().unwrap();
            // Nobody listens any more: the test is over.
            if writeln!(out, "told {id} {}", first + BATCH).and_then(|()| out.flush()).is_err() {
                return;
            }
        }
        if !by_itself && round % 8 == 0 {
            store.maintain().unwrap();
        }
        if !by_itself && round % 64 == 63 {
            store.compact().unwrap();
        }
    }
}

fn session(store: &Store, id: &str) -> Session {
    store.session(id).or_else(|_| store.create_session(SessionHeader::new(id, 5))).unwrap()
}

/// The data that the host appends, of any size up to some hundred bytes.
fn data(id: &str, seq: u64) -> String {
    let mut random = Random::new(seq ^ u64::from(id.as_bytes()[0]) << 32);
    let filler: String = (0..random.below(40)).map(|_| format!("{:016x}", random.next())).collect();
    format!(r#"["{id}",{seq},"{filler}"]"#)
}

/// Its event as it is stored.
fn line(id: &str, seq: u64) -> String {
    format!(r#"{{"type":"todo/write","seq":{seq},"time":7,"data":{}}}"#, data(id, seq))
}

/// A running host; it goes with its owner.
struct Host {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
}

impl Host {
    fn start(dir: &Path, upkeep: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::host", "--ignored", "--nocapture"]);
        command.env(DIR, dir).env(UPKEEP, upkeep).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, out }
    }

    /// How far the host told that a session is written.
    fn told(&mut self) -> Option<(String, u64)> {
        loop {
            let line = self.out.next()?.unwrap();
            let mut words = line.strip_prefix("told ").into_iter().flat_map(|rest| rest.split(' '));
            if let (Some(id), Some(next)) = (words.next(), words.next()) {
                return Some((id.to_owned(), next.parse().unwrap()));
            }
        }
    }

    /// Kills the host, and tells the last that it said.
    fn kill(mut self) -> Vec<(String, u64)> {
        self.child.kill().unwrap();
        std::iter::from_fn(|| self.told()).collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks that a session holds whole batches of what the host appends, at least up to `told`.
fn holds(session: &Session, told: u64) {
    let id = session.id();
    let stored = lines(session);
    assert!(
        stored.len() as u64 >= told && (stored.len() as u64).is_multiple_of(BATCH),
        "{id}: {told}, {}",
        stored.len()
    );
    (0..).zip(&stored).for_each(|(seq, stored)| assert_eq!(*stored, line(id, seq), "{id}"));
}

#[test]
fn whatever_a_host_told_survives_its_being_killed_while_it_seals() {
    for upkeep in ["host", "itself"] {
        let dir = tempfile::tempdir().unwrap();
        let mut sealed = 0;
        for round in 0..12 {
            let mut host = Host::start(dir.path(), upkeep);
            let mut told = [0; IDS.len()];
            let mut hear =
                |(id, next): (String, u64)| told[IDS.iter().position(|known| *known == id).unwrap()] = next;
            (0..60 + 37 * round).for_each(|_| hear(host.told().unwrap()));
            host.kill().into_iter().for_each(hear);
            let store = small_segments().open(dir.path()).unwrap();
            IDS.iter().zip(told).for_each(|(id, told)| holds(&store.session(id).unwrap(), told));
            let deep = VerifyOptions { deep: true, strict: false };
            assert_eq!(store.verify(deep, &mut |_, _| ()).unwrap().findings, [], "round {round}");
            sealed = store.stats().unwrap().segments.sealed;
            store.close().unwrap();
        }
        assert!(sealed > 0, "{upkeep}: nothing was sealed");
    }
}

#[test]
fn a_reader_beside_a_host_that_seals_finds_all_that_was_told_and_never_an_error() {
    for upkeep in ["host", "itself"] {
        let dir = tempfile::tempdir().unwrap();
        let mut host = Host::start(dir.path(), upkeep);
        let mut told = host.told().unwrap();
        let reader = small_segments().open_read_only(dir.path()).unwrap();
        let mut seen = [0; IDS.len()];
        for _ in 0..400 {
            reader.refresh().unwrap();
            let (id, next) = &told;
            let session = reader.session(id).unwrap();
            let end = session.next_seq().unwrap().get();
            assert!(end >= *next && end.is_multiple_of(BATCH), "{id}: {end} of {next}");
            let seen = &mut seen[IDS.iter().position(|known| known == id).unwrap()];
            let new = session.events(Seq::new(*seen)..Seq::new(end)).unwrap();
            for (seq, event) in (*seen..).zip(new) {
                let mut found = String::new();
                event.unwrap().write_json(&mut found);
                assert_eq!(found, line(id, seq));
            }
            *seen = end;
            told = host.told().unwrap();
        }
        reader.refresh().unwrap();
        IDS.iter().for_each(|id| holds(&reader.session(id).unwrap(), 0));
        let last = host.kill();
        reader.refresh().unwrap();
        last.iter().for_each(|(id, told)| holds(&reader.session(id).unwrap(), *told));
    }
}
