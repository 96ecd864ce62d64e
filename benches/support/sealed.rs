//! Values that repeat, and what sealing leaves of them.

use sessionlog::export::{JsonlFormat, write_session};
use sessionlog::{AppendOptions, Draft, Session, Store};

use super::trace::random::Random;

/// Characters of base64 that do not compress but for their alphabet.
pub(crate) fn base64(random: &mut Random, bytes: usize) -> String {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    (0..bytes).map(|_| char::from(digits[random.below(digits.len())])).collect()
}

/// A request header, as it is stored.
pub(crate) fn header_draft(header: &str, reason: &str) -> Draft<'static> {
    Draft::new("request/header", format!(r#"{{"header":{header},"reason":"{reason}"}}"#))
}

/// The data of a message with an image.
pub(crate) fn image_message(n: usize, image: &str) -> String {
    format!(
        r#"{{"id":"u{n}","role":"user","content":[{{"type":"text","text":"look at image {n}"}},{{"type":"image","attachment":{{"mediaType":"image/png","data":"{image}"}}}}],"source":{{"kind":"user"}}}}"#
    )
}

/// Appends one event.
pub(crate) fn append(session: &Session, draft: Draft<'_>) {
    session.append(&[draft], AppendOptions::default()).expect("admitted").wait().expect("written");
}

/// The session as JSON lines.
pub(crate) fn exported(session: &Session) -> String {
    let mut out = Vec::new();
    write_session(session, &mut out, JsonlFormat::Plain, false, None).expect("exported");
    String::from_utf8(out).expect("text")
}

/// Compacts the session's store; the bytes of its one sealed file. What is exported must be the same before and after.
pub(crate) fn sealed_bytes(store: &Store, session: &Session) -> u64 {
    let before = exported(session);
    store.compact().expect("compacted");
    assert!(exported(session) == before, "the export changed");
    let files = store.stats().expect("counted").files;
    let mut sealed = files.iter().filter(|file| file.name.ends_with(".sealed"));
    let (Some(file), None) = (sealed.next(), sealed.next()) else { panic!("not one sealed file: {files:?}") };
    file.stored_bytes
}
