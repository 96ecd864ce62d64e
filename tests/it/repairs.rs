//! Damaged logs become logs that load: what is kept, what is lost, and that nothing else is touched.

mod patient;
mod told;

use std::fs;

use sessionlog::ErrorKind;
use sessionlog::export::{JsonlFormat, JsonlWriter};
use sessionlog::import::{Importer, JudgeOptions, Lines, Verdict, judge};
use sessionlog::repair::{Action, Plan, Repairer};

use self::patient::{Patient, log_lines, text_of, zstd_frame, zstd_of};
use crate::support::shared;

/// Steps by action and kind.
type Told = &'static [(&'static str, &'static str)];

fn actions(plan: &Plan) -> Vec<(&'static str, &'static str)> {
    plan.steps.listed().iter().map(|step| (step.action.as_str(), step.kind)).collect()
}

#[test]
fn a_sound_log_needs_nothing_and_is_copied_event_by_event() {
    let lines = log_lines(3);
    for (name, bytes) in [("a.jsonl", text_of(&lines)), ("a.zstd", zstd_of(&lines, 5))] {
        let patient = Patient::new(name, bytes);
        let plan = patient.plan(None);
        assert!(plan.is_sound() && plan.is_lossless() && !plan.needs_branch(), "{:?}", plan.steps);
        assert_eq!(patient.mended(&plan).0, lines[1..]);
        assert_eq!(patient.names().len(), 2, "nothing is saved beside");
    }
}

#[test]
fn lossless_damage_is_undone_byte_for_byte() {
    let lines = log_lines(2);
    let (body, nuls) = (text_of(&lines), [0; 300]);
    let end_of = |i: usize| text_of(&lines[..i]).len();
    let glued: String = lines[..4].join("\n") + &lines[4] + " " + &lines[5..].join("\n") + "\n";
    let crlf = lines.iter().map(|l| format!("{l}\r\n")).collect::<String>();
    let insert = |i: usize, what: &[u8]| [&body[..end_of(i)], what, &body[end_of(i)..]].concat();
    let cases: [(&str, Vec<u8>, Told); 11] = [
        ("bom", [b"\xEF\xBB\xBF", &body[..]].concat(), &[("strip-bom", "bom")]),
        ("crlf", crlf.into_bytes(), &[("strip-carriage-returns", "crlf")]),
        ("blank", insert(4, b"\n"), &[("drop-blank", "blank-record")]),
        ("nuls before", insert(4, &nuls), &[("strip-padding", "nul-padding")]),
        ("nul tail", [&body[..], &nuls].concat(), &[("strip-padding", "nul-tail")]),
        ("no line feed", body[..body.len() - 1].to_vec(), &[("end-line", "torn-tail")]),
        ("glued", glued.into_bytes(), &[("split-line", "glued-record")]),
        ("repeated", insert(8, &text_of(&lines[6..8])), &[("drop-repeated", "seq-fork"); 2]),
        ("repeated header", insert(8, &text_of(&lines[..1])), &[("drop-repeated", "seq-fork")]),
        ("whole twice", [&body[..], &body].concat(), &[("drop-repeated", "seq-fork"); 19]),
        ("nul line", insert(5, &[&nuls[..], b"\n"].concat()), &[("strip-padding", "nul-padding")]),
    ];
    for (name, bytes, expected) in cases {
        let patient = Patient::new("log.jsonl", bytes);
        let plan = patient.plan(None);
        assert_eq!(actions(&plan), expected, "{name}");
        assert!(plan.is_lossless() && plan.summary.events_lost == 0, "{name}");
        assert_eq!((plan.summary.first_lost, plan.summary.bytes_lost), (None, 0), "{name}");
        let (events, saved) = patient.mended(&plan);
        assert_eq!((&events[..], saved.len()), (&lines[1..], 0), "{name}");
    }
}

#[test]
fn the_length_of_a_long_run_of_nuls_is_told() {
    let lines = log_lines(1);
    for (before, behind) in [(4, 3 << 20), (10, 1 << 20)] {
        let bytes =
            [text_of(&lines[..before]), vec![0; behind], text_of(&[""; 1]), text_of(&lines[before..])]
                .concat();
        let plan = Patient::new("log.jsonl", bytes).plan(None);
        assert_eq!(plan.steps.listed()[0].bytes, behind as u64);
        assert!(plan.is_lossless());
    }
}

#[test]
fn frames_of_other_tools_are_framed_anew() {
    let lines = log_lines(2);
    let text = text_of(&lines);
    let skippable = [&[0x5E, 0x2A, 0x4D, 0x18, 5, 0, 0, 0][..], b"table"].concat();
    let halves = |at: usize| [zstd_frame(&text[..at]), zstd_frame(&text[at..])].concat();
    let cases: [(&str, Vec<u8>, Told); 5] = [
        ("one frame", zstd_frame(&text), &[("reframe", "zstd-first-frame")]),
        ("header and a half", halves(130), &[("reframe", "zstd-first-frame")]),
        ("header in two", halves(20), &[("reframe", "zstd-first-frame")]),
        ("seekable", [zstd_of(&lines, 5), skippable.clone()].concat(), &[("strip-padding", "frame-magic")]),
        ("padded", [zstd_of(&lines, 5), vec![0; 4096]].concat(), &[("strip-padding", "nul-padding")]),
    ];
    for (name, bytes, expected) in cases {
        let patient = Patient::new("log.jsonl.zstd", bytes);
        let plan = patient.plan(None);
        assert_eq!(actions(&plan), expected, "{name}");
        assert!(plan.is_lossless(), "{name}");
        assert_eq!(patient.mended(&plan).0, lines[1..], "{name}");
    }
    // Padding between frames, and a record across it.
    let at = text_of(&lines[..5]).len() + 10;
    let head = text_of(&lines[..1]).len();
    let bytes = [
        zstd_frame(&text[..head]),
        zstd_frame(&text[head..at]),
        vec![0; 100],
        skippable,
        zstd_frame(&text[at..]),
    ];
    let patient = Patient::new("log.jsonl.zstd", bytes.concat());
    let plan = patient.plan(None);
    assert!(plan.is_lossless(), "{:?}", plan.steps);
    assert_eq!(patient.mended(&plan).0, lines[1..]);
}

#[test]
fn an_event_that_is_lost_cuts_all_behind_it_and_saves_what_is_whole() {
    let lines = log_lines(2);
    let without = |i: usize| text_of(&[&lines[..i], &lines[i + 1..]].concat());
    let instead =
        |i: usize, line: &str| text_of(&[&lines[..i], &[line.to_owned()], &lines[i + 1..]].concat());
    let half = &lines[9][..40];
    let unpaired = lines[9].replace("\"data\":", "\"odd\":1,\"data\":");
    // Lines are from 1, the header among them: index 9 holds seq 8, on line 10.
    let cases = [
        ("gap", without(9), "seq-gap", 9, 0),
        ("torn inside", instead(9, half), "corrupt-record", 9, 1),
        (
            "glued",
            text_of(&[&lines[..9], &[format!("{half}{}", lines[10])], &lines[11..]].concat()),
            "glued-record",
            9,
            1,
        ),
        ("refused", instead(9, &unpaired), "envelope", 9, 0),
        ("no object", instead(9, "[1]"), "not-an-event", 9, 0),
    ];
    for (name, bytes, kind, saved, unusable) in cases {
        let patient = Patient::new("log.jsonl", bytes);
        let plan = patient.plan(None);
        let first = &plan.steps.listed()[0];
        assert_eq!((first.kind, first.line, first.action.is_lossless()), (kind, Some(10), false), "{name}");
        let summary = plan.summary;
        let refused = u64::from(name == "refused");
        assert_eq!((summary.events_kept, summary.first_lost.map(|seq| seq.get())), (8, Some(8)), "{name}");
        assert_eq!(
            (summary.records_saved, summary.events_lost),
            (saved + refused, saved + refused + unusable),
            "{name}"
        );
        let (events, beside) = patient.mended(&plan);
        assert_eq!(events, lines[1..9], "{name}");
        assert!(beside.ends_with(&text_of(&lines[10..])), "{name}");
    }
}

#[test]
fn what_no_seq_needs_goes_without_a_gap() {
    let lines = log_lines(2);
    let stray = [lines[0].replace("\"id\":\"mended\"", "\"id\":\"mended\",\"cwd\":\"/x\""), "junk".into()];
    let far = lines[9].replace("\"seq\":8", "\"seq\":999");
    let bytes = text_of(&[&lines[..7], &stray[..], &[far], &lines[7..]].concat());
    let patient = Patient::new("log.jsonl", bytes);
    let plan = patient.plan(None);
    assert_eq!(actions(&plan), [("cut", "not-an-event"), ("drop", "corrupt-record"), ("cut", "seq-gap")]);
    assert_eq!(patient.mended(&plan).0, lines[1..]);
}

#[test]
fn a_torn_end_costs_what_is_torn() {
    let lines = log_lines(2);
    let text = text_of(&lines);
    let patient = Patient::new("log.jsonl", &text[..text.len() - 5]);
    let plan = patient.plan(None);
    assert_eq!(actions(&plan), [("drop", "torn-tail")]);
    assert_eq!(plan.steps.listed()[0].seq.map(|seq| seq.get()), Some(17));
    assert!(plan.summary.open_turn);
    assert_eq!(patient.mended(&plan).0, lines[1..18]);
}

#[test]
fn bytes_that_are_no_utf8_cost_themselves_only() {
    let lines = log_lines(2);
    let mut text = text_of(&lines);
    let at = text.iter().position(|&byte| byte == 0xC3).unwrap();
    text[at + 1] = b'h';
    let patient = Patient::new("log.jsonl", text);
    let plan = patient.plan(None);
    assert_eq!(actions(&plan), [("replace-bytes", "invalid-utf8")]);
    assert_eq!((plan.steps.listed()[0].offset, plan.summary.bytes_lost), (Some(at as u64), 1));
    assert!(!plan.is_lossless());
    let (events, _) = patient.mended(&plan);
    assert_eq!(events.iter().filter(|event| event.contains('\u{FFFD}')).count(), 1);
    assert_eq!(events.len(), lines.len() - 1);
}

#[test]
fn of_a_fork_a_person_chooses_the_branch() {
    let lines = log_lines(3);
    // The second writer knew one turn; its turns say other things.
    let theirs: Vec<String> = lines[10..19].iter().map(|line| line.replace("höre", "hear")).collect();
    let patient =
        Patient::new("log.jsonl", text_of(&[&lines[..], &theirs[1..], &log_lines(4)[28..]].concat()));
    let plan = patient.plan(None);
    assert!(plan.needs_branch() && !plan.is_lossless());
    let [ours, other] = &plan.branches[..] else { panic!("{:?}", plan.branches) };
    assert_eq!((ours.first_seq.get(), ours.line, ours.events), (10, Some(12), 26));
    assert_eq!((other.first_seq.get(), other.line, other.events), (10, Some(29), 8));
    assert_eq!(patient.apply_to(&plan, "new.jsonl").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(patient.names(), ["log.jsonl"]);
    let error = Repairer::default().plan(&patient.path, Some(9), &|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);

    let first = patient.plan(Some(1));
    let (events, _) = patient.mended(&first);
    assert_eq!(events, log_lines(4)[1..]);
    assert!(first.steps.listed().iter().all(|step| step.action == Action::DropBranch));
}

#[test]
fn the_second_branch_is_kept_whole_too() {
    let lines = log_lines(3);
    let theirs: Vec<String> =
        lines[10..28].iter().map(|line| line.replace("\"time\":2", "\"time\":7")).collect();
    let patient = Patient::new("log.jsonl", text_of(&[&lines[..], &theirs[..]].concat()));
    let plan = patient.plan(Some(2));
    assert_eq!((plan.branches.len(), plan.branch, plan.summary.events_kept), (2, Some(2), 27));
    assert_eq!((plan.summary.events_lost, plan.summary.first_lost.map(|s| s.get())), (18, Some(9)));
    let (events, saved) = patient.mended(&plan);
    assert_eq!(events, [&lines[1..10], &theirs].concat());
    assert_eq!(saved, text_of(&lines[10..]));
}

#[test]
fn retired_and_foreign_logs_are_refused_and_not_repaired() {
    let lines = log_lines(1);
    let legacy = |name: &str, data: &str| format!(r#"{{"type":"{name}","seq":4,"time":1,"data":{data}}}"#);
    let cases = [
        (legacy("mode/set", "{}"), "legacy-mode-set"),
        (legacy("request/header-delta", "{}"), "legacy-header-delta"),
        (legacy("request/header", r#"{"header":{},"reason":"fallback"}"#), "legacy-fallback-reason"),
        (legacy("acme/note", "{}"), "unsupported-event"),
    ];
    for (line, kind) in cases {
        // Behind a cut record, too, where no gate looks.
        let broken = if kind == "unsupported-event" { "" } else { "{\"type\":\"cut" };
        let patient = Patient::new("log.jsonl", text_of(&[&lines[..5], &[broken.into(), line]].concat()));
        let plan = patient.plan(None);
        assert_eq!(plan.refusal.as_ref().map(|refusal| refusal.kind.as_str()), Some(kind));
        assert!(!plan.is_lossless() && !plan.is_sound());
        assert!(patient.apply_to(&plan, "new.jsonl").is_err());
        assert_eq!(patient.names(), ["log.jsonl"]);
    }
    for (bytes, kind) in [
        (&b""[..], "empty"),
        (b"\n\n", "no-header"),
        (b"{\"type\":\"sess", "no-header"),
        (b"SQLite format 3\0", "sqlite-schema"),
    ] {
        let plan = Patient::new("log.jsonl", bytes).plan(None);
        assert_eq!(plan.refusal.map(|refusal| refusal.kind.as_str()), Some(kind));
    }
}

#[test]
fn a_turn_that_no_load_could_close_is_cut_as_a_whole() {
    let mut lines = log_lines(2);
    let call = r#"[{"type":"tool-call","id":"","name":"x","arguments":"{}"}]"#;
    let at = lines[16].find("[{\"type\":\"text\"").unwrap();
    let end = lines[16].find("}]").unwrap() + 2;
    lines[16].replace_range(at..end, call);
    lines.truncate(17);
    let patient = Patient::new("log.jsonl", text_of(&lines));
    let plan = patient.plan(None);
    assert_eq!((plan.summary.events_kept, plan.summary.events_lost), (9, 7));
    assert!(plan.steps.listed().iter().all(|step| step.kind == "empty-call-id"));
    let (events, saved) = patient.mended(&plan);
    assert_eq!((&events[..], saved), (&lines[1..10], text_of(&lines[10..])));
}

#[test]
fn a_source_that_changes_is_refused_and_no_name_is_taken_twice() {
    let lines = log_lines(2);
    let text = text_of(&[&lines[..9], &lines[10..]].concat());
    let patient = Patient::new("log.jsonl", &text);
    let plan = patient.plan(None);
    for taken in ["new.jsonl", "new.jsonl.cut.jsonl"] {
        fs::write(patient.dir.path().join(taken), "mine").unwrap();
        assert_eq!(patient.apply_to(&plan, "new.jsonl").unwrap_err().kind(), ErrorKind::Conflict, "{taken}");
        assert_eq!(fs::read(patient.dir.path().join(taken)).unwrap(), b"mine");
        fs::remove_file(patient.dir.path().join(taken)).unwrap();
    }
    assert_eq!(patient.apply_to(&plan, "log.jsonl").unwrap_err().kind(), ErrorKind::Conflict);
    #[cfg(unix)]
    {
        fs::hard_link(&patient.path, patient.dir.path().join("hard.jsonl")).unwrap();
        std::os::unix::fs::symlink(&patient.path, patient.dir.path().join("soft.jsonl")).unwrap();
        std::os::unix::fs::symlink("nowhere", patient.dir.path().join("dangling.jsonl")).unwrap();
        for link in ["hard.jsonl", "soft.jsonl", "dangling.jsonl"] {
            assert_eq!(patient.apply_to(&plan, link).unwrap_err().kind(), ErrorKind::Conflict, "{link}");
            fs::remove_file(patient.dir.path().join(link)).unwrap();
        }
    }
    let applied = patient.apply_to(&plan, "new.jsonl").unwrap();
    #[cfg(unix)]
    for file in [Some(&applied.out), applied.saved.as_ref()].into_iter().flatten() {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    // The same length and time, other bytes: only reading tells.
    let modified = fs::metadata(&patient.path).unwrap().modified().unwrap();
    fs::write(&patient.path, String::from_utf8(text).unwrap().replace("höre 2", "hear 2")).unwrap();
    fs::File::options().write(true).open(&patient.path).unwrap().set_modified(modified).unwrap();
    let before = patient.names();
    let again = Repairer::default().apply(&plan, &patient.dir.path().join("other.jsonl"), &|_| ());
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Locked);
    assert_eq!(patient.names(), before, "no leftovers");
    drop(applied);
}

#[test]
fn what_a_killed_repair_left_is_not_in_the_way() {
    let lines = log_lines(2);
    let patient = Patient::new("log.jsonl", text_of(&[&lines[..9], &lines[10..]].concat()));
    let plan = patient.plan(None);
    let applied = patient.apply_to(&plan, "new.jsonl").unwrap();
    let (log, saved) = (fs::read(&applied.out).unwrap(), applied.saved.unwrap());
    let cut = fs::read(&saved).unwrap();
    // Killed before the log had its name, with other files not begun to be published.
    fs::remove_file(&applied.out).unwrap();
    let leftovers = ["new.jsonl", "new.jsonl.cut.jsonl"]
        .map(|name| patient.dir.path().join(format!("{name}.00000000000a.sessionlog.tmp")));
    leftovers.iter().for_each(|path| fs::write(path, "half").unwrap());
    let again = patient.apply_to(&plan, "new.jsonl").unwrap();
    assert_eq!((fs::read(&again.out).unwrap(), fs::read(&saved).unwrap()), (log, cut.clone()));
    assert_eq!(again.saved.as_ref(), Some(&saved));
    if cfg!(target_os = "linux") {
        assert!(leftovers.iter().all(|path| !path.exists()));
    }
    // The beginning of it, or more than it, is a file of somebody else.
    fs::remove_file(&again.out).unwrap();
    for other in [&cut[..cut.len() - 1], &[&cut[..], b"\n"].concat(), b""] {
        fs::write(&saved, other).unwrap();
        assert_eq!(patient.apply_to(&plan, "new.jsonl").unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(fs::read(&saved).unwrap(), other);
        assert!(!again.out.exists());
    }
}

#[test]
fn the_format_follows_the_name_of_the_new_file() {
    let lines = log_lines(2);
    let patient = Patient::new("log.jsonl", text_of(&lines));
    let plan = patient.plan(None);
    for (name, magic) in [("a.jsonl.zstd", true), ("b.jsonl", false), ("c", false)] {
        let applied = patient.apply_to(&plan, name).unwrap();
        assert_eq!(fs::read(applied.out).unwrap().starts_with(&[0x28, 0xB5, 0x2F, 0xFD]), magic, "{name}");
    }
    // Rows stay rows, single events single events.
    let mut packed = Vec::new();
    let header = plan.header.clone().unwrap();
    let mut writer = JsonlWriter::new(&mut packed, JsonlFormat::Plain, true, &header).unwrap();
    let mut source = Lines::new(&patient.bytes[..]);
    judge(&mut source, &JudgeOptions::default(), &mut |event| writer.event(event.event())).unwrap();
    writer.finish().unwrap();
    assert!(packed.windows(11).any(|w| w == b"text-chunks"));
    let patient = Patient::new("log.jsonl", [&packed[..], b"\n"].concat());
    let applied = patient.apply_to(&patient.plan(None), "new.jsonl").unwrap();
    assert_eq!(fs::read(applied.out).unwrap(), packed);
}

/// Seeded numbers below a bound.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % bound as u64).unwrap()
    }
}

/// One seeded damage to a plain log.
fn damage(text: &mut Vec<u8>, dice: &mut Dice) {
    let at = dice.below(text.len());
    let end_of_line = |text: &[u8]| at + text[at..].iter().position(|&b| b == b'\n').unwrap_or(0);
    match dice.below(8) {
        0 => text.truncate(at.max(1)),
        1 => drop(text.splice(at..at, vec![0; 1 + dice.below(40)])),
        2 => {
            let end = end_of_line(text);
            let line = text[..end].iter().rposition(|&b| b == b'\n').map_or(0, |start| start + 1)
                ..(end + 1).min(text.len());
            let copy = text[line.clone()].to_vec();
            text.splice(line.end..line.end, copy);
        }
        3 => {
            let end = end_of_line(text);
            text.remove(end.min(text.len() - 1));
        }
        4 => drop(text.splice(0..0, *b"\xEF\xBB\xBF")),
        5 => drop(text.splice(end_of_line(text)..end_of_line(text), *b"\r")),
        6 => drop(text.splice(at..at, *b"\n")),
        _ => text[at] ^= 1 << dice.below(8),
    }
}

#[test]
fn whatever_happens_to_a_plain_log_what_is_kept_is_a_true_beginning() {
    let lines = log_lines(3);
    for seed in 0..600 {
        let mut dice = Dice(seed);
        let mut text = text_of(&lines);
        let hits = 1 + dice.below(3);
        (0..hits).for_each(|_| damage(&mut text, &mut dice));
        check_damaged("log.jsonl", &text, &lines, seed);
    }
}

#[test]
fn whatever_happens_to_a_zstd_log_what_is_kept_is_a_true_beginning() {
    let lines = log_lines(4);
    let whole = zstd_of(&lines, 6);
    for seed in 0..600 {
        let mut dice = Dice(seed);
        let mut file = whole.clone();
        let at = dice.below(file.len());
        match dice.below(4) {
            0 => file.truncate(at),
            1 => drop(file.splice(at..at, vec![0; 1 + dice.below(9)])),
            2 => drop(file.drain(at..(at + 1 + dice.below(30)).min(file.len()))),
            _ => file[at] ^= 1 << dice.below(8),
        }
        check_damaged("log.jsonl.zstd", &file, &lines, seed);
    }
}

/// Plans and applies; flips inside a value go unseen, so an event may differ from the original where it was hit.
fn check_damaged(name: &str, bytes: &[u8], lines: &[String], seed: u64) {
    let patient = Patient::new(name, bytes);
    let plan = patient.plan(None);
    if plan.refusal.is_some() {
        assert!(patient.apply_to(&plan, "never").is_err());
        return;
    }
    let plan = if plan.needs_branch() { patient.plan(Some(plan.branches.len())) } else { plan };
    if plan.refusal.is_some() {
        return;
    }
    let (events, _) = patient.mended(&plan);
    let differing = events.iter().zip(&lines[1..]).filter(|(event, line)| event != line).count();
    assert!(events.len() < lines.len() && differing <= 3, "seed {seed}: {:?}", plan.steps);
    if name.ends_with("zstd") {
        assert_eq!(differing, 0, "seed {seed}: frames have checksums");
    }
    if plan.is_lossless() && differing == 0 {
        assert!(plan.summary.events_lost == 0, "seed {seed}");
    }
}

#[test]
fn frames_behind_a_damaged_one_are_saved() {
    let lines = log_lines(4);
    let whole = zstd_of(&lines, 6);
    let second = zstd_of(&lines[..7], 6).len();
    // A flipped bit in the content: the frame is lost, what follows is saved beside.
    let mut file = whole.clone();
    file[second + 40] ^= 1;
    let patient = Patient::new("log.zstd", &file);
    let plan = patient.plan(None);
    assert_eq!((plan.summary.events_kept, plan.summary.records_saved), (6, 24), "{:?}", plan.steps);
    let first = &plan.steps.listed()[0];
    assert_eq!((first.frame, first.offset, first.action), (Some(3), Some(second as u64), Action::Drop));
    assert_eq!(patient.mended(&plan).1, text_of(&lines[13..]));
    // A frame that was cut, and others written behind it.
    let third = zstd_of(&lines[..13], 6).len();
    let file = [&whole[..third - 7], &whole[third..]].concat();
    let patient = Patient::new("log.zstd", &file);
    let plan = patient.plan(None);
    let first = &plan.steps.listed()[0];
    assert_eq!((first.frame, first.offset, first.kind), (Some(3), Some(second as u64), "torn-frame"));
    assert!(plan.summary.events_kept >= 6 && plan.summary.records_saved >= 24, "{:?}", plan.steps);
    assert!(patient.mended(&plan).1.ends_with(&text_of(&lines[13..])));
}

/// Cases of the bug reports whose log is not one to repair, and why.
const NOT_REPAIRED: [(&str, &str); 7] = [
    ("07-", "empty"),
    ("10-", "no-header"),
    ("22-", "unsupported-event"),
    ("24-", "newer-format"),
    ("35c", "header"),
    ("37b", "header"),
    ("44c", "header"),
];

#[test]
fn every_case_of_the_bug_reports_is_repaired_or_refused_by_name() {
    let Some(root) = shared() else { return };
    let mut paths: Vec<_> = fs::read_dir(root.join("cases")).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "jsonl"));
    paths.sort();
    assert!(paths.len() > 30);
    for path in paths {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let expected = fs::read_to_string(path.with_extension("expect.txt")).unwrap();
        let patient = Patient::new("log.jsonl", fs::read(&path).unwrap());
        let plan = patient.plan(None);
        let kind = plan.refusal.as_ref().map(|refusal| refusal.kind.as_str());
        let unrepaired = NOT_REPAIRED.iter().find(|(number, _)| name.starts_with(number));
        assert_eq!(kind, unrepaired.map(|(_, kind)| *kind), "{name}");
        if kind.is_some() {
            continue;
        }
        let last = plan.branches.len();
        let plan = if plan.needs_branch() { patient.plan(Some(last)) } else { plan };
        let (events, _) = patient.mended(&plan);
        if expected.starts_with("ACCEPT") {
            assert!(plan.is_lossless(), "{name}: {:?}", plan.steps);
        }
        assert!(!events.is_empty() || name.starts_with("08-"), "{name}");
    }
}

#[test]
fn the_cases_lose_what_they_must_and_no_more() {
    let Some(root) = shared() else { return };
    let cases: [(&str, Told, u64, u64); 8] = [
        ("01-torn-tail-no-newline", &[("drop", "torn-tail")], 7, 1),
        ("05-nul-tail", &[("strip-padding", "nul-tail")], 12, 0),
        ("27-bom", &[("strip-bom", "bom")], 6, 0),
        ("33-blank-line", &[("drop-blank", "blank-record")], 12, 0),
        ("32-crlf", &[("strip-carriage-returns", "crlf")], 6, 0),
        ("53-last-record-without-newline", &[("end-line", "torn-tail")], 12, 0),
        ("28-invalid-utf8-mid", &[("replace-bytes", "invalid-utf8")], 12, 0),
        ("15-seq-gap-open-tail", &[("cut", "seq-gap"); 3], 8, 3),
    ];
    for (name, steps, kept, lost) in cases {
        let path = root.join("cases").join(name).with_extension("jsonl");
        let plan = Repairer::default().plan(&path, None, &|_| ()).unwrap();
        let told = (actions(&plan), plan.summary.events_kept, plan.summary.events_lost);
        assert_eq!(told, (steps.to_vec(), kept, lost), "{name}");
    }
}

#[test]
fn a_repaired_log_is_imported() {
    let lines = log_lines(2);
    let patient = Patient::new("log.jsonl", text_of(&[&lines[..9], &lines[10..]].concat()));
    let applied = patient.apply_to(&patient.plan(None), "new.jsonl").unwrap();
    let store = crate::support::memory_store();
    let importer = Importer::new(JudgeOptions::default());
    let sources = importer.plan(&[applied.out]).sources;
    let report = importer.import(&store, &sources[0], &|_| ()).unwrap();
    assert_eq!((report.judgement.verdict(), report.added), (Verdict::Repair, 8));
}
