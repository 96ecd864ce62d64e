//! `demo`: the main job in one go on bundled logs, each step with its own check.
//!
//! What a step claims it has looked at: a check that fails ends the demo with an error.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use sessionlog::event::json::Value;
use sessionlog::event::{SessionHeader, SessionState};
use sessionlog::import::{Importer, JudgeOptions, Lines, judge, judge_session};
use sessionlog::{AppendOptions, Draft, Request, Seq, Store, VerifyOptions};

use crate::cli::Context;
use crate::conversation::text_of;
use crate::exit::{Exit, Usage};
use crate::judging::{refusal_sentence, repair_sentence};
use crate::output::table::{Align, Table};
use crate::output::{Output, human};
use crate::samples::{self, CUT_SESSION, REPLACED_SESSION, SAMPLES};

const LIVE_SESSIONS: u64 = 64;
const TURNS_PER_SESSION: u64 = 12;
const REASON_COLUMNS: usize = 68;

/// Show the main job in one go: import, live appends, resume, a request rebuilt, sizes, verify
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Keep the store in this directory, which must not exist
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let out = &mut context.out;
    if out.json() {
        return Err(Usage("demo prints a report for people, it has no --json".into()).into());
    }
    let scratch = tempfile::tempdir().context("make a temporary directory")?;
    let logs = scratch.path().join("logs");
    fs::create_dir(&logs).context("make a directory for the samples")?;
    samples::write_all(&logs).context("write the samples")?;
    let store_dir = args.keep.clone().unwrap_or_else(|| scratch.path().join("store"));
    ensure!(!store_dir.exists(), "{} exists: --keep takes a new directory", store_dir.display());

    let store = Store::open(&store_dir)?;
    import(out, &store, &logs)?;
    append(out, &store)?;
    resume(out, &store)?;
    rebuild(out, &store)?;
    store.close()?;
    sizes(out, &store_dir)?;
    verify(out, &store_dir)?;
    if args.keep.is_some() {
        out.line(format_args!("\nThe store is in {0}: sessionlog --store {0} ls", store_dir.display()))?;
    }
    Ok(Exit::Clean)
}

fn step(out: &mut Output, number: u32, title: &str) -> anyhow::Result<()> {
    let gap = if number > 1 { "\n" } else { "" };
    let title = out.style().bold(&format!("{number}. {title}"));
    out.line_now(format_args!("{gap}{title}"))?;
    Ok(())
}

fn import(out: &mut Output, store: &Store, logs: &Path) -> anyhow::Result<()> {
    step(out, 1, "Import: each log is judged event by event, a bad one is refused loudly")?;
    let importer = Importer::new(JudgeOptions::default());
    let plan = importer.plan(&[logs.to_owned()]);
    ensure!(plan.sources.len() == SAMPLES.len(), "found {} of {} samples", plan.sources.len(), SAMPLES.len());
    let mut table = Table::new([("", Align::Left), ("", Align::Left), ("", Align::Right), ("", Align::Left)]);
    for (planned, sample) in plan.sources.iter().zip(&SAMPLES) {
        let report = importer.import(store, planned, &|_| ())?;
        let judgement = &report.judgement;
        let verdict = judgement.verdict();
        ensure!(verdict == sample.verdict, "{} was judged {}", sample.name, verdict.as_str());
        let why = match (&judgement.refusal, &judgement.repair) {
            (Some(refusal), _) => refusal_sentence(refusal),
            (None, Some(repair)) => repair_sentence(repair),
            (None, None) => String::new(),
        };
        table.row([
            format!("   {}", verdict.as_str()),
            sample.name.to_owned(),
            human::counted(report.added, "event"),
            human::cut(&human::one_line(&why), REASON_COLUMNS).into_owned(),
        ]);
    }
    store.flush()?;
    table.print(out)?;
    Ok(())
}

fn append(out: &mut Output, store: &Store) -> anyhow::Result<()> {
    step(out, 2, "Live appends: a thread per session, every event durable before the next is written")?;
    let before = store.metrics()?;
    let started = Instant::now();
    let appended: anyhow::Result<Vec<u64>> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..LIVE_SESSIONS).map(|n| scope.spawn(move || live_session(store, n))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a thread died")))
            .collect()
    });
    let taken = started.elapsed();
    let events: u64 = appended?.iter().sum();
    let after = store.metrics()?;
    let syncs = after.syncs - before.syncs;
    ensure!(syncs > 0 && syncs <= events, "{events} durable events with {syncs} syncs");
    for n in 0..LIVE_SESSIONS {
        let session = store.session(&live_id(n))?;
        let (durable, next) = (session.durable_seq(), session.next_seq()?);
        ensure!(durable == next, "session {n} is durable up to seq {durable}, not {next}");
    }
    let mut table = Table::new([("", Align::Left), ("", Align::Left)]);
    let rate = human::count(human::rate(events, taken));
    let sync_time = Duration::from_nanos((after.sync_nanos_total - before.sync_nanos_total) / syncs);
    let rows = [
        ("sessions", human::count(LIVE_SESSIONS)),
        (
            "events",
            format!(
                "{} in {}: {rate} durable events per second",
                human::count(events),
                human::duration(taken)
            ),
        ),
        ("fsyncs", format!("{}, {} each", human::count(syncs), human::duration(sync_time))),
        ("group commit", format!("one fsync for {} events on average", human::ratio(events, syncs))),
    ];
    rows.into_iter().for_each(|(name, value)| table.row([format!("   {name}"), value]));
    table.print(out)?;
    Ok(())
}

fn live_id(n: u64) -> String {
    format!("live-{n:02}")
}

/// Appends whole turns, one event at a time, and waits for each; gives the number of events.
fn live_session(store: &Store, n: u64) -> anyhow::Result<u64> {
    let created_at = 1_796_000_000_000 + i64::try_from(n)?;
    let session = store.create_session(SessionHeader::new(live_id(n), created_at))?;
    let mut events = 0;
    for turn in 1..=TURNS_PER_SESSION {
        let step = format!(r#"{{"turn":{turn},"step":1}}"#);
        let user = format!(
            r#"{{"id":"u{n}-{turn}","role":"user","content":[{{"type":"text","text":"How far is job {turn}?"}}],"source":{{"kind":"user"}}}}"#
        );
        let answer = format!(
            r#"{{"turn":{turn},"step":1,"message":{{"id":"a{n}-{turn}","role":"assistant","content":[{{"type":"text","text":"Job {turn} is done."}}],"source":{{"kind":"model","provider":"demo","model":"none"}}}}}}"#
        );
        let drafts = [
            Draft::new("turn/start", format!(r#"{{"turn":{turn}}}"#)),
            Draft::new("step/start", step.clone()),
            Draft::new("user/message", user).on_surface(),
            Draft::new("assistant/message", answer).on_surface(),
            Draft::new("step/end", step),
            Draft::new("turn/end", format!(r#"{{"turn":{turn},"reason":{{"kind":"completed"}}}}"#)),
        ];
        for draft in drafts {
            session.append(&[draft], AppendOptions::default())?.wait()?;
            events += 1;
        }
    }
    Ok(events)
}

fn resume(out: &mut Output, store: &Store) -> anyhow::Result<()> {
    step(
        out,
        3,
        &format!("Resume: {CUT_SESSION} was cut in the middle of a turn, so the turn is closed first"),
    )?;
    let cut_at = store.session(CUT_SESSION)?.next_seq()?;
    let session = store.resume(CUT_SESSION)?;
    let end = session.next_seq()?;
    let mut table = Table::new([("", Align::Left), ("", Align::Left), ("", Align::Left)]);
    for event in session.events(cut_at..end)? {
        let event = event?;
        let data = event.value();
        let reason = data.get("reason").and_then(|reason| reason.get("kind"));
        let code = data.get("error").and_then(|error| error.get("code"));
        table.row([format!("   seq {}", event.seq), event.type_name.to_string(), text_of(reason.or(code))]);
    }
    table.print(out)?;
    let judgement = judge_session(&session, &JudgeOptions::default())?;
    ensure!(end > cut_at && judgement.repair.is_none(), "the session is still open after its resume");
    let mut state = judgement.state.context("the resumed session does not load")?;
    ensure!(state.cuts()?.last() == Some(&true), "a tool call is left without a result");
    out.line("   every tool call has a result, the session can go on")?;
    Ok(())
}

fn rebuild(out: &mut Output, store: &Store) -> anyhow::Result<()> {
    step(out, 4, &format!("Any request, any time: {REPLACED_SESSION} was compacted since"))?;
    let session = store.session(REPLACED_SESSION)?;
    let mut events = session.events(Seq::new(0)..session.next_seq()?)?;
    let first_turn_end =
        events.find(|event| event.as_ref().map_or(true, |event| event.type_name == "turn/end"));
    let then = first_turn_end.context("the session has no turn")??.seq;
    let (now, past) = (session.request()?, session.request_at(then)?);
    check_against_log(&past, then)?;

    let mut table = Table::new([("", Align::Left), ("", Align::Left)]);
    for (name, request) in [(format!("at seq {then}"), &past), ("now".to_owned(), &now)] {
        let header = request.header.as_ref().context("a request without a header")?;
        let tools = header.value().get("tools").map_or(0, |tools| tools.elements().count());
        let messages = human::counted(u64::try_from(request.messages.len())?, "message");
        let reason = request.reason.as_deref().unwrap_or("unknown");
        let seq = request.header_seq.context("a header without a seq")?;
        let contents = format!("{messages}, {tools} tools, header of seq {seq} ({reason})");
        let first = request.messages.first().map(|message| first_text(Value::new(message)));
        table.row([format!("   {name}"), contents]);
        table.row([String::new(), human::cut(&first.unwrap_or_default(), REASON_COLUMNS).into_owned()]);
    }
    for replacement in judge_session(&session, &JudgeOptions::default())?.replacements {
        let shadowed = human::counted(u64::try_from(replacement.shadowed.len())?, "message");
        let (seq, start, end) = (replacement.seq, replacement.start, replacement.end);
        let what = format!("seq {seq} stands for {shadowed}, seq {start} to {end}");
        table.row(["   replaced".into(), what]);
    }
    table.print(out)?;
    Ok(())
}

/// Holds a rebuilt request against the log alone: the sample up to that event, judged without a store.
fn check_against_log(request: &Request, then: Seq) -> anyhow::Result<()> {
    let sample =
        SAMPLES.iter().find(|sample| sample.text.contains(REPLACED_SESSION)).context("no such sample")?;
    // The header's line, and events from seq 0 on.
    let lines = usize::try_from(then.get())? + 2;
    let prefix: String = sample.text.split_inclusive('\n').take(lines).collect();
    let judgement = judge(&mut Lines::new(prefix.as_bytes()), &JudgeOptions::default(), &mut |_| Ok(()))?;
    let state = judgement.state.context("the start of the sample does not load")?;
    let surface = state.surface().iter().map(|&node| Seq::new(u64::from(node)));
    ensure!(request.surface.iter().copied().eq(surface), "the rebuilt surface differs from the log's");
    let header = state.request_header().header();
    ensure!(
        header.is_some() && request.header.as_ref() == header,
        "the rebuilt header differs from the log's"
    );
    Ok(())
}

fn first_text(message: Value<'_>) -> String {
    let block = message.get("content").and_then(|content| content.elements().next());
    human::one_line(&text_of(block.and_then(|block| block.get("text"))))
}

fn sizes(out: &mut Output, store_dir: &Path) -> anyhow::Result<()> {
    step(out, 5, "Sizes: a compacted store keeps what sessions share once, and headers as differences")?;
    let written = bytes_in(store_dir)?;
    let store = Store::open(store_dir)?;
    store.compact()?;
    store.close()?;
    let store = Store::open_read_only(store_dir)?;
    let sessions = store.list()?;
    let logical: u64 = sessions.iter().map(|session| session.bytes).sum();
    let stored = bytes_in(store_dir)?;
    let mut headers = (0, 0, 0);
    for session in &sessions {
        for header in store.session(&session.header.id)?.headers()? {
            headers = (
                headers.0 + 1,
                headers.1 + header.bytes,
                headers.2 + header.stored_bytes.unwrap_or(header.bytes),
            );
        }
    }
    ensure!(logical > 0 && stored > 0, "the store is empty");
    let mut table = Table::new([("", Align::Left), ("", Align::Left)]);
    let share = human::share(stored, logical);
    let rows = [
        ("as JSON lines", human::bytes(logical)),
        ("as written", human::bytes(written)),
        ("compacted", format!("{}, {share} of the JSON lines", human::bytes(stored))),
        (
            "request headers",
            format!("{} of {}, stored in {}", headers.0, human::bytes(headers.1), human::bytes(headers.2)),
        ),
    ];
    rows.into_iter().for_each(|(name, value)| table.row([format!("   {name}"), value]));
    table.print(out)?;
    Ok(())
}

fn bytes_in(dir: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).context("read the store's directory")? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

fn verify(out: &mut Output, store_dir: &Path) -> anyhow::Result<()> {
    step(out, 6, "Verify: every checksum, every event through the gate again, the log invariants")?;
    let store = Store::open_read_only(store_dir)?;
    let started = Instant::now();
    let report = store.verify(VerifyOptions { deep: true, strict: true }, &mut |_, _| ())?;
    if let Some(finding) = report.findings.first() {
        anyhow::bail!("verify has {} findings, the first: {}", report.findings.len(), finding.message);
    }
    let sound = out.style().good("sound");
    let (sessions, events) =
        (human::counted(report.sessions, "session"), human::counted(report.events, "event"));
    let taken = human::duration(started.elapsed());
    writeln!(out, "   {sound}: {sessions}, {events}, {} in {taken}", human::counted(report.frames, "frame"))?;
    Ok(())
}
