//! Reading from a sealed file: one event by its seq, all events of a session as JSON, and envelopes alone; against zstd alone
//! for the same blocks.

use std::hint::black_box;
use std::path::Path;

use sessionlog::{Seq, Session, Store};
use support::blocks::Blocks;
use support::large::{self, Scale};
use support::measure::{Bench, timed};
use support::zipf::Zipf;
use support::{SEED, is_trial};

mod support;

const UNIT: &str = "zstd of one unit (uncached: at most 1.50)";
const SCAN: &str = "zstd of the same blocks (json: at most 1.67)";

fn main() {
    let mut bench = Bench::new();
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    events(&mut bench, parent);
    scans(&mut bench, parent);
    bench.finish();
}

/// One event of ten million.
fn events(bench: &mut Bench, parent: &Path) {
    let scale = if is_trial() { Scale::TRIAL } else { Scale::FULL };
    let path = large::kept(parent, SEED, scale);
    let store = Store::open_read_only(&path).expect("opened");
    let session = |n| store.session(&Scale::id(n)).expect("a session");
    let sessions: Vec<Session> = (0..scale.sessions).map(session).collect();
    let mut blocks = Blocks::of_store(&path);
    let (units, mut unit) = (blocks.unit_count(), 0);
    let mut zstd = |n| {
        timed(n, || {
            unit = (unit + 7_919) % units;
            black_box(blocks.decompress_unit(unit));
        })
    };
    let read = |session: usize, seq: usize| {
        drop(black_box(sessions[session].event(Seq::new(seq as u64)).expect("an event")));
    };
    let mut order = Zipf::new(SEED, scale.sessions, 1.0);
    let mut row = |name: &str, next: &mut dyn FnMut(&mut Zipf) -> (usize, usize)| {
        let ours = |n| {
            timed(n, || {
                let (session, seq) = next(&mut order);
                read(session, seq);
            })
        };
        bench.ratio(&format!("reads/event/{name}"), UNIT, ours, &mut zstd);
    };
    row("cached", &mut |order| (0, order.even(100)));
    row("zipf", &mut |order| (order.next(), order.even(scale.events)));
    // Each session comes round when all others have been there.
    let mut turn = 0;
    row("uncached", &mut |order| {
        turn = (turn + 7_919) % scale.sessions;
        (turn, order.even(scale.events))
    });
}

/// All events of one long session.
fn scans(bench: &mut Bench, parent: &Path) {
    let events = if is_trial() { 200 } else { 20_000 };
    let path = large::kept_session(parent, SEED, events);
    let store = Store::open_read_only(&path).expect("opened");
    let session = store.session(large::SESSION).expect("a session");
    let all = Seq::new(0)..session.next_seq().expect("a session");
    let mut blocks = Blocks::of_store(&path);
    let mut zstd = |n| timed(n, || assert!(black_box(blocks.decompress_all()) > 0));
    let mut line = String::new();
    let mut json = || {
        let written = session.for_each(all.clone(), &mut |event| {
            line.clear();
            event.write_json(&mut line);
            black_box(&line);
            Ok(())
        });
        written.expect("read");
    };
    bench.ratio(&format!("reads/scan/json/{events}"), SCAN, |n| timed(n, &mut json), &mut zstd);
    let envelopes = || {
        let read = session.envelopes(all.clone(), &mut |envelope| {
            black_box(envelope);
            Ok(())
        });
        read.expect("read");
    };
    bench.ratio(&format!("reads/scan/envelopes/{events}"), SCAN, |n| timed(n, envelopes), &mut zstd);
}
