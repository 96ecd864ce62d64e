//! A seeded host that works a store hard, and the history by which any disk it leaves behind is judged.
//!
//! The log is one queue, so what a store holds after a crash is what the first so many changes of its history make,
//! byte for byte. How many they are is all that a crash decides, within what was acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use sessionlog::event::SessionHeader;
use sessionlog::event::json::JsonString;
use sessionlog::storage::fault::FaultStorage;
use sessionlog::{
    AppendOptions, Draft, Durability, Result, Seq, Session, Store, StoreOptions, Submission, limits,
};

use crate::support::options;

/// One change of a store, which happens as a whole or not at all.
#[derive(Debug)]
pub(crate) enum Change {
    /// Events of a session; its first make it.
    Append { id: String, lines: Vec<Arc<str>> },
    /// A child that shares the first events of its parent.
    Fork { parent: String, shared: usize, child: String, lines: Vec<Arc<str>> },
    /// A session goes.
    Remove { id: String },
    /// A host's event type comes.
    Register { name: String },
}

/// What a store holds, as its users see it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Contents {
    pub(crate) sessions: BTreeMap<String, Held>,
    types: BTreeSet<String>,
}

/// One session of [`Contents`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Held {
    header: SessionHeader,
    pub(crate) lines: Vec<Arc<str>>,
}

impl Contents {
    /// Reads a store, and checks that its parts agree with each other.
    pub(crate) fn of(store: &Store) -> Result<Self, String> {
        let listed = store.list().map_err(|error| format!("list: {error}"))?;
        let mut contents = Self::default();
        contents.types.extend(store.vocabulary().registered().map(str::to_owned));
        for info in listed {
            let id = info.header.id.clone();
            let session = store.session(&id).map_err(|error| format!("open {id}: {error}"))?;
            let mut lines: Vec<Arc<str>> = Vec::new();
            let all = Seq::new(0)..Seq::new(u64::MAX);
            let read = session.for_each(all, &mut |event| {
                let mut line = String::new();
                event.write_json(&mut line);
                lines.push(line.into());
                Ok(())
            });
            read.map_err(|error| format!("read {id}: {error}"))?;
            let bytes: usize = lines.iter().map(|line| line.len() + 1).sum();
            if (info.events, info.bytes) != (lines.len() as u64, bytes as u64) {
                return Err(format!("{id} is listed with {} events, {} bytes", info.events, info.bytes));
            }
            let header = SessionHeader { delegation_depth: None, ..SessionHeader::clone(&info.header) };
            contents.sessions.insert(id, Held { header, lines });
        }
        Ok(contents)
    }

    pub(crate) fn apply(&mut self, change: &Change) {
        match change {
            Change::Append { id, lines } => {
                let held = self.sessions.entry(id.clone());
                let new = || Held { header: SessionHeader::new(id.clone(), 5), lines: Vec::new() };
                held.or_insert_with(new).lines.extend(lines.iter().cloned());
            }
            Change::Fork { parent, shared, child, lines } => {
                let mut header = SessionHeader::new(child.clone(), 1_000);
                header.parent_session = Some(JsonString::from(&**parent).into_owned());
                header.seed_length = Some(*shared as u64);
                let inherited = &self.sessions[parent].lines[..*shared];
                let lines = inherited.iter().chain(lines).cloned().collect();
                self.sessions.insert(child.clone(), Held { header, lines });
            }
            Change::Remove { id } => drop(self.sessions.remove(id)),
            Change::Register { name } => drop(self.types.insert(name.clone())),
        }
    }
}

/// The changes that were handed to a store, in order, and how far they were acknowledged.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    changes: Vec<Arc<Change>>,
    /// The first so many were acknowledged as handed to the operating system.
    written: usize,
    /// The first so many were acknowledged as synced.
    durable: usize,
    /// Seqs below which the store called a session durable.
    claims: BTreeMap<String, Seq>,
}

impl History {
    /// What the first `count` changes make.
    fn contents(&self, count: usize) -> Contents {
        let mut contents = Contents::default();
        self.changes[..count].iter().for_each(|change| contents.apply(change));
        contents
    }

    /// How many changes make what was found; an error if none of the allowed numbers do. After a power loss all
    /// synced changes must be there, after the end of a process all written ones.
    pub(crate) fn kept(&self, found: &Contents, power_lost: bool) -> Result<usize, String> {
        let least = if power_lost { self.durable } else { self.written };
        let mut contents = self.contents(least);
        let mut kept = least;
        while contents != *found {
            let Some(next) = self.changes.get(kept) else {
                return Err(self.explain(found, least));
            };
            contents.apply(next);
            kept += 1;
        }
        let broken = self.claims.iter().find(|(id, durable)| {
            let held = contents.sessions.get(*id);
            held.is_some_and(|held| (held.lines.len() as u64) < durable.get())
        });
        broken.map_or(Ok(kept), |(id, durable)| Err(format!("{id} was durable to seq {durable}")))
    }

    fn explain(&self, found: &Contents, least: usize) -> String {
        let count = |contents: &Contents| {
            let lengths = contents.sessions.iter().map(|(id, held)| format!("{id}:{}", held.lines.len()));
            lengths.collect::<Vec<_>>().join(" ")
        };
        let (low, high) = (self.contents(least), self.contents(self.changes.len()));
        format!("found [{}], not from [{}] to [{}]", count(found), count(&low), count(&high))
    }

    /// What was not synced is promised no more.
    fn lose_power(&mut self) {
        self.written = self.durable;
    }

    /// Only the first `kept` changes ever happened, and they are durable now.
    fn cut(&mut self, kept: usize) {
        self.changes.truncate(kept);
        self.acknowledge(Durability::Synced);
        self.claims.clear();
    }

    fn acknowledge(&mut self, durability: Durability) {
        self.written = self.changes.len();
        if durability == Durability::Synced {
            self.durable = self.written;
        }
    }
}

/// Drives one store through a history of random steps. The same seed makes the same steps.
pub(crate) struct Host {
    pub(crate) storage: FaultStorage,
    pub(crate) store: Store,
    pub(crate) history: Arc<Mutex<History>>,
    /// What all changes make, acknowledged or not.
    contents: Contents,
    sessions: BTreeMap<String, Session>,
    random: Random,
    names: u64,
    /// Changes made before the present step.
    changes_before: usize,
}

impl Host {
    /// Opens a store in which segments fill quickly.
    pub(crate) fn open(storage: &FaultStorage, history: &Arc<Mutex<History>>, seed: u64) -> Result<Self> {
        Ok(Self {
            storage: storage.clone(),
            store: small_segments().open_storage(Arc::new(storage.clone()))?,
            history: Arc::clone(history),
            contents: Contents::default(),
            sessions: BTreeMap::new(),
            random: Random::new(seed),
            names: 0,
            changes_before: 0,
        })
    }

    /// Does one thing that hosts do.
    pub(crate) fn step(&mut self) -> Result<()> {
        self.changes_before = self.history.lock().unwrap().changes.len();
        match self.random.below(33) {
            0..12 => self.append(Some(Durability::Synced)),
            12..17 => self.append(Some(Durability::Buffered)),
            17..20 => self.append(None),
            20..22 => self.submit(),
            22..24 => self.fork(),
            24 => self.remove(),
            25 => self.register(),
            26..29 => self.store.maintain(),
            29 => self.flush(),
            30 => self.claim(),
            31 => self.compact(),
            _ => self.reopen(),
        }
    }

    /// What the changes before the present step make.
    pub(crate) fn before_step(&self) -> Contents {
        self.history.lock().unwrap().contents(self.changes_before)
    }

    /// Appends one batch; without a durability nobody waits for it.
    fn append(&mut self, wait: Option<Durability>) -> Result<()> {
        let id = self.some_session();
        let appended = self.enqueue(&id, wait.unwrap_or(Durability::Buffered))?;
        if let Some(durability) = wait {
            appended.wait()?;
            self.acknowledge(durability);
        }
        Ok(())
    }

    /// One call for several sessions, one group on the disk.
    fn submit(&mut self) -> Result<()> {
        let ids: BTreeSet<String> = (0..3).map(|_| self.some_session()).collect();
        let texts: Vec<_> = ids.iter().map(|id| self.batch(id)).collect();
        let sessions = ids.iter().map(|id| self.session(id)).collect::<Result<Vec<_>>>()?;
        // Folded beforehand, so that no batch is left out because its session cannot be read.
        sessions.iter().try_for_each(|session| session.with_state(|_| ()))?;
        for (id, lines) in ids.iter().zip(&texts) {
            self.note(Change::Append { id: id.clone(), lines: lines.clone() });
        }
        let drafts: Vec<_> = texts.iter().map(|lines| drafts(lines)).collect();
        let batch = |(session, drafts)| Submission { session, drafts, expected: None };
        let batches: Vec<_> = sessions.iter().zip(drafts.iter().map(Vec::as_slice)).map(batch).collect();
        let submitted = self.store.submit(&batches, Durability::Synced);
        let submitted = submitted.into_iter().collect::<Result<Vec<_>>>()?;
        submitted.iter().try_for_each(|appended| appended.wait())?;
        self.acknowledge(Durability::Synced);
        Ok(())
    }

    fn fork(&mut self) -> Result<()> {
        let Some(parent) = self.known_session() else { return Ok(()) };
        let held = &self.contents.sessions[&parent].lines;
        let shared = 1 + self.random.below(held.len());
        let ends_with_seed = held[shared - 1].contains(r#""type":"session/end-seed""#);
        let end_seed = format!(r#"{{"type":"session/end-seed","seq":{shared},"time":1000,"data":{{}}}}"#);
        let lines = if ends_with_seed { Vec::new() } else { vec![end_seed.into()] };
        let child = self.new_name("fork");
        self.note(Change::Fork { parent: parent.clone(), shared, child: child.clone(), lines });
        let session = self.store.fork(&parent, Some(Seq::new(shared as u64 - 1)), &child)?;
        self.acknowledge(Durability::Synced);
        self.sessions.insert(child, session);
        Ok(())
    }

    fn remove(&mut self) -> Result<()> {
        let Some(id) = self.known_session().filter(|_| self.contents.sessions.len() > 3) else {
            return Ok(());
        };
        self.note(Change::Remove { id: id.clone() });
        self.store.remove(&id)?;
        self.acknowledge(Durability::Synced);
        self.sessions.remove(&id);
        Ok(())
    }

    fn register(&mut self) -> Result<()> {
        let name = self.new_name("acme/type");
        self.note(Change::Register { name: name.clone() });
        self.store.register_type(&name)?;
        self.acknowledge(Durability::Synced);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.store.flush()?;
        self.acknowledge(Durability::Synced);
        Ok(())
    }

    fn compact(&mut self) -> Result<()> {
        self.store.compact()?;
        self.acknowledge(Durability::Synced);
        Ok(())
    }

    /// Takes the store at its word about what is durable.
    fn claim(&mut self) -> Result<()> {
        let claims: Vec<_> = self.sessions.iter().map(|(id, s)| (id.clone(), s.durable_seq())).collect();
        self.history.lock().unwrap().claims.extend(claims);
        Ok(())
    }

    fn reopen(&mut self) -> Result<()> {
        self.sessions.clear();
        self.store.clone().close()?;
        self.acknowledge(Durability::Synced);
        self.store = small_segments().open_storage(Arc::new(self.storage.clone()))?;
        Ok(())
    }

    /// Goes on with what a crash has left.
    pub(crate) fn restart(&mut self, left: FaultStorage, power_lost: bool) -> Result<(), String> {
        self.sessions.clear();
        self.storage = left;
        if power_lost {
            self.history.lock().unwrap().lose_power();
        }
        self.store = small_segments()
            .open_storage(Arc::new(self.storage.clone()))
            .map_err(|error| format!("reopen: {error}"))?;
        self.contents = Contents::of(&self.store)?;
        let mut history = self.history.lock().unwrap();
        let kept = history.kept(&self.contents, power_lost)?;
        history.cut(kept);
        Ok(())
    }

    fn enqueue(&mut self, id: &str, durability: Durability) -> Result<sessionlog::Appended> {
        let lines = self.batch(id);
        let session = self.session(id)?;
        self.note(Change::Append { id: id.to_owned(), lines: lines.clone() });
        session.append(&drafts(&lines), AppendOptions { expected: None, durability })
    }

    fn note(&mut self, change: Change) {
        self.contents.apply(&change);
        self.history.lock().unwrap().changes.push(Arc::new(change));
    }

    fn acknowledge(&self, durability: Durability) {
        self.history.lock().unwrap().acknowledge(durability);
    }

    fn session(&mut self, id: &str) -> Result<Session> {
        if let Some(session) = self.sessions.get(id) {
            return Ok(session.clone());
        }
        let session = match self.contents.sessions.contains_key(id) {
            true => self.store.session(id)?,
            false => self.store.create_session(SessionHeader::new(id, 5))?,
        };
        self.sessions.insert(id.to_owned(), session.clone());
        Ok(session)
    }

    fn some_session(&mut self) -> String {
        let is_new = self.contents.sessions.len() < 6 && self.random.below(4) == 0;
        let known = if is_new { None } else { self.known_session() };
        known.unwrap_or_else(|| self.new_name("session"))
    }

    fn known_session(&mut self) -> Option<String> {
        let count = self.contents.sessions.len();
        if count == 0 {
            return None;
        }
        let at = self.random.below(count);
        self.contents.sessions.keys().nth(at).cloned()
    }

    fn new_name(&mut self, what: &str) -> String {
        self.names += 1;
        format!("{what}-{}", self.names)
    }

    /// The next events of a session: on the surface, off it, replacing, of a registered type; now and then a large one or a
    /// request header.
    fn batch(&mut self, id: &str) -> Vec<Arc<str>> {
        let held = self.contents.sessions.get(id).map_or(0, |held| held.lines.len());
        let mut lines = Vec::new();
        let wanted = [1, 1, 2, 5][self.random.below(4)];
        while lines.len() < wanted {
            let seq = held + lines.len();
            let bytes = [20, 60, 200, 7_000][self.random.below(4)];
            let filler = self.filler(bytes);
            match (self.random.below(7), self.contents.types.first()) {
                (0, Some(name)) => lines.push(event(name, seq, &format!(r#""{filler}""#), "")),
                (1, _) => lines.push(event("todo/write", seq, &format!(r#"{{"todos":["{filler}"]}}"#), "")),
                (2, _) => {
                    lines.push(user(seq, "it", r#","surfaceOp":"append""#));
                    let replace = format!(
                        r#","sourceEventSeqs":[{seq}],"surfaceOp":{{"op":"replace","start":{seq},"end":{seq}}}"#
                    );
                    lines.push(user(seq + 1, &filler, &replace));
                }
                (3, _) => lines.push(header(id, seq, &filler[..8])),
                _ => lines.push(user(seq, &filler, r#","surfaceOp":"append""#)),
            }
        }
        lines
    }

    /// Text that occurs nowhere else.
    fn filler(&mut self, bytes: usize) -> String {
        let word = format!("{:016x}", self.random.next());
        word.repeat(bytes / word.len() + 1)
    }
}

/// A store whose segments are as small as they can be.
pub(crate) fn small_segments() -> StoreOptions {
    options().segment_bytes_max(limits::SEGMENT_BYTES_MIN)
}

/// An event as the store is to give it back.
pub(crate) fn event(type_name: &str, seq: usize, data: &str, marks: &str) -> Arc<str> {
    let time = 2_000 - i64::try_from(seq % 7).unwrap_or_default();
    format!(r#"{{"type":"{type_name}","seq":{seq},"time":{time},"data":{data}{marks}}}"#).into()
}

fn user(seq: usize, text: &str, marks: &str) -> Arc<str> {
    let data = format!(
        r#"{{"id":"u{seq}","role":"user","content":[{{"type":"text","text":"{text}"}}],"source":{{"kind":"user"}}}}"#
    );
    event("user/message", seq, &data, marks)
}

/// A request header that is large and, in one session, nearly the same each time.
fn header(id: &str, seq: usize, edit: &str) -> Arc<str> {
    let mut random = Random::new(id.bytes().fold(0, |seed, byte| seed << 5 ^ u64::from(byte)));
    let system: String = (0..300).map(|_| format!("{:016x} ", random.next())).collect();
    let config = r#"{"provider":"p","model":"m"}"#;
    let data = format!(r#"{{"header":{{"config":{config},"system":"{edit} {system}"}},"reason":"change"}}"#);
    event("request/header", seq, &data, "")
}

pub(crate) fn drafts(lines: &[Arc<str>]) -> Vec<Draft<'_>> {
    lines.iter().map(|line| Draft::parse(line).unwrap().0).collect()
}

/// What the sessions of a store fold to agrees with their events.
pub(crate) fn surfaces_agree(store: &Store, contents: &Contents) -> Result<(), String> {
    for (id, held) in &contents.sessions {
        let session = store.session(id).map_err(|error| error.to_string())?;
        let surface = session.surface().map_err(|error| format!("fold {id}: {error}"))?;
        let expected = naive_surface(held.lines.iter().map(|line| &**line));
        if surface != expected {
            return Err(format!("{id} has surface {surface:?}, not {expected:?}"));
        }
    }
    Ok(())
}

/// The surface by its definition (spec section 5): append, or splice by position.
pub(crate) fn naive_surface<'l>(lines: impl Iterator<Item = &'l str>) -> Vec<Seq> {
    let mut surface = Vec::new();
    for line in lines {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let seq = |value: &serde_json::Value| Seq::new(value.as_u64().unwrap());
        match event.get("surfaceOp") {
            None => {}
            Some(op) if op.is_string() => surface.push(seq(&event["seq"])),
            Some(op) => {
                let at = |name: &str| surface.iter().position(|node| *node == seq(&op[name])).unwrap();
                let range = at("start")..=at("end");
                surface.splice(range, [seq(&event["seq"])]);
            }
        }
    }
    surface
}

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }
}
