//! `request`: the exact request that a model was sent, now or as of an earlier seq.

use anyhow::ensure;
use sessionlog::event::json::Value;
use sessionlog::{Request, Seq, Session};

use crate::cli::{self, Context};
use crate::conversation::{Writer, text_of};
use crate::exit::Exit;
use crate::output::human;
use crate::output::json::{Object, Raw, array};

const RESULT_LINES_MAX: usize = 20;

/// Rebuild the exact request: header and messages, now or as of a seq
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The session
    id: String,
    /// As it was right after this event
    #[arg(long, value_name = "SEQ", value_parser = cli::seq)]
    at: Option<Seq>,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let store = context.reader()?;
    let session = store.session(&args.id)?;
    let request = rebuilt(&session, args.at)?;
    if context.out.json() {
        context.out.line(document(&request))?;
    } else {
        print(context, &request)?;
    }
    Ok(Exit::Clean)
}

/// The request as it was right after the event `at`, which must be there.
pub(crate) fn rebuilt(session: &Session, at: Option<Seq>) -> anyhow::Result<Request> {
    let Some(at) = at else { return Ok(session.request()?) };
    let next = session.next_seq()?;
    ensure!(at < next, "session {} has no event of seq {at}: the next one is {next}", session.id());
    Ok(session.request_at(at)?)
}

fn document(request: &Request) -> String {
    let messages = array(request.messages.iter().map(|message| Raw(message)));
    Object::new()
        .field("headerSeq", request.header_seq)
        .field("reason", &request.reason)
        .field("header", request.header.as_ref().map(|header| Raw(header.text())))
        .field("messages", Raw(&messages))
        .field("surface", request.surface.as_slice())
        .end()
}

fn print(context: &mut Context, request: &Request) -> anyhow::Result<()> {
    let style = context.out.style();
    match (&request.header, request.header_seq) {
        (Some(header), Some(seq)) => {
            let [config, system, tools] = header.value().get_all(["config", "system", "tools"]);
            let reason = human::one_line(request.reason.as_deref().unwrap_or("unknown"));
            context.out.line(style.bold(&format!("request header of seq {seq}, reason {reason}")))?;
            let config = config.map_or("", |config| config.raw());
            context.out.line(format_args!("  config  {}", human::one_line(config)))?;
            let names: Vec<String> = tools
                .into_iter()
                .flat_map(|tools| tools.elements())
                .map(|tool| human::one_line(&text_of(tool.get("name"))))
                .collect();
            context.out.line(format_args!("  tools   {}", names.join(", ")))?;
            context.out.line("  system")?;
            for line in human::printable(&text_of(system)).lines() {
                context.out.line(format_args!("    {line}"))?;
            }
        }
        _ => context.out.line("no request header yet")?,
    }
    context.out.line("")?;
    let mut writer = Writer::new(&mut context.out, style, RESULT_LINES_MAX);
    for (i, message) in request.messages.iter().enumerate() {
        writer.message(Value::new(message), &format!("message {}", i + 1))?;
    }
    Ok(())
}
