//! Damage costs exactly the events whose bytes it hits, and is never silent.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

type Lost = BTreeSet<(u64, u64)>;

/// Holds what a damaged file gives against what was written: only true events, and each event or its loss. Gives the lost.
fn lost_events<S: ByteSource>(file: &Sealed<S>, sessions: &[Session]) -> Lost {
    let mut lost = Lost::new();
    for session in sessions {
        let seqs = session.first..session.first + session.events.len() as u64;
        let row = match file.find(SessionKey::new(session.key)) {
            Ok(row) => row.expect("a session never vanishes silently"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                lost.extend(seqs.map(|seq| (session.key, seq)));
                continue;
            }
        };
        let (events, gone) = read(file, &row);
        let gone: Vec<u64> = gone.into_iter().flatten().collect();
        for (seq, event) in &events {
            assert_eq!(*event, session.events[usize::try_from(seq - session.first).unwrap()]);
        }
        let mut all: Vec<u64> = events.iter().map(|(seq, _)| *seq).chain(gone.iter().copied()).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(seqs), "each event once, or its loss");
        lost.extend(gone.into_iter().map(|seq| (session.key, seq)));
        if let Ok(summary) = file.summary(&row) {
            assert_eq!(&*summary, format!("summary {}", session.key).as_bytes());
        }
    }
    lost
}

/// What the check reports: how many findings, and the events they name.
fn checked<S: ByteSource>(file: &Sealed<S>) -> (usize, Lost) {
    let (mut findings, mut lost) = (0, Lost::new());
    file.check_all(&mut SealedDecoder::new().unwrap(), &mut |finding| {
        findings += 1;
        if let Some((key, seqs)) = finding.lost {
            lost.extend((seqs.start.get()..seqs.end.get()).map(|seq| (key.get(), seq)));
        }
        Ok(())
    })
    .unwrap();
    (findings, lost)
}

#[test]
fn any_changed_byte_is_found_and_costs_only_what_needs_it() {
    let sessions = varied();
    let (bytes, stats) = build(&sessions);
    let control = control_of(&Sealed::open(&bytes[..]).unwrap()).unwrap();
    let all = usize::try_from(stats.event_count).unwrap();
    let mut spared = 0;
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        let file = match Sealed::open(&damaged[..]) {
            Ok(file) => file,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert!(at >= bytes.len() - rows::FOOTER_BYTES, "byte {at}");
                continue;
            }
        };
        let lost = lost_events(&file, &sessions);
        let (findings, named) = checked(&file);
        assert!(findings > 0, "byte {at} changed and nobody knows");
        let unfindable: Lost = lost.difference(&named).copied().collect();
        let whole_session = unfindable.iter().all(|(key, _)| file.find(SessionKey::new(*key)).is_err());
        assert!(named.is_subset(&lost) && whole_session, "byte {at}: {named:?} of {lost:?}");
        if let Ok(read) = control_of(&file) {
            assert_eq!(read, control);
        }
        spared += usize::from(lost.len() < all);
    }
    assert_eq!(
        spared,
        bytes.len() - rows::FOOTER_BYTES,
        "no single byte outside the footer costs everything"
    );
}

#[test]
fn a_cut_file_is_no_file() {
    let (bytes, _) = build(&varied());
    for cut in 0..bytes.len() {
        assert_eq!(Sealed::open(&bytes[..cut]).unwrap_err().kind(), ErrorKind::Corrupt, "cut at {cut}");
    }
}

#[test]
fn a_damaged_version_costs_those_that_hang_on_it() {
    let versions =
        (0..5).map(|day| event(HEADER_TYPE, format!("{{\"s\":\"{}\",\"d\":{day}}}", "same ".repeat(90))));
    let sessions = [Session { key: 1, first: 0, events: versions.collect() }];
    let (mut bytes, _) = build(&sessions);
    let third = {
        let file = Sealed::open(&bytes[..]).unwrap();
        let row = pieces::PieceSource::row(&file, 3).unwrap();
        assert_eq!(row.base, Some(2));
        usize::try_from(row.offset).unwrap()
    };
    bytes[third] ^= 0x40;
    let file = Sealed::open(&bytes[..]).unwrap();
    let expected: Lost = [(1, 2), (1, 3), (1, 4)].into();
    assert_eq!(lost_events(&file, &sessions), expected);
    assert_eq!(checked(&file).1, expected);
}

#[test]
fn chains_are_bounded() {
    let versions =
        (0..100).map(|day| event(HEADER_TYPE, format!("{{\"s\":\"{}\",\"d\":{day}}}", "same ".repeat(90))));
    let sessions = [Session { key: 1, first: 0, events: versions.collect() }];
    let file = Sealed::open(build(&sessions).0).unwrap();
    let row_of = |id| pieces::PieceSource::row(&file, id).unwrap();
    for id in 1..=100 {
        let way = std::iter::successors(Some(id), |&id| row_of(id).base).count();
        assert!(way <= usize::from(crate::limits::SEALED_CHAIN_MAX), "{id}: {way}");
    }
    assert!(lost_events(&file, &sessions).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_events_round_trip(
        sessions in prop::collection::vec(prop::collection::vec((0_u32..9, 0_usize..4, "[a-c\"\\\\é]{0,30}"), 0..20), 0..5),
    ) {
        let sessions: Vec<Session> = (1..).zip(sessions).map(|(key, events)| Session {
            key,
            first: key * 100,
            events: events
                .into_iter()
                .map(|(code, repeat, text)| event(code + 1, format!("\"{}\"{text}", text.repeat(repeat * 150))))
                .collect(),
        }).collect();
        let (bytes, _) = build(&sessions);
        let file = Sealed::open(bytes).unwrap();
        prop_assert!(lost_events(&file, &sessions).is_empty());
        prop_assert_eq!(checked(&file), (0, Lost::new()));
    }
}
