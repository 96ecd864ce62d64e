//! What sealing leaves of what repeats, as a user sees it: sizes of files, and the same export byte for byte. The benchmark
//! `sealed_sizes` measures the same at full size.

use sessionlog::export::{JsonlFormat, write_session};
use sessionlog::{AppendOptions, Draft, Session, Store};

use crate::sealing::create;
use crate::support::memory_store;

/// Characters of base64 that do not compress but for their alphabet.
fn base64(seed: u64, bytes: usize) -> String {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut state = seed;
    let mut digit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(digits[usize::try_from(state >> 58).unwrap()])
    };
    (0..bytes).map(|_| digit()).collect()
}

/// Headers of 60 KB that differ in what is `noted`.
fn header(noted: &str) -> Draft<'static> {
    let rules = base64(1, 60_000);
    let data = format!(
        r#"{{"header":{{"config":{{"provider":"p","model":"m"}},"system":"{noted} {rules}"}},"reason":"change"}}"#
    );
    Draft::new("request/header", data)
}

fn append(session: &Session, draft: Draft<'_>) {
    session.append(&[draft], AppendOptions::default()).unwrap().wait().unwrap();
}

fn exported(session: &Session) -> String {
    let mut out = Vec::new();
    write_session(session, &mut out, JsonlFormat::Plain, false, None).unwrap();
    String::from_utf8(out).unwrap()
}

/// Compacts the store; the size of its sealed file.
fn sealed_bytes(store: &Store) -> u64 {
    let session = store.session("s").unwrap();
    let before = exported(&session);
    store.compact().unwrap();
    assert!(exported(&session) == before, "the export changed");
    let files = store.stats().unwrap().files;
    let sealed: Vec<u64> =
        files.iter().filter(|file| file.name.ends_with(".sealed")).map(|file| file.stored_bytes).collect();
    assert_eq!(sealed.len(), 1, "{files:?}");
    sealed[0]
}

/// Size of the sealed file of a session with these headers.
fn sealed_headers(headers: impl Iterator<Item = Draft<'static>>) -> u64 {
    let store = memory_store();
    let session = create(&store, "s");
    headers.for_each(|draft| append(&session, draft));
    sealed_bytes(&store)
}

#[test]
fn of_thirty_equal_headers_one_is_stored() {
    let one = sealed_headers(std::iter::once(header("")));
    let all = sealed_headers((0..30).map(|_| header("")));
    assert!(one > 40_000, "{one}");
    assert!(all - one <= 29 * 64, "{one} and {all}");
}

#[test]
fn a_header_that_changed_a_little_takes_what_changed() {
    let one = sealed_headers(std::iter::once(header("day 0")));
    let all = sealed_headers((0..30).map(|day| header(&format!("day {day}"))));
    assert!(all - one <= 29 * 182, "{one} and {all}");
}

#[test]
fn a_payload_that_repeats_is_stored_once_and_exported_byte_for_byte() {
    let payloads: Vec<String> = (1..=4).map(|seed| base64(seed, 20_000)).collect();
    let store = memory_store();
    let session = create(&store, "s");
    let mut data = Vec::new();
    for n in 0..48 {
        let image = &payloads[n % payloads.len()];
        let message = format!(
            r#"{{"id":"u{n}","role":"user","content":[{{"type":"text","text":"image {n}"}},{{"type":"image","attachment":{{"mediaType":"image/png","data":"{image}"}}}}],"source":{{"kind":"user"}}}}"#
        );
        append(&session, Draft::new("user/message", message.as_str()).on_surface());
        data.push(message);
    }
    let sealed = sealed_bytes(&store);
    let once: usize = payloads.iter().map(String::len).sum();
    assert!(sealed <= once as u64, "{sealed} for payloads of {once}");
    // The header line, then an event a line.
    let lines = exported(&session);
    let events: Vec<&str> = lines.lines().skip(1).collect();
    assert_eq!(events.len(), data.len());
    for (event, data) in events.iter().zip(&data) {
        assert!(event.contains(data), "{event}");
    }
}
