//! `show`: a session as a person reads it, or exactly the part of it that a script asks for.

use std::io::Write;

use sessionlog::event::json::Value;
use sessionlog::event::{Event, SurfaceOp};
use sessionlog::import::{JudgeOptions, judge_session};
use sessionlog::projection::derived_message;
use sessionlog::{HeaderSnapshot, Seq, Session};

use crate::cli::{self, Context};
use crate::commands::request;
use crate::conversation::{Writer, text_of};
use crate::exit::{Exit, Usage};
use crate::judging;
use crate::output::json::{Object, Raw};
use crate::output::{Output, human};

/// So much of a tool's result is shown; `--events` has all of it.
const RESULT_LINES_MAX: usize = 20;

/// Show the conversation, the surface, the system prompts or raw events
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The session
    id: String,
    /// The system prompt of every series of requests, in full
    #[arg(long, conflicts_with_all = ["surface", "events"])]
    prompts: bool,
    /// The messages that the model sees
    #[arg(long, conflicts_with = "events")]
    surface: bool,
    /// The surface as it was right after this event
    #[arg(long, value_name = "SEQ", requires = "surface", value_parser = cli::seq)]
    at: Option<Seq>,
    /// The events from seq A up to, not including, seq B
    #[arg(long, value_name = "A..B", value_parser = seq_range)]
    events: Option<std::ops::Range<Seq>>,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let store = context.reader()?;
    let session = store.session(&args.id)?;
    let out = &mut context.out;
    if let Some(range) = &args.events {
        events(out, &session, range.clone())?;
    } else if args.surface {
        surface(out, &session, args.at)?;
    } else if args.prompts {
        prompts(out, &session)?;
    } else if out.json() {
        let options = JudgeOptions { vocabulary: store.vocabulary(), ..JudgeOptions::default() };
        let judgement = judge_session(&session, &options)?;
        out.line(judging::document(None, None, &judgement))?;
        return Ok(Exit::findings(judgement.refusal.is_some()));
    } else {
        conversation(out, &session)?;
    }
    Ok(Exit::Clean)
}

/// The events as JSON lines, with or without `--json`: their data is copied as it is stored.
fn events(out: &mut Output, session: &Session, range: std::ops::Range<Seq>) -> anyhow::Result<()> {
    let mut line = String::new();
    for event in session.events(range)? {
        line.clear();
        event?.write_json(&mut line);
        out.line(&line)?;
    }
    Ok(())
}

fn surface(out: &mut Output, session: &Session, at: Option<Seq>) -> anyhow::Result<()> {
    let request = request::rebuilt(session, at)?;
    if out.json() {
        request.messages.iter().try_for_each(|message| out.line(message))?;
        return Ok(());
    }
    let style = out.style();
    let mut writer = Writer::new(out, style, RESULT_LINES_MAX);
    for (i, message) in request.messages.iter().enumerate() {
        writer.message(Value::new(message), &format!("message {}", i + 1))?;
    }
    Ok(())
}

fn prompts(out: &mut Output, session: &Session) -> anyhow::Result<()> {
    // Only a change can go on with the messages that the model has seen; every other reason begins a series.
    let begins = |header: &&HeaderSnapshot| header.starts_series || header.reason != "change";
    for header in session.headers()?.iter().filter(begins) {
        let event = session.event(header.seq)?;
        let full = event.value().get("header");
        if out.json() {
            let document = Object::new()
                .field("seq", header.seq)
                .field("reason", &header.reason)
                .field("header", full.map(|header| Raw(header.raw())))
                .end();
            out.line(document)?;
            continue;
        }
        let title = format!("── seq {}, {}", header.seq, human::one_line(&header.reason));
        out.line(out.style().bold(&title))?;
        let system = text_of(full.and_then(|header| header.get("system")));
        out.line(human::printable(&system))?;
    }
    Ok(())
}

fn conversation(out: &mut Output, session: &Session) -> anyhow::Result<()> {
    let header = session.header();
    let cwd = header.cwd.as_ref().map_or("no working directory".into(), |cwd| cwd.to_lossy());
    out.line(out.style().bold(&human::one_line(session.id())))?;
    out.line(format_args!("{}, begun {}", human::one_line(&cwd), human::time(header.created_at)))?;
    if let Some(descent) = judging::descent(header) {
        out.line(human::one_line(&descent))?;
    }
    out.line("")?;
    let usage = judging::usage_of(session, |event| told(out, event?))?;
    if let Some(tokens) = judging::tokens(&usage) {
        out.line(out.style().dim(&format!("── tokens: {tokens}")))?;
    }
    Ok(())
}

/// What a reader of the conversation needs to know of one event; of most, nothing.
fn told(out: &mut Output, event: &Event<'_>) -> anyhow::Result<()> {
    let style = out.style();
    let data = event.value();
    if let Some(message) = derived_message(&event.type_name, data) {
        let place = match event.surface_op {
            Some(SurfaceOp::Replace { start, end }) => {
                format!("seq {}, replaces {start} to {end}", event.seq)
            }
            _ => format!("seq {}", event.seq),
        };
        Writer::new(out, style, RESULT_LINES_MAX).message(message, &place)?;
        return Ok(());
    }
    let told = match &*event.type_name {
        "turn/start" => {
            let turn = data.get("turn").map_or("", |turn| turn.raw());
            format!("── turn {turn}, {}", human::time(event.time))
        }
        "turn/end" => match data.get("reason").map(|reason| text_of(reason.get("kind"))).as_deref() {
            None | Some("completed") => return Ok(()),
            Some(kind) => format!("── the turn ended: {}", human::one_line(kind)),
        },
        "request/header" => {
            let config = data.get("header").and_then(|header| header.get("config"));
            let [provider, model] =
                config.map_or([None, None], |config| config.get_all(["provider", "model"]));
            let model = format!("{}/{}", text_of(provider), text_of(model));
            let reason = text_of(data.get("reason"));
            format!("── request header ({}): {}", human::one_line(&reason), human::one_line(&model))
        }
        "session/end-seed" => "── what is above was there when the session was opened".to_owned(),
        _ => return Ok(()),
    };
    writeln!(out, "{}\n", style.dim(&told))?;
    Ok(())
}

fn seq_range(text: &str) -> Result<std::ops::Range<Seq>, Usage> {
    let range = text.split_once("..").and_then(|(from, to)| Some(cli::seq(from).ok()?..cli::seq(to).ok()?));
    let range = range.ok_or_else(|| Usage("a range is A..B, two seqs, B not included".into()))?;
    if range.start > range.end {
        return Err(Usage(format!("the range ends at {} before it begins at {}", range.end, range.start)));
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_two_seqs_in_order() {
        assert_eq!(seq_range("3..9").unwrap(), Seq::new(3)..Seq::new(9));
        assert_eq!(seq_range("3..3").unwrap(), Seq::new(3)..Seq::new(3));
        for text in ["", "3", "..", "3..", "..9", "9..3", "-1..2", "1...2"] {
            assert!(seq_range(text).is_err(), "{text}");
        }
    }
}
