//! `replay`: rebuilds every request of a session or of a log, and says where two of them stop to be the same.
//!
//! A request is what a step sends to the model: the header in force and the messages of the surface, as they were before
//! the first piece of the answer. Time grows with the events; of messages only fingerprints are kept.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, bail};
use sessionlog::event::json::{Digest, Digester, Value};
use sessionlog::event::{Admitted, Placement, SessionState};
use sessionlog::import::{Found, JudgeOptions, Lines, SourceFormat, ZstdFrames, discover, judge};
use sessionlog::projection::{Projection, State, derived_message};
use sessionlog::{Seq, Store};

use crate::cli::Context;
use crate::conversation::text_of;
use crate::exit::Exit;
use crate::judging::refusal_sentence;
use crate::output::human;
use crate::output::json::{Object, Raw};
use crate::output::note;
use crate::output::table::{Align, Table};

/// Rebuild every request of a session or a log file, or compare those of two
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A session's id, or a log file
    #[arg(value_name = "ID|FILE")]
    log: String,
    /// Say where this session or file stops to rebuild the same requests
    #[arg(long, value_name = "ID|FILE")]
    against: Option<String>,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let (requests, exit) = replayed(context, &args.log)?;
    let Some(against) = &args.against else {
        print(context, &requests)?;
        return Ok(exit);
    };
    let (others, other_exit) = replayed(context, against)?;
    let same = requests.iter().zip(&others).take_while(|(one, other)| one.hash == other.hash).count();
    let differ = same < requests.len().max(others.len());
    tell_difference(context, [requests.get(same), others.get(same)], same, differ)?;
    Ok(exit.max(other_exit).max(Exit::findings(differ)))
}

/// One rebuilt request.
struct Rebuilt {
    /// The first event of its answer.
    seq: Seq,
    header_seq: Option<Seq>,
    reason: String,
    /// Its header begins a series of messages, and is new with it.
    starts_series: bool,
    messages: usize,
    /// Equal requests have equal hashes.
    hash: Digest,
}

impl Rebuilt {
    fn document(&self) -> String {
        Object::new()
            .field("seq", self.seq)
            .field("headerSeq", self.header_seq)
            .field("reason", &self.reason)
            .field("startsSeries", self.starts_series)
            .field("messages", self.messages)
            .field("hash", format!("{:032x}", self.hash))
            .end()
    }
}

/// The requests of a file, if there is one of this name, else of a session.
fn replayed(context: &Context, log: &str) -> anyhow::Result<(Vec<Rebuilt>, Exit)> {
    let path = Path::new(log);
    if path.is_file() { replayed_file(path) } else { replayed_session(&context.reader()?, log) }
}

fn replayed_session(store: &Store, id: &str) -> anyhow::Result<(Vec<Rebuilt>, Exit)> {
    let mut replay = Replay::new(id);
    store.session(id)?.project(&mut replay)?;
    Ok((replay.requests, Exit::Clean))
}

/// The requests up to where the log is refused, if it is.
fn replayed_file(path: &Path) -> anyhow::Result<(Vec<Rebuilt>, Exit)> {
    let source = match discover(path).next() {
        Some(Found::Source(source)) => source,
        Some(Found::Unreadable { error, .. }) => return Err(crate::source::unreadable(path, error)),
        _ => bail!("read {}: it is no log", path.display()),
    };
    let reading = || format!("read {}", path.display());
    let file = File::open(path).with_context(reading)?;
    let mut replay = Replay::new("");
    let options = JudgeOptions::default();
    let mut sink = |admitted: &Admitted<'_>| {
        replay.apply(admitted);
        Ok(())
    };
    let judgement = match source.format {
        SourceFormat::Jsonl | SourceFormat::Empty => judge(&mut Lines::new(file), &options, &mut sink),
        SourceFormat::JsonlZstd => {
            judge(&mut ZstdFrames::new(file).with_context(reading)?, &options, &mut sink)
        }
        SourceFormat::Sqlite => {
            bail!("{}: a database holds many sessions; import it and replay one of them", reading())
        }
    }?;
    if let Some(refusal) = &judgement.refusal {
        note(format_args!("{}: {}", path.display(), human::printable(&refusal_sentence(refusal))));
    }
    Ok((replay.requests, Exit::findings(judgement.refusal.is_some())))
}

/// The fold that finds the requests.
struct Replay {
    state: State,
    requests: Vec<Rebuilt>,
    /// Fingerprints of the messages of events that joined the surface.
    messages: HashMap<u32, Digest>,
    /// Reason of the header in force, and whether the next request is the first of its series.
    reason: String,
    starts_series: bool,
    /// The step that is open has sent its request.
    sent: bool,
    /// The surface as far as it was taken into a fingerprint: its generation, nodes, and the fingerprint.
    seen: (u64, usize, Digest),
}

impl Replay {
    fn new(id: &str) -> Self {
        Self {
            state: State::new(id),
            requests: Vec::new(),
            messages: HashMap::new(),
            reason: String::new(),
            starts_series: false,
            sent: false,
            seen: (0, 0, 0),
        }
    }

    fn rebuild(&mut self, seq: Seq) {
        let messages_hash = self.messages_hash();
        let header = self.state.request_header();
        let mut hash = Digester::default();
        hash.bytes(&header.header().map_or(0, |header| header.digest()).to_le_bytes());
        hash.bytes(&messages_hash.to_le_bytes());
        self.requests.push(Rebuilt {
            seq,
            header_seq: header.seq(),
            reason: self.reason.clone(),
            starts_series: std::mem::take(&mut self.starts_series),
            messages: self.state.message_count(),
            hash: hash.finish(),
        });
    }

    /// Fingerprint of the surface's messages; begun anew only where a replacement changed what was there.
    fn messages_hash(&mut self) -> Digest {
        let generation = self.state.visible().replace_generation();
        let (seen_generation, nodes, hash) = self.seen;
        let (from, mut hash) = if generation == seen_generation { (nodes, hash) } else { (0, 0) };
        let surface = self.state.surface();
        for message in surface[from..].iter().filter_map(|node| self.messages.get(node)) {
            let mut digester = Digester::default();
            digester.bytes(&hash.to_le_bytes());
            digester.bytes(&message.to_le_bytes());
            hash = digester.finish();
        }
        self.seen = (generation, surface.len(), hash);
        hash
    }
}

impl Projection for Replay {
    fn apply(&mut self, admitted: &Admitted<'_>) {
        let event = admitted.event();
        let data = event.value();
        match &*event.type_name {
            "step/start" => self.sent = false,
            "assistant/chunk" | "assistant/message" if !self.sent => {
                self.sent = true;
                self.rebuild(event.seq);
            }
            "request/header" => {
                self.reason = text_of(data.get("reason"));
                // Only a change can go on with the messages that the model has seen.
                let marked = data.get("startsSeries").is_some_and(|mark| mark.is_true());
                self.starts_series |= marked || self.reason != "change";
            }
            _ => {}
        }
        if *admitted.placement() != Placement::LogOnly
            && let Some(message) = derived_message(&event.type_name, data)
            && let Ok(node) = u32::try_from(event.seq.get())
        {
            self.messages.insert(node, fingerprint(message));
        }
        self.state.apply(admitted);
    }
}

fn fingerprint(message: Value<'_>) -> Digest {
    let mut digester = Digester::default();
    digester.ordered_value(message);
    digester.finish()
}

fn print(context: &mut Context, requests: &[Rebuilt]) -> anyhow::Result<()> {
    if context.out.json() {
        return Ok(requests.iter().try_for_each(|request| context.out.line(request.document()))?);
    }
    let mut table = Table::new([
        ("SEQ", Align::Right),
        ("HEADER", Align::Right),
        ("REASON", Align::Left),
        ("SERIES", Align::Left),
        ("MESSAGES", Align::Right),
        ("HASH", Align::Left),
    ]);
    for request in requests {
        table.row([
            request.seq.to_string(),
            request.header_seq.map_or("-".into(), |seq| seq.to_string()),
            human::one_line(&request.reason),
            if request.starts_series { "starts" } else { "" }.to_owned(),
            human::count(u64::try_from(request.messages)?),
            human::cut(&format!("{:032x}", request.hash), 13).into_owned(),
        ]);
    }
    Ok(table.print(&mut context.out)?)
}

/// Tells how many requests are the same, and the first of each side that is not.
fn tell_difference(
    context: &mut Context,
    sides: [Option<&Rebuilt>; 2],
    same: usize,
    differ: bool,
) -> anyhow::Result<()> {
    if context.out.json() {
        let [log, against] = sides.map(|side| side.map(Rebuilt::document));
        let document = Object::new()
            .field("same", same)
            .field("differ", differ)
            .field("log", log.as_deref().map(Raw))
            .field("against", against.as_deref().map(Raw))
            .end();
        return Ok(context.out.line(document)?);
    }
    let same = human::counted(u64::try_from(same)?, "request");
    if !differ {
        return Ok(context.out.line(format_args!("the same: {same}"))?);
    }
    let [log, against] = sides.map(|side| match side {
        Some(request) => format!("seq {}, {} messages", request.seq, request.messages),
        None => "no further request".to_owned(),
    });
    Ok(context.out.line(format_args!("after {same} that are the same: {log}; against {against}"))?)
}
