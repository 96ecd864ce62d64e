//! Pages that are gone, overwritten, or lie.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use tempfile::TempDir;

use super::super::{add_event, add_session, add_turn, database};
use super::{Sessions, mended, plan, sessions_of};

const PAGE: usize = 4096;

/// Sixty sessions of five events, one of four kilobytes and one with an overflow chain of some pages.
fn sixty_sessions() -> (TempDir, PathBuf, Vec<u8>, Sessions) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("whole.db");
    let database = database(&path);
    database.execute_batch("BEGIN").unwrap();
    let mut state = 1_u64;
    for number in 0..60 {
        let id = format!("s-{number:02}-{}", "x".repeat(40));
        add_session(&database, &id);
        add_turn(&database, &id, 0);
        let noise = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b'a' + u8::try_from((state >> 33) % 26).unwrap())
        };
        let text: String = (0..if number == 30 { 30_000 } else { 3_000 }).map(noise).collect();
        add_event(&database, &id, 2, "todo/write", &format!("\"{text}\""));
        add_turn(&database, &id, 3);
    }
    database.execute_batch("COMMIT").unwrap();
    drop(database);
    let (bytes, sessions) = (fs::read(&path).unwrap(), sessions_of(&path));
    assert_eq!(sessions.len(), 60);
    (dir, path, bytes, sessions)
}

/// The root page of an object, counted from 0.
fn root(path: &Path, name: &str) -> usize {
    let select = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
    let page: i64 = Connection::open(path).unwrap().query_row(select, [name], |row| row.get(0)).unwrap();
    usize::try_from(page).unwrap() - 1
}

/// The children of an interior page, counted from 0, the last one last.
fn children(bytes: &[u8], page: usize) -> Vec<usize> {
    let page = &bytes[page * PAGE..(page + 1) * PAGE];
    let number = |at: usize| u32::from_be_bytes(page[at..at + 4].try_into().unwrap()) as usize - 1;
    assert!(matches!(page[0], 2 | 5), "an interior page");
    let cells = usize::from(u16::from_be_bytes([page[3], page[4]]));
    let cell = |i: usize| usize::from(u16::from_be_bytes([page[12 + 2 * i], page[13 + 2 * i]]));
    (0..cells).map(|i| number(cell(i))).chain([number(8)]).collect()
}

/// A plan that must be one, its sessions all true beginnings; how many events it keeps and saves.
fn check(path: &Path, whole: &Sessions) -> Option<(u64, u64)> {
    let plan = plan(path, &[]);
    if plan.refusal.is_some() || plan.needs_branch() {
        return None;
    }
    let (sessions, saved) = mended(&plan);
    for (id, events) in &sessions {
        assert!(whole[id].starts_with(events), "{id}: {:?}", plan.sessions);
    }
    if plan.is_lossless() {
        assert_eq!(&sessions, whole);
    }
    Some((plan.summary.events_kept, saved.len() as u64))
}

#[test]
fn whatever_page_is_overwritten_what_is_kept_is_a_true_beginning() {
    let (dir, _, whole, sessions) = sixty_sessions();
    let damaged = dir.path().join("damaged.db");
    let mut state = 7_u64;
    let mut worst = 300;
    for page in 1..whole.len() / PAGE {
        for fill in 0..2 {
            let mut bytes = whole.clone();
            for byte in &mut bytes[page * PAGE..(page + 1) * PAGE] {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = if fill == 0 { 0 } else { (state >> 56) as u8 };
            }
            fs::write(&damaged, &bytes).unwrap();
            let (kept, saved) = check(&damaged, &sessions).unwrap_or_else(|| panic!("page {page}"));
            worst = worst.min(kept + saved);
        }
    }
    assert_eq!(worst, 0, "the root of the events costs them all");
}

/// Bits, bytes, and stretches anywhere, the schema and the pages' heads among them: what comes out loads.
#[test]
fn whatever_is_hit_the_new_database_is_sound() {
    let (dir, _, whole, _) = sixty_sessions();
    let damaged = dir.path().join("damaged.db");
    let mut refused = 0;
    for seed in 0..250_u64 {
        let mut state = seed;
        let mut below = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from((state >> 33) % bound as u64).unwrap()
        };
        let mut bytes = whole.clone();
        for _ in 0..=below(4) {
            // Heads of pages as often as any place.
            let at =
                if below(2) == 0 { below(bytes.len()) } else { below(bytes.len() / PAGE) * PAGE + below(40) };
            match below(4) {
                0 => bytes[at] ^= 1 << below(8),
                1 => bytes[at] = u8::try_from(below(256)).unwrap(),
                2 => {
                    let end = bytes.len().min(at + below(600));
                    bytes[at..end].fill(0);
                }
                _ => {
                    let from = below(bytes.len() / PAGE) * PAGE;
                    let to = at / PAGE * PAGE;
                    bytes.copy_within(from..from + PAGE, to);
                }
            }
        }
        fs::write(&damaged, &bytes).unwrap();
        let mut plan = plan(&damaged, &[]);
        if plan.needs_branch() {
            let forked = plan.sessions.iter().filter(|session| session.needs_branch());
            let branches: Vec<_> =
                forked.map(|session| (session.id.clone(), session.branches.len())).collect();
            let branches: Vec<_> = branches.iter().map(|(id, number)| (id.as_str(), *number)).collect();
            plan = super::plan(&damaged, &branches);
        }
        match plan.refusal {
            Some(_) => refused += 1,
            None => drop(mended(&plan)),
        }
    }
    assert!(refused < 60, "{refused}");
}

#[test]
fn a_page_in_the_middle_costs_its_rows_and_no_more() {
    let (dir, path, whole, sessions) = sixty_sessions();
    let damaged = dir.path().join("damaged.db");
    let overwritten = |page: usize, fill: u8| {
        let mut bytes = whole.clone();
        bytes[page * PAGE..(page + 1) * PAGE].fill(fill);
        fs::write(&damaged, &bytes).unwrap();
    };
    let leaves = children(&whole, root(&path, "events"));
    for page in [leaves[0], leaves[leaves.len() / 2], leaves[leaves.len() - 1]] {
        for fill in [0, 0xA5] {
            overwritten(page, fill);
            let plan = plan(&damaged, &[]);
            let lost: u64 = plan.sessions.iter().map(|session| session.summary.events_lost).sum();
            assert!(!plan.is_lossless() && (1..=25).contains(&lost), "{:?}", plan.sessions);
            let (kept, saved) = check(&damaged, &sessions).unwrap();
            assert!(kept + saved >= 290 && kept + lost == 300, "{kept} kept, {saved} saved, {lost} lost");
        }
    }
    // The index gives way to the table.
    for page in [root(&path, "sqlite_autoindex_events_1"), root(&path, "sqlite_autoindex_sessions_1")] {
        for fill in [0, 0xA5] {
            overwritten(page, fill);
            let plan = plan(&damaged, &[]);
            assert!(plan.is_lossless() && !plan.is_sound(), "{:?} {:?}", plan.steps, plan.sessions);
            assert_eq!(check(&damaged, &sessions), Some((300, 0)));
        }
    }
    // Sessions without their rows: their events are saved.
    let rows = children(&whole, root(&path, "sessions"));
    overwritten(rows[1], 0);
    let (kept, saved) = check(&damaged, &sessions).unwrap();
    assert!(saved > 50 && kept + saved == 300, "{kept} kept, {saved} saved");
    overwritten(root(&path, "sessions"), 0);
    assert_eq!(check(&damaged, &sessions), Some((0, 300)));
}

#[test]
fn an_overflow_page_costs_one_row() {
    let (dir, path, whole, sessions) = sixty_sessions();
    let used: Vec<usize> = ["events", "sessions", "sqlite_autoindex_events_1", "sqlite_autoindex_sessions_1"]
        .iter()
        .flat_map(|name| {
            let page = root(&path, name);
            let below = if matches!(whole[page * PAGE], 2 | 5) { children(&whole, page) } else { Vec::new() };
            [vec![page], below].concat()
        })
        .collect();
    let overflow: Vec<_> = (1..whole.len() / PAGE)
        .filter(|page| !used.contains(page) && *page != root(&path, "persistence_state"))
        .collect();
    assert!((3..=8).contains(&overflow.len()), "{overflow:?}");
    let damaged = dir.path().join("damaged.db");
    for page in overflow {
        let mut bytes = whole.clone();
        bytes[page * PAGE..(page + 1) * PAGE].fill(0);
        fs::write(&damaged, &bytes).unwrap();
        assert_eq!(check(&damaged, &sessions), Some((297, 2)), "page {page}");
    }
}

#[test]
fn a_database_without_its_end_keeps_what_is_there() {
    let (dir, _, whole, sessions) = sixty_sessions();
    let damaged = dir.path().join("damaged.db");
    let mut lossy = 0;
    for pages in (5..whole.len() / PAGE).step_by(3) {
        fs::write(&damaged, &whole[..pages * PAGE - 100]).unwrap();
        let plan = plan(&damaged, &[]);
        assert!(plan.steps.listed().iter().any(|step| step.kind == "sqlite-truncated"), "{:?}", plan.steps);
        check(&damaged, &sessions).unwrap();
        lossy += usize::from(!plan.is_lossless());
    }
    assert!(lossy > 10);
}

#[test]
fn pages_that_lie_about_what_is_below_them_end() {
    let (dir, path, whole, sessions) = sixty_sessions();
    let damaged = dir.path().join("damaged.db");
    for name in ["events", "sessions", "sqlite_autoindex_events_1"] {
        let page = root(&path, name);
        let below = children(&whole, page);
        // All children are one; all are the page itself; the order is turned round.
        let number = |page: usize| u32::try_from(page + 1).unwrap().to_be_bytes();
        let cells = below.len() - 1;
        let at = |i: usize| {
            let pointer = page * PAGE + 12 + 2 * i;
            match i < cells {
                true => page * PAGE + usize::from(u16::from_be_bytes([whole[pointer], whole[pointer + 1]])),
                false => page * PAGE + 8,
            }
        };
        let turned: Vec<_> = below.iter().rev().copied().collect();
        for lies in [vec![below[0]; below.len()], vec![page; below.len()], turned] {
            let mut bytes = whole.clone();
            for (i, child) in lies.into_iter().enumerate() {
                bytes[at(i)..at(i) + 4].copy_from_slice(&number(child));
            }
            fs::write(&damaged, &bytes).unwrap();
            check(&damaged, &sessions);
        }
    }
}

#[test]
fn a_tree_that_repeats_a_page_a_million_times_ends() {
    let (dir, path, mut bytes, sessions) = sixty_sessions();
    let damaged = dir.path().join("damaged.db");
    let events = root(&path, "events");
    let leaf = children(&bytes, events)[0];
    // Interior pages of two hundred children each, all of them the one below; at last a leaf.
    let first = bytes.len() / PAGE;
    let depth = 12;
    for level in 0..depth {
        let child = if level + 1 == depth { leaf } else { first + level + 1 };
        let child = u32::try_from(child + 1).unwrap().to_be_bytes();
        let mut page = vec![0; PAGE];
        page[0] = 5;
        page[3..5].copy_from_slice(&200_u16.to_be_bytes());
        page[5..7].copy_from_slice(&u16::try_from(PAGE - 200 * 5).unwrap().to_be_bytes());
        page[8..12].copy_from_slice(&child);
        for i in 0..200_usize {
            let at = PAGE - (i + 1) * 5;
            page[12 + 2 * i..14 + 2 * i].copy_from_slice(&u16::try_from(at).unwrap().to_be_bytes());
            page[at..at + 4].copy_from_slice(&child);
            page[at + 4] = u8::try_from(i % 128).unwrap();
        }
        bytes.extend(page);
    }
    let top = bytes[first * PAGE..(first + 1) * PAGE].to_vec();
    bytes[events * PAGE..(events + 1) * PAGE].copy_from_slice(&top);
    let pages = u32::try_from(bytes.len() / PAGE).unwrap().to_be_bytes();
    bytes[28..32].copy_from_slice(&pages);
    fs::write(&damaged, &bytes).unwrap();
    check(&damaged, &sessions);
}

/// A tree of three levels: what is below an interior page can be reached by nobody, and the index tells what it was.
#[test]
fn an_interior_page_costs_what_is_below_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep.db");
    let database = database(&path);
    database.execute_batch("BEGIN").unwrap();
    for session in 0..400 {
        let id = format!("s-{session:03}");
        add_session(&database, &id);
        for seq in 0..20 {
            add_event(&database, &id, seq, "todo/write", &format!("\"{}\"", "x".repeat(300)));
        }
    }
    database.execute_batch("COMMIT").unwrap();
    drop(database);
    let (whole, sessions) = (fs::read(&path).unwrap(), sessions_of(&path));
    let mut bytes = whole.clone();
    let interior = children(&bytes, root(&path, "events"));
    let below = children(&bytes, interior[0]).len();
    assert!(interior.len() > 1 && below > 100, "three levels");
    bytes[interior[0] * PAGE..(interior[0] + 1) * PAGE].fill(0);
    fs::write(&path, &bytes).unwrap();
    let plan = plan(&path, &[]);
    let (kept, saved) = check(&path, &sessions).unwrap();
    assert_eq!(kept + plan.summary.events_lost, 8_000);
    let unreadable = plan.summary.events_lost - saved;
    assert!((below as u64..8_000).contains(&unreadable), "{below} leaves, {unreadable} rows");
    assert!(plan.sessions.iter().all(|session| session.summary.first_lost.is_some()));
    // Between two pages of the index that cannot be read either, the sessions lead to what it tells.
    let index = children(&whole, root(&path, "sqlite_autoindex_events_1"));
    let leaves = children(&whole, interior[0]);
    let mut bytes = whole;
    for page in [index[1], index[index.len() - 2], leaves[leaves.len() / 2]] {
        bytes[page * PAGE..(page + 1) * PAGE].fill(0);
    }
    fs::write(&path, bytes).unwrap();
    let plan = self::plan(&path, &[]);
    assert!(!plan.is_lossless() && plan.steps.totals().count() == 2, "{:?}", plan.steps);
    assert_eq!(plan.summary.events_kept + plan.summary.events_lost, 8_000);
}
