//! Request headers of 2 KB to 1 MB: the time to bring one into canonical form, to compare two, and to append an edited one,
//! against a UTF-8 check of the text; and the bytes that an edited one takes in the store.

use std::cell::Cell;
use std::hint::black_box;

use sessionlog::event::CanonicalHeader;
use sessionlog::event::json::Value;
use sessionlog::{AppendOptions, Draft, Durability, Session, Store};
use support::measure::{Bench, timed};
use support::trace::header::Header;
use support::trace::random::Random;
use support::{SEED, Scratch, create, memory_store};

mod support;

const LIMIT: &str = "UTF-8 check of the text";

fn main() {
    let mut bench = Bench::new();
    for size_kb in [2, 25, 65, 200, 1_000] {
        let mut random = Random::new(SEED);
        let mut header = Header::new(&mut random, size_kb * 1_000);
        let text = header.to_json();
        header.edit(&mut random);
        let (old, new, same) = (canonical(&text), canonical(&header.to_json()), canonical(&text));
        let check = |n| timed(n, || assert!(str::from_utf8(black_box(text.as_bytes())).is_ok()));
        let mut row = |name: &str, run: &dyn Fn()| {
            bench.ratio(&format!("header/{name}/{size_kb}_kb"), LIMIT, |n| timed(n, run), check);
        };
        row("canonicalise", &|| drop(black_box(canonical(black_box(&text)))));
        row("compare_changed", &|| drop(black_box(black_box(&new).changed_since(&old))));
        row("compare_equal", &|| assert!(black_box(&same) == black_box(&old)));
        let scratch = Scratch::new("header_volume");
        let store = Store::open(scratch.path()).expect("a new store");
        let appends = Appends::new(&store, header.clone(), Random::new(SEED));
        row("append_buffered", &|| appends.next(Durability::Buffered));
        row("append_synced", &|| appends.next(Durability::Synced));
        print_stored(size_kb, header, random);
    }
    bench.finish();
}

/// Appends edited headers to one session.
struct Appends {
    session: Session,
    /// The data of each, taken in turn.
    edits: Vec<String>,
    done: Cell<usize>,
}

impl Appends {
    fn new(store: &Store, mut header: Header, mut random: Random) -> Self {
        let mut edit = || {
            header.edit(&mut random);
            format!(r#"{{"header":{},"reason":"change"}}"#, header.to_json())
        };
        let edits = (0..16).map(|_| edit()).collect();
        Self { session: create(store, "session"), edits, done: Cell::new(0) }
    }

    fn next(&self, durability: Durability) {
        let data = &*self.edits[self.done.get() % self.edits.len()];
        self.done.set(self.done.get() + 1);
        let options = AppendOptions { expected: None, durability };
        let draft = Draft::new("request/header", data);
        self.session.append(&[draft], options).expect("admitted").wait().expect("written");
    }
}

fn canonical(text: &str) -> CanonicalHeader {
    CanonicalHeader::new(Value::new(text)).expect("a header")
}

/// What the store writes for each edited header and for an equal one, frames included.
fn print_stored(size_kb: usize, mut header: Header, mut random: Random) {
    const HEADERS: u64 = 40;
    let store = memory_store();
    let session = create(&store, "session");
    let written = || store.metrics().expect("a writer").bytes;
    let append = |reason: &str, header: &Header| {
        let data = format!(r#"{{"header":{},"reason":"{reason}"}}"#, header.to_json());
        let draft = Draft::new("request/header", data);
        session.append(&[draft], AppendOptions::default()).expect("admitted").wait().expect("written");
    };
    append("initial", &header);
    let start = written();
    for _ in 0..HEADERS {
        header.edit(&mut random);
        append("change", &header);
    }
    let changed = written();
    append("series", &header);
    let (each, equal) = ((changed - start) / HEADERS, written() - changed);
    eprintln!(
        "header/stored/{size_kb}_kb: {each} bytes for an edited one (mean of {HEADERS}), {equal} for an equal one"
    );
}
