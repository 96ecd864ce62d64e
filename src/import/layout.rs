//! The directory layout of a session root (spec section 14.1): where a session lies.
//!
//! Names are mapped over UTF-16 units, as the reference does, so both sides find the same path. The project
//! key is lossy: two working directories may share one. The session key is not.

use std::fmt::Write as _;

use siphasher::sip128::SipHasher13;

use crate::event::json::JsonString;

/// Directory of the sessions without a working directory.
const NO_CWD: &str = "_no-cwd";
/// Longest slug of a working directory, in units (all of them ASCII).
const SLUG_UNITS_MAX: usize = 251;
/// Longest name in a directory that common file systems take, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Length of what ends a shortened name: `~~` and a hash.
const SHORTENED_END_BYTES: usize = 2 + 32;

/// The directory name under the root for sessions of this working directory.
#[must_use]
pub fn project_key(cwd: Option<&JsonString<'_>>) -> String {
    let Some(cwd) = cwd else { return NO_CWD.to_owned() };
    let mut slug = String::with_capacity(cwd.as_bytes().len());
    let mut after_separator = false;
    for unit in units(cwd) {
        let separator = [b'/', b'\\', b':'].map(u16::from).contains(&unit);
        if !separator {
            push_unit(&mut slug, unit);
        } else if !after_separator {
            slug.push('-');
        }
        after_separator = separator;
    }
    let slug = slug.trim_start_matches('-');
    let slug = if slug.is_empty() { "root" } else { slug };
    format!("--{}--", &slug[..slug.len().min(SLUG_UNITS_MAX)])
}

/// The directory name under the project for the session `id`; `None` for the empty id, which has none.
/// Different ids have different names.
///
/// The reference's name of an id may be longer than the 255 bytes that a name can have; it has no place for such a session.
/// Here its first 221 bytes stand for it, followed by `~~`, which no name of the reference has, and the 32 hex digits of the id's
/// SipHash-1-3 of 128 bits.
#[must_use]
pub fn session_key(id: &str) -> Option<String> {
    match id {
        "" => None,
        "." => Some("~002E".to_owned()),
        ".." => Some("~002E~002E".to_owned()),
        _ => {
            let mut key = String::with_capacity(id.len());
            id.encode_utf16().for_each(|unit| push_unit(&mut key, unit));
            if key.len() > NAME_BYTES_MAX {
                let hash = SipHasher13::new().hash(id.as_bytes()).as_u128();
                key.truncate(NAME_BYTES_MAX - SHORTENED_END_BYTES);
                key.push_str(&format!("~~{hash:032x}"));
            }
            Some(key)
        }
    }
}

/// The UTF-16 units of a string, lone surrogates included.
fn units(string: &JsonString<'_>) -> Vec<u16> {
    let mut units = Vec::with_capacity(string.as_bytes().len());
    let mut rest = string.as_bytes();
    while let Some(&lead) = rest.first() {
        let (bytes, bits) = match lead {
            0..0x80 => (1, lead),
            0x80..0xE0 => (2, lead & 0x1F),
            0xE0..0xF0 => (3, lead & 0x0F),
            0xF0.. => (4, lead & 0x07),
        };
        let (point, after) = rest.split_at(bytes.min(rest.len()));
        let code = point[1..].iter().fold(u32::from(bits), |code, &b| code << 6 | u32::from(b & 0x3F));
        match (u16::try_from(code), char::from_u32(code)) {
            (Ok(unit), _) => units.push(unit),
            (Err(_), Some(high)) => units.extend_from_slice(high.encode_utf16(&mut [0; 2])),
            (Err(_), None) => {}
        }
        rest = after;
    }
    units
}

/// One unit: itself if it is safe in a file name everywhere, else `~` and four hex digits.
fn push_unit(out: &mut String, unit: u16) {
    match u8::try_from(unit) {
        Ok(byte) if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) => out.push(char::from(byte)),
        // Formatting into a string cannot fail.
        _ => drop(write!(out, "~{unit:04X}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(cwd: &str) -> String {
        project_key(Some(&JsonString::from(cwd)))
    }

    #[test]
    fn project_keys_follow_the_reference() {
        let cases = [
            ("/srv/client/app", "--srv-client-app--"),
            ("/srv/client-app", "--srv-client-app--"),
            ("/", "--root--"),
            ("", "--root--"),
            ("///a//b/", "--a-b---"),
            ("C:\\Users\\dev", "--C-Users-dev--"),
            ("/-x", "--x--"),
            ("/a b~c", "--a~0020b~007Ec--"),
            ("/\u{e9}/\u{1F600}", "--~00E9-~D83D~DE00--"),
        ];
        for (cwd, key) in cases {
            assert_eq!(key_of(cwd), key, "{cwd}");
        }
        assert_eq!(
            project_key(Some(&JsonString::decode(r#""/a\udc00\ud83c/\ud83d\ude00""#))),
            "--a~DC00~D83C-~D83D~DE00--"
        );
        assert_eq!(project_key(None), "_no-cwd");
    }

    #[test]
    fn a_long_slug_is_cut_at_251_units() {
        let key = key_of(&format!("/{}", "a".repeat(300)));
        assert_eq!(key, format!("--{}--", "a".repeat(251)));
        // The cut may fall inside an escape.
        let key = key_of(&format!("/{}\u{e9}", "a".repeat(249)));
        assert_eq!(key, format!("--{}~0--", "a".repeat(249)));
    }

    #[test]
    fn session_keys_are_injective_escapes() {
        let cases = [
            (".", "~002E"),
            ("..", "~002E~002E"),
            ("...", "..."),
            ("log-001_A.b", "log-001_A.b"),
            ("a/b", "a~002Fb"),
            ("~002E", "~007E002E"),
            ("\u{1F600}", "~D83D~DE00"),
        ];
        for (id, key) in cases {
            assert_eq!(session_key(id).as_deref(), Some(key));
        }
        assert_eq!(session_key(""), None);
    }

    #[test]
    fn long_ids_have_names_of_their_own_that_a_directory_takes() {
        let dir = tempfile::tempdir().unwrap();
        let last_whole = "a".repeat(255);
        assert_eq!(session_key(&last_whole), Some(last_whole.clone()));
        let mut names = std::collections::HashSet::new();
        let longest = "\u{1F600}".repeat(256);
        let ids = [last_whole.clone() + "a", last_whole.clone() + "b", longest, "/".repeat(52), last_whole];
        for id in &ids {
            let name = session_key(id).unwrap();
            std::fs::create_dir(dir.path().join(&name)).unwrap();
            assert!(name.len() <= 255 && names.insert(name));
        }
        let shortened = session_key(&ids[0]).unwrap();
        assert_eq!(shortened, format!("{}~~e66be2728a4d11860f06123849717f17", "a".repeat(221)));
        // Nor is the shortened name that of an id which spells it.
        assert!(!names.contains(&session_key(&shortened).unwrap()));
    }
}
