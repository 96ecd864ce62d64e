//! What sealing leaves of request headers that change a little or not at all, and of payloads that repeat: bytes of a
//! sealed file, beside the most that they may take. Sizes are exact, so each is taken once.

use sessionlog::{Draft, Store};
use support::sealed::{append, base64, exported, header_draft, image_message, sealed_bytes};
use support::trace::header::Header;
use support::trace::random::Random;
use support::{SEED, create, is_trial, memory_store};

mod support;

/// Size of a header in KB, and the most that a changed one may take on average, in bytes.
const CHANGED_MAX: [(usize, u64); 4] = [(25, 182), (65, 182), (200, 350), (1_000, 500)];
/// How often a session's header is edited.
const HEADERS: u64 = 40;
/// A header takes more than this share of its bytes only where it stands alone.
const KEYFRAME_SHARE: u64 = 32;
/// Payloads, their bytes, and how often each occurs.
const PAYLOADS: (usize, usize, usize) = (4, 341_000, 12);

fn main() {
    let limits = if is_trial() { &CHANGED_MAX[..1] } else { &CHANGED_MAX[..] };
    println!("{:<34} {:>10} {:>10}", "stored in a sealed file, in bytes", "ours", "at most");
    for &(size_kb, changed_max) in limits {
        let Changed { mean, keyframes, keyframe_bytes } = Changed::measure(size_kb * 1_000);
        show(&format!("a changed header of {size_kb} KB"), mean, changed_max);
        println!("  apart from {keyframes} keyframes behind the first, {keyframe_bytes} bytes");
        show(&format!("an equal header of {size_kb} KB"), equal(size_kb * 1_000), 64);
    }
    let (logical, sealed) = payloads();
    show(&format!("repeated payloads, {logical} bytes"), sealed, 1_400_000);
}

fn show(what: &str, ours: u64, limit: u64) {
    println!("{what:<34} {ours:>10} {limit:>10}");
}

/// What edited headers take.
struct Changed {
    /// Mean bytes of one.
    mean: u64,
    /// How many of them were stored as keyframes, and count apart.
    keyframes: u64,
    keyframe_bytes: u64,
}

impl Changed {
    fn measure(bytes: usize) -> Self {
        let mut random = Random::new(SEED);
        let mut header = Header::new(&mut random, bytes);
        let mut versions = vec![header.to_json()];
        for _ in 0..HEADERS {
            header.edit(&mut random);
            versions.push(header.to_json());
        }
        let (first, _) = sealed(&versions[..1]);
        let (all, store) = sealed(&versions);
        let headers = store.session("session").expect("a session").headers().expect("read");
        let stored = headers[1..].iter().filter_map(|header| Some((header.stored_bytes?, header.bytes)));
        let keyframes: Vec<u64> = stored
            .filter(|(stored, bytes)| stored * KEYFRAME_SHARE > *bytes)
            .map(|(stored, _)| stored)
            .collect();
        let keyframe_bytes: u64 = keyframes.iter().sum();
        let count = keyframes.len() as u64;
        Self {
            mean: (all - first - keyframe_bytes).div_ceil((HEADERS - count).max(1)),
            keyframes: count,
            keyframe_bytes,
        }
    }
}

/// Mean bytes of a header that is equal to the one before.
fn equal(bytes: usize) -> u64 {
    const EQUAL: usize = 30;
    let header = Header::new(&mut Random::new(SEED), bytes).to_json();
    let (one, _) = sealed(std::slice::from_ref(&header));
    let (all, _) = sealed(&vec![header; 1 + EQUAL]);
    (all - one).div_ceil(EQUAL as u64)
}

/// Bytes of the sealed file of a session with these headers, and its store.
fn sealed(headers: &[String]) -> (u64, Store) {
    let store = memory_store();
    let session = create(&store, "session");
    for (n, header) in headers.iter().enumerate() {
        let reason = if n == 0 { "initial" } else { "change" };
        append(&session, header_draft(header, reason));
    }
    (sealed_bytes(&store, &session), store)
}

/// Bytes of the events as JSON lines, and of the sealed file.
fn payloads() -> (u64, u64) {
    let (count, bytes, times) = PAYLOADS;
    let mut random = Random::new(SEED);
    let payloads: Vec<String> = (0..count).map(|_| base64(&mut random, bytes)).collect();
    let store = memory_store();
    let session = create(&store, "session");
    for n in 0..times * count {
        let image = &payloads[n % count];
        let data = image_message(n, image);
        append(&session, Draft::new("user/message", data).on_surface());
    }
    (exported(&session).len() as u64, sealed_bytes(&store, &session))
}
