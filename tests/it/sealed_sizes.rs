//! What sealing leaves of what repeats, as a user sees it: sizes of files, and the same export byte for byte. The benchmark
//! `sealed_sizes` measures the same at full size.

use sessionlog::Draft;

use crate::bench_support::sealed::{append, base64, exported, header_draft, image_message, sealed_bytes};
use crate::bench_support::trace::random::Random;
use crate::bench_support::{SEED, create, memory_store};

/// Headers of 60 KB that differ in what is `noted`.
fn header(noted: &str) -> Draft<'static> {
    let rules = base64(&mut Random::new(SEED), 60_000);
    let header = format!(r#"{{"config":{{"provider":"p","model":"m"}},"system":"{noted} {rules}"}}"#);
    header_draft(&header, "change")
}

/// Size of the sealed file of a session with these headers.
fn sealed_headers(headers: impl Iterator<Item = Draft<'static>>) -> u64 {
    let store = memory_store();
    let session = create(&store, "s");
    headers.for_each(|draft| append(&session, draft));
    sealed_bytes(&store, &session)
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
    let payloads: Vec<String> = (1..=4).map(|seed| base64(&mut Random::new(seed), 20_000)).collect();
    let store = memory_store();
    let session = create(&store, "s");
    let mut data = Vec::new();
    for n in 0..48 {
        let image = &payloads[n % payloads.len()];
        let message = image_message(n, image);
        append(&session, Draft::new("user/message", message.as_str()).on_surface());
        data.push(message);
    }
    let sealed = sealed_bytes(&store, &session);
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
