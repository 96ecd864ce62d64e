//! Payloads of the frames that are not events: `create` and `vocabulary`.

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
                match shared.title {
                    None => varint::put(out, 0),
                    Some(title) => {
                        varint::put(out, title.len() as u64 + 1);
                        out.extend_from_slice(title.as_bytes());
                    }
                }
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
        let owner = varint::take(rest)?;
        let shared = if owner == 0 {
            None
        } else {
            let end = varint::take(rest).filter(|&n| n <= limits::EVENTS_PER_SESSION_MAX)?;
            Some(SharedPrefix {
                owner: SessionKey::new(owner),
                end: Seq::new(end),
                logical_bytes: varint::take(rest)?,
                chain: u32::try_from(varint::take(rest)?).ok()?,
                title: match varint::take(rest)? {
                    0 => None,
                    length => Some(take_text(rest, length - 1)?),
                },
            })
        };
        let header = std::str::from_utf8(rest).ok()?;
        Some(Self { shared, header })
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

/// Reads the names of a `vocabulary` frame.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] if the payload is malformed.
pub fn decode_vocabulary(mut payload: &[u8]) -> Result<Vec<&str>> {
    let mut names = Vec::new();
    while !payload.is_empty() {
        let name = varint::take(&mut payload).and_then(|length| take_text(&mut payload, length));
        names.push(
            name.ok_or_else(|| Error::new(ErrorKind::Corrupt, "read vocabulary frame: malformed payload"))?,
        );
    }
    Ok(names)
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
    fn vocabularies_round_trip_and_refuse_what_is_cut() {
        let mut out = Vec::new();
        encode_vocabulary(&mut out, ["acme/a", "b"]);
        assert_eq!(decode_vocabulary(&out).unwrap(), ["acme/a", "b"]);
        assert!(decode_vocabulary(&out[..3]).is_err());
        assert!(decode_vocabulary(&[200, 200]).is_err());
        assert!(decode_vocabulary(&[1, 0xff]).is_err());
    }
}
