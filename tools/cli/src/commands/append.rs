//! `append`: events from stdin into a session, each told once it is durable.
//!
//! Must never hold back what it could commit: a batch ends early when no further line arrives. A line that
//! is refused ends the command: of its batch nothing is stored, of those before it everything is.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow, ensure};
use clap::ValueEnum;
use sessionlog::event::json::{Value, scan};
use sessionlog::event::{SessionHeader, parse_header_line};
use sessionlog::limits::RECORD_BYTES_MAX;
use sessionlog::{AppendOptions, Appended, Draft, Durability, Error, ErrorKind, Seq, Session, Store};

use crate::cli::Context;
use crate::exit::{self, Exit};
use crate::output::Output;
use crate::output::json::{Json, Object};

/// Batches on their way to the disk together: one group commit serves them all.
const IN_FLIGHT_MAX: usize = 256;
/// How long a batch that is not full waits for its next line.
const BATCH_LINGER: Duration = Duration::from_millis(20);
/// Bytes of one read from stdin, and how many reads may wait to be taken in.
const CHUNK_BYTES: usize = 64 << 10;
const CHUNKS_MAX: usize = 16;

/// Append events from stdin, one JSON document per line; seq and time may be absent
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The session
    id: String,
    /// Create the session with this header, unless it exists
    #[arg(long, value_name = "META.json")]
    create: Option<PathBuf>,
    /// Store up to so many lines as one atomic batch
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// When an event is told: once the system has it, or once it is on the disk
    #[arg(long, value_enum, default_value = "synced")]
    durability: Asked,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Asked {
    Buffered,
    Synced,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let meta = match &args.create {
        Some(path) => {
            Some(std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?)
        }
        None => None,
    };
    let store = context.writer(meta.is_some())?;
    let session = open(&store, &args.id, meta.as_deref())?;
    let durability = match args.durability {
        Asked::Buffered => Durability::Buffered,
        Asked::Synced => Durability::Synced,
    };
    let appender = Appender { session, durability, in_flight: VecDeque::new(), out: &mut context.out };
    let exit = appender.run(Lines::of(io::stdin()), usize::try_from(args.batch)?);
    let closed = store.close();
    let exit = exit?;
    closed?;
    Ok(exit)
}

/// The session, which `meta` describes if it may be new.
fn open(store: &Store, id: &str, meta: Option<&str>) -> anyhow::Result<Session> {
    let found = store.session(id);
    let Some(meta) = meta else {
        let is_missing = found.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        ensure!(!is_missing, "open session {id}: there is no such session; `--create META.json` begins it");
        return Ok(found?);
    };
    match found {
        Ok(session) => {
            let header = header_from(meta, id, session.header().created_at)?;
            ensure!(*session.header() == header, "create session {id}: it exists with another header");
            Ok(session)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Ok(store.create_session(header_from(meta, id, i64::try_from(now.as_millis())?)?)?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads a session header as the first line of a log spells it; what must stand there and is known may be absent.
fn header_from(meta: &str, id: &str, created_at: i64) -> anyhow::Result<SessionHeader> {
    let attempted = || format!("create session {id}: read its header");
    scan(meta).map_err(|fault| anyhow!("it is not JSON at byte {}", fault.offset)).with_context(attempted)?;
    let given = Value::new(meta);
    ensure!(given.is_object(), "{}: it is no JSON object", attempted());
    let mut line = Object::new();
    let mut default = |key: &str, value: &dyn Json| {
        if given.get(key).is_none() {
            line.field(key, value);
        }
    };
    default("type", &"session");
    default("version", &0_u64);
    default("id", &id);
    default("createdAt", &created_at);
    default("delegationDepth", &0_u64);
    for member in given.members() {
        line.member(member.key, member.value.raw());
    }
    let header = parse_header_line(&line.end()).map_err(Error::from).with_context(attempted)?;
    ensure!(header.id == id, "create session {id}: the header is that of session {}", header.id);
    Ok(header)
}

struct Appender<'a> {
    session: Session,
    durability: Durability,
    /// Batches that are not yet told, oldest first.
    in_flight: VecDeque<Appended>,
    out: &'a mut Output,
}

/// Lines that become one batch, with their numbers.
type Batch = Vec<(u64, String)>;

impl Appender<'_> {
    fn run(mut self, mut lines: Lines, batch_lines_max: usize) -> anyhow::Result<Exit> {
        let drained = self.drain(&mut lines, batch_lines_max);
        // What was stored before a failure is told before it.
        self.acknowledge()?;
        match drained {
            Ok(()) => Ok(Exit::Clean),
            Err(error) if is_refusal(&error) => {
                exit::tell(&error.context("append: refused, nothing of this batch is stored"));
                Ok(Exit::Findings)
            }
            Err(error) => Err(error),
        }
    }

    fn drain(&mut self, lines: &mut Lines, batch_lines_max: usize) -> anyhow::Result<()> {
        let mut batch = Batch::new();
        loop {
            // What is in flight is told as soon as nothing more has arrived to join its group.
            let patience = match (self.in_flight.is_empty(), batch.is_empty()) {
                (false, _) => Some(Duration::ZERO),
                (true, false) => Some(BATCH_LINGER),
                (true, true) => None,
            };
            match lines.next(patience)? {
                Next::Line(text) => {
                    batch.push((lines.number, text));
                    if batch.len() == batch_lines_max {
                        self.append(&mut batch)?;
                    }
                    if self.in_flight.len() == IN_FLIGHT_MAX {
                        self.acknowledge()?;
                    }
                }
                Next::Nothing if self.in_flight.is_empty() => self.append(&mut batch)?,
                Next::Nothing => self.acknowledge()?,
                Next::End => return self.append(&mut batch),
            }
        }
    }

    fn append(&mut self, batch: &mut Batch) -> anyhow::Result<()> {
        let (Some((first_line, _)), Some((last_line, _))) = (batch.first(), batch.last()) else {
            return Ok(());
        };
        let mut expected = None;
        let mut drafts = Vec::with_capacity(batch.len());
        for (index, (line, text)) in (0..).zip(&*batch) {
            let (draft, claimed) = Draft::parse(text).with_context(|| format!("line {line}"))?;
            if let Some(claimed) = claimed {
                let first = claimed.get().checked_sub(index);
                if first.is_none() || expected.is_some() && expected != first {
                    return Err(misfit(*line, "its seq does not follow those of its batch"));
                }
                expected = first;
            }
            drafts.push(draft);
        }
        let options = AppendOptions { expected: expected.map(Seq::new), durability: self.durability };
        let appended =
            self.session.append(&drafts, options).with_context(|| match first_line == last_line {
                true => format!("line {first_line}"),
                false => format!("lines {first_line} to {last_line}"),
            })?;
        self.in_flight.push_back(appended);
        batch.clear();
        Ok(())
    }

    /// Waits for the batches in flight and tells their events.
    fn acknowledge(&mut self) -> anyhow::Result<()> {
        let durable = self.durability == Durability::Synced;
        while let Some(appended) = self.in_flight.pop_front() {
            appended.wait()?;
            let mut seq = appended.first;
            while seq < appended.next {
                self.out.line(Object::new().field("seq", seq).field("durable", durable).end())?;
                seq = seq.next();
            }
            self.out.flush()?;
        }
        Ok(())
    }
}

/// A line that cannot become an event of its batch.
#[derive(Debug)]
struct Misfit(&'static str);

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Misfit {}

fn misfit(line: u64, why: &'static str) -> anyhow::Error {
    anyhow::Error::new(Misfit(why)).context(format!("line {line}"))
}

/// Whether the events are at fault, and not the machine or the store.
fn is_refusal(error: &anyhow::Error) -> bool {
    use ErrorKind::{Conflict, Invalid, Limit, Rejected, Unsupported};
    let refused = |error: &Error| matches!(error.kind(), Conflict | Invalid | Limit | Rejected | Unsupported);
    error.is::<Misfit>() || error.chain().any(|cause| cause.downcast_ref().is_some_and(refused))
}

/// Stdin by lines, read ahead by a thread so that waiting can end.
struct Lines {
    chunks: Receiver<io::Result<Vec<u8>>>,
    /// What has arrived and is not yet given out, from `at` on.
    buffer: Vec<u8>,
    at: usize,
    ended: bool,
    /// Number of the last line, from 1.
    number: u64,
}

/// What [`Lines::next`] finds.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// A line, blank ones left out. Only the last one of the input may lack its line feed.
    Line(String),
    /// None has arrived in time.
    Nothing,
    /// The input is over.
    End,
}

impl Lines {
    fn of(input: impl Read + Send + 'static) -> Self {
        let (sender, chunks) = sync_channel(CHUNKS_MAX);
        thread::spawn(move || read_ahead(input, &sender));
        Self { chunks, buffer: Vec::new(), at: 0, ended: false, number: 0 }
    }

    /// The next line; waits for it at most so long, or without end.
    fn next(&mut self, patience: Option<Duration>) -> anyhow::Result<Next> {
        let mut searched = self.at;
        loop {
            if let Some(found) = self.buffer[searched..].iter().position(|&byte| byte == b'\n') {
                let line = self.take(searched + found + 1)?;
                if !line.trim_ascii().is_empty() {
                    return Ok(Next::Line(line));
                }
                searched = self.at;
                continue;
            }
            if self.ended {
                let rest = self.take(self.buffer.len())?;
                return Ok(if rest.trim_ascii().is_empty() { Next::End } else { Next::Line(rest) });
            }
            self.buffer.drain(..self.at);
            self.at = 0;
            searched = self.buffer.len();
            if u64::try_from(searched)? > RECORD_BYTES_MAX {
                return Err(misfit(self.number + 1, "it is longer than a record may be"));
            }
            match self.receive(patience) {
                Ok(chunk) => self.buffer.extend(chunk.context("read stdin")?),
                Err(RecvTimeoutError::Timeout) => return Ok(Next::Nothing),
                Err(RecvTimeoutError::Disconnected) => self.ended = true,
            }
        }
    }

    fn receive(&self, patience: Option<Duration>) -> Result<io::Result<Vec<u8>>, RecvTimeoutError> {
        match patience {
            Some(patience) => self.chunks.recv_timeout(patience),
            None => self.chunks.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn take(&mut self, end: usize) -> anyhow::Result<String> {
        self.number += 1;
        let line = self.buffer[self.at..end].to_vec();
        self.at = end;
        String::from_utf8(line).map_err(|_| misfit(self.number, "it is not valid UTF-8"))
    }
}

/// Sends what arrives, as it arrives, until the input ends or nobody listens.
fn read_ahead(mut input: impl Read, sender: &SyncSender<io::Result<Vec<u8>>>) {
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        let sent = match input.read(&mut chunk) {
            Ok(0) => return,
            Ok(bytes) => {
                chunk.truncate(bytes);
                sender.send(Ok(chunk))
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => sender.send(Err(error)),
        };
        if sent.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_and_blank_ones_passed_over() {
        let mut lines = Lines::of(&b"a\n\n \r\nb\nlast"[..]);
        for (number, text) in [(1, "a\n"), (4, "b\n"), (5, "last")] {
            assert_eq!(lines.next(None).unwrap(), Next::Line(text.into()));
            assert_eq!(lines.number, number);
        }
        assert_eq!(lines.next(None).unwrap(), Next::End);
        assert_eq!(lines.next(Some(Duration::ZERO)).unwrap(), Next::End);
    }

    #[test]
    fn a_line_that_has_not_arrived_is_not_waited_for() {
        let (sender, chunks) = sync_channel(4);
        let mut lines = Lines { chunks, buffer: Vec::new(), at: 0, ended: false, number: 0 };
        assert_eq!(lines.next(Some(Duration::ZERO)).unwrap(), Next::Nothing);
        sender.send(Ok(b"one\ntw".to_vec())).unwrap();
        assert_eq!(lines.next(Some(Duration::ZERO)).unwrap(), Next::Line("one\n".into()));
        assert_eq!(lines.next(Some(Duration::ZERO)).unwrap(), Next::Nothing);
        sender.send(Ok(b"o\n".to_vec())).unwrap();
        assert_eq!(lines.next(None).unwrap(), Next::Line("two\n".into()));
        sender.send(Err(io::Error::other("unplugged"))).unwrap();
        assert!(!is_refusal(&lines.next(None).unwrap_err()), "the machine is at fault");
    }

    #[test]
    fn bytes_that_are_no_text_are_refused_with_their_line() {
        let mut lines = Lines::of(&b"{}\n\xff\n"[..]);
        lines.next(None).unwrap();
        let error = lines.next(None).unwrap_err();
        assert_eq!(format!("{error:#}"), "line 2: it is not valid UTF-8");
        assert!(is_refusal(&error));
    }
}
