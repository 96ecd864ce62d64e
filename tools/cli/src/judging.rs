//! A judgement on a log, as the JSON document that scripts rely on and as a person reads it.

use std::io::{self, Write};

use sessionlog::event::{Event, Refusal, RepairKind, SessionHeader, SessionState, Warning};
use sessionlog::import::{CutRecord, Judgement, LoggedHeader, Repair, Verdict};
use sessionlog::projection::{Replacement, State, Usage};
use sessionlog::repair::may_help;
use sessionlog::{Seq, Session};

use crate::conversation::text_of;
use crate::output::json::{Json, Object, Raw};
use crate::output::{Style, human};

/// Warnings of one kind that are told to a person one by one; the rest is counted.
pub(crate) const WARNINGS_TOLD_MAX: u64 = 10;

/// The judging view. Keys that a refused log has no answer for are absent; of a session of which only the `id` is known
/// there is that.
pub(crate) fn document(path: Option<&str>, id: Option<&str>, judgement: &Judgement) -> String {
    let mut document = Object::new();
    document.optional("path", path);
    match (&judgement.header, id) {
        (Some(header), _) => document.field("session", header),
        (None, Some(id)) => document.field("session", Raw(&Object::new().field("id", id).end())),
        (None, None) => &mut document,
    };
    document.field("verdict", judgement.verdict().as_str());
    if let Some(state) = &judgement.state {
        folded(&mut document, state, judgement);
    }
    document
        .field("warnings", judgement.warnings.listed())
        .field("repair", judgement.repair.as_ref())
        .field("refusal", judgement.refusal.as_ref())
        .end()
}

/// What the events fold to.
fn folded(document: &mut Object, state: &State, judgement: &Judgement) {
    document
        .field("events", state.next_seq())
        .field("surface", state.surface())
        .field("replaceGeneration", state.visible().replace_generation())
        .field("replacements", judgement.replacements.as_slice())
        .field("requestHeader", state.request_header().header().map(|header| Raw(header.text())))
        .field("headers", judgement.headers.as_slice());
    let mut pairing = state.clone();
    match pairing.cuts() {
        Ok(cuts) => document.field("pairing", cuts).field("pairingError", None::<&str>),
        Err(error) => document.field("pairingError", error.message()),
    };
    document
        .field("messages", state.message_count())
        .field("closers", judgement.closers.as_slice())
        .field("usage", &judgement.usage);
}

/// Writes the judgement on what lies at `place` for people; `file` is a log that could be repaired.
pub(crate) fn print(
    out: &mut impl Write,
    style: Style,
    place: &str,
    file: Option<&str>,
    judgement: &Judgement,
) -> io::Result<()> {
    let verdict = match judgement.verdict() {
        Verdict::Accept => style.good("accept"),
        Verdict::Repair => style.odd("repair"),
        Verdict::Refuse => style.bad("refuse"),
    };
    writeln!(out, "{}: {verdict}", style.bold(&human::one_line(place)))?;
    let mut line = |name: &str, text: &str| writeln!(out, "  {name:<9} {}", human::one_line(text));
    if let Some(refusal) = &judgement.refusal {
        line("refused", &refusal_sentence(refusal))?;
    }
    if let Some(repair) = &judgement.repair {
        line("repair", &repair_sentence(repair))?;
        for cut in &repair.cut {
            line("", &format!("cut: {}", cut_sentence(cut)))?;
        }
    }
    if let Some(hint) = file.and_then(|path| repair_hint(path, judgement)) {
        line("next", &hint)?;
    }
    if let Some(header) = &judgement.header {
        let cwd = header.cwd.as_ref().map_or("no working directory".into(), |cwd| cwd.to_lossy());
        line("session", &format!("{}, begun {}, {cwd}", header.id, human::time(header.created_at)))?;
        if let Some(descent) = descent(header) {
            line("", &descent)?;
        }
    }
    if let Some(state) = &judgement.state {
        line("events", &contents(state, judgement))?;
        line("request", &request(state))?;
        if let Some(tokens) = tokens(&judgement.usage) {
            line("tokens", &tokens)?;
        }
    }
    for closer in &judgement.closers {
        line("closer", &format!("{} at seq {}", closer.type_name, closer.seq))?;
    }
    for (kind, total) in judgement.warnings.totals() {
        let of_kind = judgement.warnings.listed().iter().filter(|warning| warning.kind == kind);
        let mut told = 0;
        for warning in of_kind.take(usize::try_from(WARNINGS_TOLD_MAX).unwrap_or(usize::MAX)) {
            line("warning", &warning_sentence(warning))?;
            told += 1;
        }
        if total > told {
            line("warning", &format!("{kind}: {} more", human::count(total - told)))?;
        }
    }
    Ok(())
}

/// Where a session comes from; nothing for one that stands by itself.
pub(crate) fn descent(header: &SessionHeader) -> Option<String> {
    let depth = header.delegation_depth.filter(|depth| *depth > 0);
    let parent = header.parent_session.as_ref().map(|parent| parent.to_lossy());
    let mut text = match (header.subagent, parent) {
        (true, Some(parent)) => format!("subagent of {parent}"),
        (true, None) => "subagent".to_owned(),
        (false, Some(parent)) => format!("child of {parent}"),
        (false, None) if depth.is_some() => "delegated".to_owned(),
        (false, None) => return None,
    };
    if header.subagent || depth.is_some() {
        text.push_str(&format!(", delegation depth {}", depth.unwrap_or(0)));
    }
    if let Some(length) = header.seed_length {
        text.push_str(&format!(", seeded with {}", human::counted(length, "event")));
    }
    Some(text)
}

/// Folds the tokens of a session's own requests. `each` is shown every event, or why it cannot be read: then it counts nowhere,
/// unless `each` fails.
pub(crate) fn usage_of(
    session: &Session,
    mut each: impl FnMut(sessionlog::Result<&Event<'_>>) -> anyhow::Result<()>,
) -> anyhow::Result<Usage> {
    let mut usage = Usage::new(session.header().seed_length);
    for event in session.events(Seq::new(0)..session.next_seq()?)? {
        match event {
            Ok(event) => {
                usage.take(&event);
                each(Ok(&event))?;
            }
            Err(error) => each(Err(error))?,
        }
    }
    Ok(usage)
}

/// The tokens that a session's own requests took; nothing where none were reported.
pub(crate) fn tokens(usage: &Usage) -> Option<String> {
    if usage.steps() == 0 {
        return None;
    }
    let total = usage.total();
    let parts = [
        (total.input, "in"),
        (total.output, "out"),
        (total.reasoning, "of it reasoning"),
        (total.cache_read, "read from cache"),
        (total.cache_write, "written to cache"),
    ];
    let mut text = human::counted(usage.steps(), "step");
    for (number, what) in parts.into_iter().filter(|(number, what)| *number > 0 || what.len() < 4) {
        text.push_str(&format!(", {} {what}", human::count(number)));
    }
    Some(text)
}

/// What is odd, where, and why.
pub(crate) fn warning_sentence(warning: &Warning) -> String {
    let mut text = warning.kind.to_string();
    place(&mut text, warning.line, None, None);
    if let Some(seq) = warning.seq {
        text.push_str(&format!(", seq {seq}"));
    }
    format!("{text}: {}", warning.message)
}

/// Where and why a log was refused.
pub(crate) fn refusal_sentence(refusal: &Refusal) -> String {
    let mut text = format!("{} ({})", refusal.kind, refusal.family());
    place(&mut text, refusal.line, refusal.offset, refusal.rowid);
    if let Some(seq) = refusal.seq {
        text.push_str(&format!(", seq {seq}"));
    }
    format!("{text}: {} [{}]", refusal.message, refusal.rule)
}

/// What a load changes, and what is lost.
pub(crate) fn repair_sentence(repair: &Repair) -> String {
    let mut text = repair.kind.to_string();
    place(&mut text, repair.line, repair.offset, repair.rowid);
    text.push_str(&format!(": {}", repair.message));
    if repair.bytes_cut > 0 {
        let what = match repair.kind {
            RepairKind::NulTail => "of zeros behind the last record".to_owned(),
            _ => format!("of {}", human::counted(repair.cut_total, "record")),
        };
        text.push_str(&format!(" (cut: {} {what})", human::bytes(repair.bytes_cut)));
    }
    text
}

/// What `repair` can do about a log that is refused, or loses records by loading; nothing where it cannot help.
pub(crate) fn repair_hint(path: &str, judgement: &Judgement) -> Option<String> {
    let refused = judgement.refusal.as_ref().is_some_and(|refusal| may_help(refusal.kind));
    // Zeros hold nothing that could be kept.
    let lost = |repair: &Repair| repair.bytes_cut > 0 && repair.kind != RepairKind::NulTail;
    let cut = judgement.repair.as_ref().is_some_and(lost);
    let path = human::shell_word(path);
    (path != "-" && (refused || cut)).then(|| format!("`sessionlog repair {path}` shows what can be kept"))
}

fn cut_sentence(cut: &CutRecord) -> String {
    let mut text = cut.type_name.clone().unwrap_or_else(|| "a record".to_owned());
    if let Some(seq) = cut.seq {
        text.push_str(&format!(" seq {seq}"));
    }
    match cut.rowid {
        None => place(&mut text, Some(cut.line), Some(cut.offset), None),
        rowid => place(&mut text, None, None, rowid),
    }
    text
}

fn place(text: &mut String, line: Option<u64>, offset: Option<u64>, rowid: Option<i64>) {
    if let Some(line) = line {
        text.push_str(&format!(", line {line}"));
    }
    if let Some(offset) = offset {
        text.push_str(&format!(", byte offset {offset}"));
    }
    if let Some(rowid) = rowid {
        text.push_str(&format!(", row {rowid}"));
    }
}

fn contents(state: &State, judgement: &Judgement) -> String {
    let count = |number: usize, noun| human::counted(u64::try_from(number).unwrap_or(u64::MAX), noun);
    format!(
        "{}; {} on the surface, {}, {}, {}",
        human::counted(state.next_seq().get(), "event"),
        count(state.surface().len(), "node"),
        count(state.message_count(), "message"),
        count(judgement.replacements.len(), "replacement"),
        count(judgement.headers.len(), "request header"),
    )
}

fn request(state: &State) -> String {
    let Some(header) = state.request_header().header() else { return "no header".to_owned() };
    let [config, system, tools] = header.value().get_all(["config", "system", "tools"]);
    let [provider, model] = config.map_or([None, None], |config| config.get_all(["provider", "model"]));
    let system = human::bytes(u64::try_from(text_of(system).len()).unwrap_or(u64::MAX));
    let tools = tools.map_or(0, |tools| tools.elements().count());
    format!("{}/{}, system prompt of {system}, {tools} tools", text_of(provider), text_of(model))
}

impl Json for SessionHeader {
    fn write(&self, out: &mut String) {
        let object = Object::new()
            .field("id", &self.id)
            .field("version", 0_u64)
            .field("createdAt", self.created_at)
            .optional("cwd", self.cwd.as_ref())
            .optional("parentSession", self.parent_session.as_ref())
            .optional("seedLength", self.seed_length)
            .optional("origin", self.subagent.then_some("subagent"))
            .field("delegationDepth", self.delegation_depth.unwrap_or(0))
            .optional("agentPreset", self.agent_preset.as_ref())
            .end();
        out.push_str(&object);
    }
}

impl Json for Replacement {
    fn write(&self, out: &mut String) {
        let object = Object::new()
            .field("seq", self.seq)
            .field("start", self.start)
            .field("end", self.end)
            .field("shadowedSeqs", self.shadowed.as_slice())
            .end();
        out.push_str(&object);
    }
}

impl Json for LoggedHeader {
    fn write(&self, out: &mut String) {
        out.push_str(&Object::new().field("seq", self.seq).field("reason", &self.reason).end());
    }
}

impl Json for Event<'_> {
    fn write(&self, out: &mut String) {
        self.write_json(out);
    }
}

impl Json for Warning {
    fn write(&self, out: &mut String) {
        let object = Object::new()
            .field("kind", self.kind.as_str())
            .field("line", self.line)
            .field("seq", self.seq)
            .field("message", &self.message)
            .end();
        out.push_str(&object);
    }
}

impl Json for Usage {
    fn write(&self, out: &mut String) {
        let total = self.total();
        let object = Object::new()
            .field("steps", self.steps())
            .field("inputTokens", total.input)
            .field("outputTokens", total.output)
            .field("cacheReadTokens", total.cache_read)
            .field("cacheWriteTokens", total.cache_write)
            .field("reasoningTokens", total.reasoning)
            .end();
        out.push_str(&object);
    }
}

impl Json for Repair {
    fn write(&self, out: &mut String) {
        let object = Object::new()
            .field("kind", self.kind.as_str())
            .field("line", self.line)
            .field("offset", self.offset)
            .optional("rowid", self.rowid)
            .field("frameOffset", self.frame_offset)
            .field("message", &self.message)
            .field("bytesCut", self.bytes_cut)
            .field("recordsCut", self.cut_total)
            .field("cut", self.cut.as_slice())
            .end();
        out.push_str(&object);
    }
}

impl Json for CutRecord {
    fn write(&self, out: &mut String) {
        let object = Object::new()
            .field("line", self.line)
            .field("offset", self.offset)
            .optional("rowid", self.rowid)
            .field("seq", self.seq)
            .field("type", &self.type_name)
            .end();
        out.push_str(&object);
    }
}

impl Json for Refusal {
    fn write(&self, out: &mut String) {
        let object = Object::new()
            .field("kind", self.kind.as_str())
            .field("family", self.family().as_str())
            .field("line", self.line)
            .field("offset", self.offset)
            .optional("rowid", self.rowid)
            .field("seq", self.seq)
            .field("rule", self.rule)
            .field("message", &self.message)
            .end();
        out.push_str(&object);
    }
}
