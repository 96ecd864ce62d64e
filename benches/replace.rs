//! Replacements in surfaces of up to a million nodes, endpoints anywhere, against a copy of the array.
//!
//! A row counts the gate's search and checks and the splice; the payload is a small message.

use std::borrow::Cow;
use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

use sessionlog::Seq;
use sessionlog::event::json::{Digest, JsonString};
use sessionlog::event::{Candidate, Origin, Provenance, SessionState, SurfaceOp, Vocabulary, admit};
use sessionlog::projection::{Projection, Surface};
use support::SEED;
use support::measure::Bench;
use support::trace::random::Random;

mod support;

const MESSAGE: &str = r#"{"id":"m","role":"user","content":[],"source":{"kind":"user"}}"#;

fn main() {
    let mut bench = Bench::new();
    for nodes in [1_000, 10_000, 100_000, 1_000_000] {
        let base = Nodes::new(nodes);
        let mut random = Random::new(SEED);
        let few = |random: &mut Random| {
            let start = random.below(nodes - 8);
            start..start + 8
        };
        let half = |random: &mut Random| {
            let start = random.below(nodes / 2);
            start..start + nodes / 2
        };
        let mut row = |name: &str, choose: &dyn Fn(&mut Random) -> Range<usize>| {
            bench.ratio(
                &format!("replace/{name}_of_{nodes}"),
                "memcpy of the array",
                |n| (0..n).map(|_| base.replace(choose(&mut random))).sum(),
                |n| copies(base.surface(), n),
            );
        };
        row("8", &few);
        row("half", &half);
    }
    bench.finish();
}

fn copies(nodes: &[u32], times: u64) -> Duration {
    let mut copy = nodes.to_vec();
    let copy_once = |_| {
        let start = Instant::now();
        copy.copy_from_slice(black_box(nodes));
        black_box(&mut copy);
        start.elapsed()
    };
    (0..times).map(copy_once).sum()
}

/// A session that is a surface and nothing else.
#[derive(Clone)]
struct Nodes {
    surface: Surface,
    next_seq: Seq,
}

impl Nodes {
    fn new(nodes: usize) -> Self {
        let mut session = Self { surface: Surface::default(), next_seq: Seq::new(0) };
        for _ in 0..nodes {
            session.push(SurfaceOp::Append, None);
        }
        session
    }

    fn push(&mut self, op: SurfaceOp, sources: Option<&[Seq]>) {
        let mut candidate = Candidate::new("user/message", 0, MESSAGE);
        candidate.surface_op = Some(op);
        candidate.sources = sources.map(|sources| Provenance::List(Cow::Borrowed(sources)));
        let admitted = admit(self, candidate, Origin::Append, &Vocabulary::default()).expect("admitted");
        self.surface.apply(&admitted);
        self.next_seq = self.next_seq.next();
    }

    /// The time that a replacement of these positions takes, citing all of them.
    fn replace(&self, range: Range<usize>) -> Duration {
        let sources: Vec<Seq> = self.surface()[range].iter().map(|&node| Seq::new(node.into())).collect();
        let op = SurfaceOp::Replace { start: sources[0], end: sources[sources.len() - 1] };
        let mut session = self.clone();
        let start = Instant::now();
        session.push(op, Some(&sources));
        let time = start.elapsed();
        assert_eq!(black_box(session).surface.nodes().len(), self.surface().len() + 1 - sources.len());
        time
    }
}

impl SessionState for Nodes {
    fn session_id(&self) -> &str {
        "s"
    }

    fn next_seq(&self) -> Seq {
        self.next_seq
    }

    fn surface(&self) -> &[u32] {
        self.surface.nodes()
    }

    fn position_of(&self, node: Seq) -> Option<usize> {
        self.surface.position_of(node)
    }

    fn rewrite_digest(&self, node: Seq) -> Option<Digest> {
        self.surface.rewrite_digest(node)
    }

    fn message_id(&self, _: Seq) -> Option<JsonString<'_>> {
        None
    }
}
