//! `rm`: removes sessions for good, one by its id or all that are older than some time, once `--apply` confirms the plan.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use clap::ArgGroup;
use sessionlog::{ErrorKind, SessionInfo};

use crate::cli::Context;
use crate::exit::Exit;
use crate::output::human;
use crate::output::json::Object;

/// Remove sessions for good (prints the plan; --apply carries it out)
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("chosen").required(true).args(["id", "older_than"]))]
pub(crate) struct Args {
    /// The session
    id: Option<String>,
    /// Every session whose last event is older: a number of weeks, days, hours, minutes or seconds, as in 90d or 36h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    older_than: Option<Duration>,
    /// Carry the plan out
    #[arg(long)]
    apply: bool,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let sessions = args.chosen(context)?;
    if args.apply {
        let store = context.writer(false)?;
        for session in &sessions {
            store.remove(&session.header.id)?;
            tell(context, session, true)?;
        }
        store.close()?;
    } else {
        sessions.iter().try_for_each(|session| tell(context, session, false))?;
        if !context.out.json() && !sessions.is_empty() {
            context.out.line("nothing is changed without --apply")?;
        }
    }
    if !context.out.json() && sessions.is_empty() {
        context.out.line("no session is that old")?;
    }
    Ok(Exit::Clean)
}

impl Args {
    fn chosen(&self, context: &Context) -> anyhow::Result<Vec<SessionInfo>> {
        let store = context.reader()?;
        let mut sessions = store.list()?;
        if let Some(id) = &self.id {
            match store.session(id) {
                // What is damaged can be removed.
                Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error.into()),
                _ => {}
            }
            sessions.retain(|session| session.header.id == *id);
            anyhow::ensure!(!sessions.is_empty(), "remove session {id}: it is not listed");
        }
        if let Some(age) = self.older_than {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock stands before 1970")?;
            let before = i64::try_from(now.as_millis())?.saturating_sub(i64::try_from(age.as_millis())?);
            // A session without events is as old as its header.
            sessions.retain(|session| session.last_time.unwrap_or(session.header.created_at) < before);
        }
        Ok(sessions)
    }
}

fn tell(context: &mut Context, session: &SessionInfo, applied: bool) -> anyhow::Result<()> {
    let id = &session.header.id;
    if context.out.json() {
        let document = Object::new()
            .field("id", id)
            .field("events", session.events)
            .field("bytes", session.bytes)
            .field("applied", applied)
            .end();
        return Ok(context.out.line(document)?);
    }
    let (events, bytes) = (human::counted(session.events, "event"), human::bytes(session.bytes));
    let id = human::one_line(id);
    Ok(context.out.line(match applied {
        true => format!("removed {id}: {events}, {bytes}"),
        false => format!("would remove {id}: {events}, {bytes}"),
    })?)
}

/// Reads `90d` and the like.
fn duration(text: &str) -> Result<Duration, String> {
    let seconds_of = [('w', 604_800), ('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];
    let parsed = seconds_of.into_iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(seconds)
    });
    let longest = u64::MAX / 1_000_000;
    parsed
        .filter(|seconds| *seconds <= longest)
        .map(Duration::from_secs)
        .ok_or_else(|| "a duration is a number and one of w, d, h, m, s, as in 90d".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_one_unit() {
        let seconds = |text: &str| duration(text).ok().map(|span| span.as_secs());
        assert_eq!(
            ["2w", "90d", "36h", "5m", "0s"].map(seconds),
            [1_209_600, 7_776_000, 129_600, 300, 0].map(Some)
        );
        for bad in
            ["", "d", "1", "1.5d", "-1d", "1y", "1d2h", "99999999999999999999d", "18446744073709551615s"]
        {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
