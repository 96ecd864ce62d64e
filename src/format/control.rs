//! Payloads of the frames that are not events: `create` and `vocabulary`.

use super::file_header::NUMBER_END;
use super::varint;
use crate::ids::{Seq, SessionKey};
use crate::{Error, ErrorKind, Result, limits};

/// What a `create` frame says of its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatePayload<'a> {
    /// Whose events the session begins with, if it is a fork.
    pub shared: Option<SharedPrefix<'a>>,
    /// The session's header line, without its line feed.
    pub header: &'a str,
}

/// The events that a fork shares with another session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedPrefix<'a> {
    /// The session that owns them.
    pub owner: SessionKey,
    /// How many: seqs below this one are the owner's.
    pub end: Seq,
    /// Their size as unpacked JSON lines, in bytes.
    pub logical_bytes: u64,
    /// Chained checksum over them.
    pub chain: u32,
    /// Time of the last of them, in milliseconds since the Unix epoch.
    pub last_time: i64,
    /// The title in force at their end.
    pub title: Option<&'a str>,
}

impl<'a> CreatePayload<'a> {
    /// Appends the payload.
    // Format: section 8.1.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match &self.shared {
            None => varint::put(out, 0),
            Some(shared) => {
                varint::put(out, shared.owner.get());
                varint::put(out, shared.end.get());
                varint::put(out, shared.logical_bytes);
                varint::put(out, u64::from(shared.chain));
                varint::put_signed(out, shared.last_time);
                put_title(out, shared.title);
            }
        }
        out.extend_from_slice(self.header.as_bytes());
    }

    /// Reads a payload.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] if `payload` is not what [`encode`](Self::encode) writes.
    pub fn decode(payload: &'a [u8]) -> Result<Self> {
        let mut rest = payload;
        Self::take(&mut rest)
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "read create frame: malformed payload"))
    }

    fn take(rest: &mut &'a [u8]) -> Option<Self> {
        let owner = take_number(rest)?;
        let shared = if owner == 0 {
            None
        } else {
            let end = varint::take(rest).filter(|&n| n <= limits::EVENTS_PER_SESSION_MAX)?;
            Some(SharedPrefix {
                owner: SessionKey::new(owner),
                end: Seq::new(end),
                logical_bytes: take_number(rest)?,
                chain: u32::try_from(varint::take(rest)?).ok()?,
                last_time: varint::take_signed(rest)?,
                title: take_title(rest)?,
            })
        };
        let header = std::str::from_utf8(rest).ok()?;
        Some(Self { shared, header })
    }
}

/// What a sealed file keeps of a session's events up to its last one there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SummaryPayload<'a> {
    /// Time of the last event, in milliseconds since the Unix epoch.
    pub last_time: Option<i64>,
    /// A turn is open.
    pub open_turn: bool,
    /// Size of the events as unpacked JSON lines, in bytes.
    pub logical_bytes: u64,
    /// Chained checksum over them.
    pub chain: u32,
    /// The title in force.
    pub title: Option<&'a str>,
}

impl<'a> SummaryPayload<'a> {
    /// Appends the payload.
    // Format: section 8.4.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.open_turn) | u8::from(self.last_time.is_some()) << 1);
        if let Some(time) = self.last_time {
            varint::put_signed(out, time);
        }
        varint::put(out, self.logical_bytes);
        varint::put(out, u64::from(self.chain));
        put_title(out, self.title);
    }

    /// Reads a payload.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] if `payload` is not what [`encode`](Self::encode) writes.
    pub fn decode(payload: &'a [u8]) -> Result<Self> {
        let mut rest = payload;
        let read = Self::take(&mut rest).filter(|_| rest.is_empty());
        read.ok_or_else(|| Error::new(ErrorKind::Corrupt, "read session summary: malformed payload"))
    }

    fn take(rest: &mut &'a [u8]) -> Option<Self> {
        let (&flags, after) = rest.split_first()?;
        *rest = after;
        let last_time = if flags & 2 == 0 { None } else { Some(varint::take_signed(rest)?) };
        Some(Self {
            last_time,
            open_turn: flags & 1 == 1,
            logical_bytes: take_number(rest)?,
            chain: u32::try_from(varint::take(rest)?).ok()?,
            title: take_title(rest)?,
        })
        .filter(|_| flags < 4)
    }
}

/// Appends the payload of a `vocabulary` frame: the names it registers.
// Format: section 8.2.
pub fn encode_vocabulary<'n>(out: &mut Vec<u8>, names: impl IntoIterator<Item = &'n str>) {
    for name in names {
        varint::put(out, name.len() as u64);
        out.extend_from_slice(name.as_bytes());
    }
}

/// Reads the names of a `vocabulary` frame, at most [`VOCABULARY_NAMES_MAX`](limits::VOCABULARY_NAMES_MAX).
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] if the payload is malformed: no name is empty or longer than
/// [`TYPE_NAME_BYTES_MAX`](limits::TYPE_NAME_BYTES_MAX).
pub fn decode_vocabulary(mut payload: &[u8]) -> Result<Vec<&str>> {
    let mut names = Vec::new();
    while !payload.is_empty() {
        let name = if names.len() < limits::VOCABULARY_NAMES_MAX { take_name(&mut payload) } else { None };
        names.push(
            name.ok_or_else(|| Error::new(ErrorKind::Corrupt, "read vocabulary frame: malformed payload"))?,
        );
    }
    Ok(names)
}

fn take_name<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let length =
        varint::take(rest).filter(|length| (1..=limits::TYPE_NAME_BYTES_MAX as u64).contains(length))?;
    take_text(rest, length)
}

/// An id or a size: small enough to be added to.
fn take_number(rest: &mut &[u8]) -> Option<u64> {
    varint::take(rest).filter(|&number| number < NUMBER_END)
}

fn put_title(out: &mut Vec<u8>, title: Option<&str>) {
    match title {
        None => varint::put(out, 0),
        Some(title) => {
            varint::put(out, title.len() as u64 + 1);
            out.extend_from_slice(title.as_bytes());
        }
    }
}

fn take_title<'a>(rest: &mut &'a [u8]) -> Option<Option<&'a str>> {
    match varint::take(rest)? {
        0 => Some(None),
        length => take_text(rest, length - 1).map(Some),
    }
}

fn take_text<'a>(rest: &mut &'a [u8], length: u64) -> Option<&'a str> {
    let length = usize::try_from(length).ok()?;
    let (text, after) = rest.split_at_checked(length)?;
    *rest = after;
    std::str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_payloads_round_trip_and_are_pinned() {
        let plain = CreatePayload { shared: None, header: "{}" };
        let mut out = Vec::new();
        plain.encode(&mut out);
        assert_eq!(out, b"\0{}");
        assert_eq!(CreatePayload::decode(&out).unwrap(), plain);
        for title in [None, Some(""), Some("t")] {
            let shared = SharedPrefix {
                owner: SessionKey::new(300),
                end: Seq::new(7),
                logical_bytes: 9,
                chain: u32::MAX,
                last_time: -3,
                title,
            };
            let fork = CreatePayload { shared: Some(shared), header: "h" };
            let mut out = Vec::new();
            fork.encode(&mut out);
            assert_eq!(CreatePayload::decode(&out).unwrap(), fork);
            assert!(
                (1..out.len() - 1)
                    .all(|n| CreatePayload::decode(&out[..n]).is_err_and(|e| e.kind() == ErrorKind::Corrupt)
                        || CreatePayload::decode(&out[..n]).is_ok_and(|c| c != fork))
            );
        }
    }

    #[test]
    fn keys_and_sizes_that_could_not_be_added_to_are_refused() {
        for (owner, logical_bytes, good) in
            [(NUMBER_END, 0, false), (1, u64::MAX, false), (NUMBER_END - 1, NUMBER_END - 1, true)]
        {
            let owner = SessionKey::new(owner);
            let shared =
                SharedPrefix { owner, end: Seq::new(7), logical_bytes, chain: 0, last_time: 0, title: None };
            let mut out = Vec::new();
            CreatePayload { shared: Some(shared), header: "h" }.encode(&mut out);
            assert_eq!(CreatePayload::decode(&out).is_ok(), good);
        }
    }

    #[test]
    fn summaries_round_trip_and_refuse_what_is_cut() {
        for (title, last_time) in [(None, None), (Some("t"), Some(-5)), (Some(""), Some(1 << 40))] {
            let summary =
                SummaryPayload { last_time, open_turn: title.is_some(), logical_bytes: 300, chain: 7, title };
            let mut out = Vec::new();
            summary.encode(&mut out);
            assert_eq!(SummaryPayload::decode(&out).unwrap(), summary);
            assert!((0..out.len()).all(|n| SummaryPayload::decode(&out[..n]).is_err()));
            out.push(0);
            assert!(SummaryPayload::decode(&out).is_err());
        }
    }

    #[test]
    fn vocabularies_round_trip_and_refuse_what_is_cut() {
        let mut out = Vec::new();
        encode_vocabulary(&mut out, ["acme/a", "b"]);
        assert_eq!(decode_vocabulary(&out).unwrap(), ["acme/a", "b"]);
        assert!(decode_vocabulary(&out[..3]).is_err());
        assert!(decode_vocabulary(&[200, 200]).is_err());
        assert!(decode_vocabulary(&[1, 0xff]).is_err());
    }

    #[test]
    fn a_vocabulary_of_nothing_or_of_too_much_is_refused_before_it_is_gathered() {
        assert!(decode_vocabulary(&[0; 1 << 20]).is_err(), "empty names");
        let longest = "x".repeat(limits::TYPE_NAME_BYTES_MAX);
        for (name, good) in [(longest.clone(), true), (longest + "x", false)] {
            let mut out = Vec::new();
            encode_vocabulary(&mut out, [&*name]);
            assert_eq!(decode_vocabulary(&out).is_ok(), good);
        }
        for (names, good) in [(limits::VOCABULARY_NAMES_MAX, true), (limits::VOCABULARY_NAMES_MAX + 1, false)]
        {
            let mut out = Vec::new();
            encode_vocabulary(&mut out, std::iter::repeat_n("x", names));
            assert_eq!(decode_vocabulary(&out).is_ok(), good);
        }
    }
}
