//! Reading through the cache gives what reading the file gives, and damage costs the same.

use super::*;

type Items = Vec<(Range<u64>, Option<Event>)>;

fn take(items: &mut Items, item: SealedItem<'_>) -> Result<()> {
    items.push(match item {
        SealedItem::Event(seq, record) => (seq.get()..seq.get() + 1, Some(owned(&record))),
        SealedItem::Unreadable(seqs, error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            (seqs.start.get()..seqs.end.get(), None)
        }
    });
    Ok(())
}

fn scanned<S: ByteSource>(file: &Sealed<S>, row: &SessionRow, range: Range<Seq>) -> Items {
    let (mut items, mut decoder) = (Vec::new(), SealedDecoder::new().unwrap());
    file.events(row, range, &|_, _| true, &mut decoder, &mut |item| take(&mut items, item)).unwrap();
    items
}

fn cached<S: ByteSource>(file: &Sealed<S>, row: &SessionRow, range: Range<Seq>, cache: &FileCache) -> Items {
    let (mut items, mut decoder) = (Vec::new(), SealedDecoder::new().unwrap());
    let mut visit = |item: SealedItem<'_>| take(&mut items, item);
    file.events_cached(row, range, &|_, _| true, cache, &mut decoder, &mut visit).unwrap();
    items
}

#[test]
fn a_cache_of_any_size_gives_what_the_file_gives() {
    let file = Sealed::open(build(&varied()).0).unwrap();
    for bytes_max in [0, 3_000, 300_000, 16 << 20] {
        let cache = DecodedCache::new(bytes_max).of_file();
        for row in file.sessions().map(Result::unwrap) {
            let seqs = row.first.get()..row.end().get();
            for start in seqs.clone().rev() {
                for end in [start + 1, start + 3, seqs.end] {
                    let range = Seq::new(start)..Seq::new(end);
                    let expected = scanned(&file, &row, range.clone());
                    assert_eq!(cached(&file, &row, range, &cache), expected, "{bytes_max} {start}..{end}");
                }
            }
        }
    }
}

#[test]
fn what_was_read_before_is_read_again_without_the_file() {
    let sessions = varied();
    let (bytes, _) = build(&sessions);
    let whole = Sealed::open(&bytes[..]).unwrap();
    let row = whole.find(SessionKey::new(4)).unwrap().unwrap();
    let cache = DecodedCache::new(16 << 20).of_file();
    let all = row.first..row.end();
    let before = cached(&whole, &row, all.clone(), &cache);
    // Nothing between header and directories is as it was.
    let mut gone = bytes.clone();
    let directories = usize::try_from(whole.footer.directories).unwrap();
    gone[4096..directories].fill(0xA5);
    let gone = Sealed::open(&gone[..]).unwrap();
    assert_eq!(cached(&gone, &row, all.clone(), &cache), before);
    let lost = scanned(&gone, &row, all);
    assert!(lost.iter().all(|(_, event)| event.is_none()), "{lost:?}");
}

#[test]
fn damage_costs_what_it_costs_a_scan() {
    let sessions = varied();
    let (bytes, _) = build(&sessions);
    let row = Sealed::open(&bytes[..]).unwrap().find(SessionKey::new(4)).unwrap().unwrap();
    for at in (4096..bytes.len() - 64).step_by(97) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x10;
        let file = Sealed::open(&bytes[..]).unwrap();
        let cache = DecodedCache::new(16 << 20).of_file();
        for start in row.first.get()..row.end().get() {
            let range = Seq::new(start)..Seq::new(start + 1);
            let expected = scanned(&file, &row, range.clone());
            assert_eq!(cached(&file, &row, range.clone(), &cache), expected, "byte {at}, seq {start}");
            assert_eq!(cached(&file, &row, range, &cache), expected, "again: byte {at}, seq {start}");
        }
    }
}

#[test]
fn versions_are_found_from_any_other_one() {
    let header = |n: u64| event(HEADER_TYPE, format!("{{\"n\":{n},\"s\":\"{}\"}}", "be brief ".repeat(99)));
    let events: Vec<Event> = (0..100).map(header).collect();
    let file = Sealed::open(build(&[Session { key: 1, first: 0, events }]).0).unwrap();
    let row = file.find(SessionKey::new(1)).unwrap().unwrap();
    for bytes_max in [0, 40_000, 16 << 20] {
        let cache = DecodedCache::new(bytes_max).of_file();
        for n in 0..300_u64 {
            let seq = n * 37 % 100;
            let found = cached(&file, &row, Seq::new(seq)..Seq::new(seq + 1), &cache);
            assert_eq!(found, [(seq..seq + 1, Some(header(seq)))]);
        }
    }
}
