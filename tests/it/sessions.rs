//! Sessions over a store: what a persistence layer of agent sessions must do (spec section 17.1), and what this one adds.
//! All of it holds wherever the events lie.

use std::sync::Arc;

use sessionlog::event::{Admitted, SessionHeader, SessionState};
use sessionlog::projection::Projection;
use sessionlog::storage::MemoryStorage;
use sessionlog::{
    AppendOptions, Cancel, Draft, Durability, ErrorKind, Seq, SessionCondition, Store, Submission,
    VerifyOptions,
};

use crate::support::{Shaped, in_every_shape, lines, memory_store, open, options};

fn store(storage: &MemoryStorage) -> Store {
    open(Arc::new(storage.clone()))
}

fn header(id: &str) -> SessionHeader {
    SessionHeader::new(id, 5)
}

fn user(n: u64) -> Draft<'static> {
    let data = format!(
        r#"{{"id":"u{n}","role":"user","content":[{{"type":"text","text":"hello {n}"}}],"source":{{"kind":"user"}}}}"#
    );
    Draft::new("user/message", data).on_surface()
}

/// A turn that was cut after an assistant message that asks for `calls`, of which the `started` first were begun.
fn cut_turn(calls: &[&str], started: usize) -> Vec<Draft<'static>> {
    let blocks: Vec<_> = calls
        .iter()
        .map(|id| format!(r#"{{"type":"tool-call","id":"{id}","name":"bash","arguments":"{{}}"}}"#))
        .collect();
    let message = format!(
        r#"{{"turn":1,"step":1,"message":{{"id":"a1","role":"assistant","content":[{}],"source":{{"kind":"model","provider":"p","model":"m"}}}}}}"#,
        blocks.join(",")
    );
    let mut events = vec![
        Draft::new("turn/start", r#"{"turn":1}"#),
        user(1),
        Draft::new("step/start", r#"{"turn":1,"step":1}"#),
        Draft::new("assistant/message", message).on_surface(),
    ];
    events.extend(calls[..started].iter().map(|id| {
        Draft::new(
            "tool/call",
            format!(r#"{{"turn":1,"step":1,"callId":"{id}","name":"bash","arguments":"{{}}"}}"#),
        )
    }));
    events
}

in_every_shape! {
    what_was_created_and_appended_is_loaded_again,
    an_interrupted_turn_is_closed_by_resume_and_by_nothing_else,
    calls_that_were_not_started_get_a_result_that_says_so,
    calls_that_were_started_get_a_result_that_cites_them_and_advises,
    reads_through_a_cancelled_handle_end_with_exactly_the_reason,
    ranges_serve_suffixes_as_stored,
    revisions_stand_still_between_changes,
    stored_seqs_are_not_appended_again,
    a_gap_in_front_of_or_inside_a_batch_is_refused,
    data_that_is_not_lossless_json_is_rejected,
    a_fork_shares_its_prefix_and_survives_its_parent,
    registered_types_are_known_to_whoever_opens_the_store,
    any_earlier_request_is_rebuilt_as_it_was,
    a_reader_follows_a_writer_and_writes_nothing,
    a_fork_without_events_of_its_own_keeps_its_last_time,
    a_fork_has_its_own_messages_where_its_parent_went_on,
    no_fork_begins_where_there_is_no_event,
    submitted_batches_state_what_they_expect_and_stand_for_themselves,
    a_host_feeds_its_own_projection_with_what_is_stored,
    a_closed_store_is_read_and_not_written_to,
}

fn what_was_created_and_appended_is_loaded_again(case: &mut Shaped) {
    let mut meta = header("s");
    meta.cwd = Some("/srv".into());
    let written = lines(&case.write_as(meta.clone(), &cut_turn(&["c"], 1)));
    case.reopen();
    let session = case.store.session("s").unwrap();
    assert_eq!(session.header(), &SessionHeader { delegation_depth: Some(0), ..meta });
    assert_eq!(lines(&session), written);
    assert_eq!(written.len(), 5);
    assert_eq!(session.surface().unwrap(), [Seq::new(1), Seq::new(3)]);
    assert_eq!(session.durable_seq(), Seq::new(5));
}

#[test]
fn a_malformed_header_is_rejected_and_leaves_the_id_free() {
    let store = memory_store();
    let refused = store.create_session(SessionHeader::new("s", -1)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Rejected);
    let session = store.create_session(header("s")).unwrap();
    session.append(&[user(1)], AppendOptions::default()).unwrap().wait().unwrap();
    assert_eq!(store.session("s").unwrap().next_seq().unwrap(), Seq::new(1));
}

fn an_interrupted_turn_is_closed_by_resume_and_by_nothing_else(case: &mut Shaped) {
    let session = case.write("s", &cut_turn(&[], 0));
    let store = &case.store;
    let revision = session.revision().unwrap();
    assert_eq!(store.list().unwrap()[0].condition, SessionCondition::OpenTurn);
    assert_eq!(session.with_state(|state| state.closers().unwrap().len()).unwrap(), 2);
    assert_eq!(session.revision().unwrap(), revision, "looking changes nothing");
    let resumed = store.resume("s").unwrap();
    assert_ne!(resumed.revision().unwrap(), revision);
    let stored = lines(&resumed);
    assert_eq!(stored.len(), 6);
    assert!(
        stored[4].contains(r#""type":"step/end","seq":4"#) && stored[5].contains(r#""kind":"interrupted""#)
    );
    assert_eq!(store.resume("s").unwrap().next_seq().unwrap(), Seq::new(6), "a closed turn needs no closers");
    resumed.append(&[user(2)], AppendOptions::default()).unwrap().wait().unwrap();
    assert_eq!(lines(&store.session("s").unwrap()).len(), 7);
}

fn calls_that_were_not_started_get_a_result_that_says_so(case: &mut Shaped) {
    case.write("s", &cut_turn(&["c1"], 0));
    let events = lines(&case.store.resume("s").unwrap());
    assert!(
        events[4].contains(r#""callId":"c1""#) && events[4].contains(r#""code":"TOOL_NOT_STARTED""#),
        "{}",
        events[4]
    );
    assert!(events[4].contains(r#""isError":true"#) && !events[4].contains("sourceEventSeqs"));
    assert!(events[5].contains("step/end") && events[6].contains("turn/end"));
}

fn calls_that_were_started_get_a_result_that_cites_them_and_advises(case: &mut Shaped) {
    case.write("s", &cut_turn(&["c1"], 1));
    let resumed = case.store.resume("s").unwrap();
    let result = &lines(&resumed)[5];
    assert!(
        result.contains(r#""error":{"name":"ToolOutcomeUnknownError","code":"TOOL_OUTCOME_UNKNOWN"}"#),
        "{result}"
    );
    assert!(result.contains(r#""sourceEventSeqs":[4]"#));
    assert!(result.contains("retry only if the operation is read-only or idempotent"));
    assert!(result.contains("if it may have side effects, first verify external state or ask the user"));
    let messages = resumed.request().unwrap().messages;
    assert_eq!(messages.len(), 3);
    assert!(
        messages[2].starts_with(r#"{"id":"interrupted-tool-result-c1-5","role":"user""#),
        "{}",
        messages[2]
    );
}

#[test]
fn sessions_that_were_never_appended_to_are_not_listed() {
    let storage = MemoryStorage::new();
    let store = store(&storage);
    let session = store.create_session(header("s")).unwrap();
    assert!(store.list().unwrap().is_empty());
    assert_eq!(store.session("s").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(store.create_session(header("s")).unwrap_err().kind(), ErrorKind::Conflict);
    drop(session);
    let again = store.create_session(header("s")).unwrap();
    again.append(&[user(1)], AppendOptions::default()).unwrap().wait().unwrap();
    assert_eq!(store.list().unwrap().len(), 1);
}

fn reads_through_a_cancelled_handle_end_with_exactly_the_reason(case: &mut Shaped) {
    case.write("s", &[user(1)]);
    let store = &case.store;
    let cancel = Cancel::new();
    let handle = store.cancellable(&cancel);
    assert_eq!(handle.list().unwrap().len(), 1);
    let session = handle.session("s").unwrap();
    cancel.cancel("the host shuts down");
    let failures = [
        handle.list().unwrap_err(),
        handle.session("s").unwrap_err(),
        session.event(Seq::new(0)).unwrap_err(),
        session.with_state(|_| ()).unwrap_err(),
    ];
    for failure in failures {
        assert_eq!((failure.kind(), failure.message()), (ErrorKind::Cancelled, "the host shuts down"));
    }
    assert_eq!(store.list().unwrap().len(), 1, "other handles go on");
}

fn ranges_serve_suffixes_as_stored(case: &mut Shaped) {
    cut_turn(&["c"], 1).chunks(2).for_each(|part| drop(case.write("s", part)));
    let session = case.store.session("s").unwrap();
    let seqs = |from, to| -> Vec<u64> {
        session.events(Seq::new(from)..Seq::new(to)).unwrap().map(|event| event.unwrap().seq.get()).collect()
    };
    assert_eq!(seqs(0, u64::MAX), [0, 1, 2, 3, 4], "an interrupted tail is served without closers");
    assert_eq!(seqs(3, 99), [3, 4]);
    assert_eq!(seqs(1, 2), [1]);
    assert_eq!(seqs(5, 9), Vec::<u64>::new());
    assert_eq!(case.store.session("absent").unwrap_err().kind(), ErrorKind::NotFound);
}

fn revisions_stand_still_between_changes(case: &mut Shaped) {
    case.write("s", &[user(1)]);
    let first = case.store.list().unwrap()[0].revision;
    assert_eq!(case.store.list().unwrap()[0].revision, first);
    let session = case.write("s", &[user(2)]);
    let second = case.store.list().unwrap()[0].revision;
    assert_ne!(first, second);
    assert_eq!(session.revision().unwrap(), second);
}

fn stored_seqs_are_not_appended_again(case: &mut Shaped) {
    let at = |seq| AppendOptions { expected: Some(Seq::new(seq)), durability: Durability::Synced };
    let session = case.write("s", &[user(0), user(1)]);
    let same = session.append(&[user(0), user(1)], at(0)).unwrap();
    assert!(same.already_stored);
    same.wait().unwrap();
    let other_time = session.append(&[user(0).at_time(9)], at(0)).unwrap_err();
    let other_event = session.append(&[user(0), user(7)], at(0)).unwrap_err();
    let beyond = session.append(&[user(1), user(2)], at(1)).unwrap_err();
    for conflict in [&other_time, &other_event, &beyond] {
        assert_eq!(conflict.kind(), ErrorKind::Conflict, "{conflict}");
    }
    assert_eq!(session.next_seq().unwrap(), Seq::new(2));
}

fn a_gap_in_front_of_or_inside_a_batch_is_refused(case: &mut Shaped) {
    let session = case.write("s", &[user(0)]);
    let gap = AppendOptions { expected: Some(Seq::new(2)), durability: Durability::Synced };
    assert_eq!(session.append(&[user(1)], gap).unwrap_err().kind(), ErrorKind::Conflict);
    let bad = user(2).replacing(Seq::new(5), Seq::new(5));
    let refused = session.append(&[user(1), bad], AppendOptions::default()).unwrap_err();
    assert_eq!((refused.kind(), refused.seq()), (ErrorKind::Rejected, Some(Seq::new(2))));
    assert_eq!(session.next_seq().unwrap(), Seq::new(1), "nothing of a refused batch is stored");
    let session = case.write("s", &[user(1)]);
    assert_eq!(session.surface().unwrap(), [Seq::new(0), Seq::new(1)]);
}

fn data_that_is_not_lossless_json_is_rejected(case: &mut Shaped) {
    let session = case.write("s", &[user(0)]);
    for data in
        ["", "{", "undefined", "NaN", "Infinity", "1e400", "-0", "[1,-0.0]", "{\"a\":1}}", "\u{1}", "'x'"]
    {
        let refused =
            session.append(&[Draft::new("todo/write", data)], AppendOptions::default()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Rejected, "{data}: {refused}");
    }
    assert_eq!(session.next_seq().unwrap(), Seq::new(1));
}

fn a_fork_shares_its_prefix_and_survives_its_parent(case: &mut Shaped) {
    let title = Draft::new("session/title", r#"{"title":"Old"}"#);
    case.write("parent", &[user(0), user(1), title, user(2)]);
    let child = case.store.fork("parent", Some(Seq::new(2)), "child").unwrap();
    assert_eq!(child.header().seed_length, Some(3));
    let child = case.write("child", &[user(9)]);
    let store = &case.store;
    let parent = store.session("parent").unwrap();
    let grandchild = store.fork("child", None, "grandchild").unwrap();
    assert_eq!(grandchild.surface().unwrap(), child.surface().unwrap());
    assert_eq!(store.fork("parent", Some(Seq::new(4)), "x").unwrap_err().kind(), ErrorKind::Invalid);
    store.remove("parent").unwrap();
    assert_eq!(parent.next_seq().unwrap_err().kind(), ErrorKind::NotFound);
    case.settle();
    case.reopen();
    let store = &case.store;
    assert_eq!(store.session("parent").unwrap_err().kind(), ErrorKind::NotFound);
    let child = store.session("child").unwrap();
    let events = lines(&child);
    assert_eq!(events.len(), 5);
    assert!(events[3].contains("session/end-seed") && events[4].contains("hello 9"));
    assert_eq!(child.surface().unwrap(), [0, 1, 4].map(Seq::new));
    let listed = store.list().unwrap();
    let info = listed.iter().find(|info| info.header.id == "grandchild").unwrap();
    assert_eq!((info.title.as_deref(), info.events), (Some("Old"), 6));
    let bytes: u64 =
        lines(&store.session("grandchild").unwrap()).iter().map(|line| line.len() as u64 + 1).sum();
    assert_eq!(info.bytes, bytes);
    // The removed id is free again, for another session.
    let again = store.create_session(header("parent")).unwrap();
    again.append(&[user(5)], AppendOptions::default()).unwrap().wait().unwrap();
    assert_eq!(lines(&store.session("child").unwrap()), events);
}

fn registered_types_are_known_to_whoever_opens_the_store(case: &mut Shaped) {
    let event = || [Draft::new("acme/metric", "1")];
    let session = case.write("s", &[user(0)]);
    assert_eq!(
        session.append(&event(), AppendOptions::default()).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    case.store.register_type("acme/metric").unwrap();
    case.write("s", &event());
    assert_eq!(case.store.register_type("turn/start").unwrap_err().kind(), ErrorKind::Invalid);
    case.reopen();
    let session = case.store.session("s").unwrap();
    assert_eq!(session.with_state(|state| state.last_time()).unwrap(), Some(1_000));
    session.append(&event(), AppendOptions::default()).unwrap().wait().unwrap();
    assert_eq!(lines(&session).len(), 3);
}

fn any_earlier_request_is_rebuilt_as_it_was(case: &mut Shaped) {
    let snapshot = |system: &str, reason: &str| {
        let data = format!(
            r#"{{"header":{{"config":{{"provider":"p","model":"m"}},"system":"{system}"}},"reason":"{reason}"}}"#
        );
        Draft::new("request/header", data)
    };
    let summary = user(5).replacing(Seq::new(0), Seq::new(1)).with_sources(vec![Seq::new(0), Seq::new(1)]);
    let events = [user(0), user(1), snapshot("one", "initial"), summary, snapshot("two", "change"), user(6)];
    let session = case.write("s", &events);
    let then = session.request_at(Seq::new(2)).unwrap();
    assert_eq!(then.surface, [Seq::new(0), Seq::new(1)]);
    assert_eq!(then.header.unwrap().text(), r#"{"config":{"provider":"p","model":"m"},"system":"one"}"#);
    assert_eq!((then.header_seq, then.reason.as_deref()), (Some(Seq::new(2)), Some("initial")));
    let now = session.request().unwrap();
    assert_eq!(now.surface, [Seq::new(3), Seq::new(5)]);
    assert!(now.messages[0].contains("u5") && now.messages[1].contains("u6"));
    assert_eq!(session.replace_generation().unwrap(), 1);
    let headers = session.headers().unwrap();
    assert_eq!(
        headers.iter().map(|h| h.changed.clone()).collect::<Vec<_>>(),
        [vec!["config", "system"], vec!["system"]]
    );
    assert_ne!(headers[0].hash, headers[1].hash);
    assert!(session.request_at(Seq::new(1)).unwrap().header.is_none());
}

fn a_reader_follows_a_writer_and_writes_nothing(case: &mut Shaped) {
    case.write("s", &[user(0)]);
    let reader = options().open_storage_read_only(Arc::new(case.storage.clone())).unwrap();
    let seen = reader.session("s").unwrap();
    assert_eq!(seen.surface().unwrap().len(), 1);
    case.write("s", &[user(1)]);
    case.write("t", &[user(0)]);
    assert_eq!(seen.surface().unwrap().len(), 1, "as of the last refresh");
    reader.refresh().unwrap();
    assert_eq!(seen.surface().unwrap().len(), 2);
    assert_eq!(reader.list().unwrap().len(), 2);
    assert_eq!(seen.append(&[user(2)], AppendOptions::default()).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(options().open_storage(Arc::new(case.storage.clone())).unwrap_err().kind(), ErrorKind::Locked);
}

fn a_fork_without_events_of_its_own_keeps_its_last_time(case: &mut Shaped) {
    let listed = |store: &Store| {
        let all = store.list().unwrap();
        all.into_iter().find(|info| info.header.id == "child").unwrap()
    };
    let seed = [user(0).at_time(77), Draft::new("session/end-seed", "{}").at_time(99)];
    case.store.seed_session(header("parent"), &seed).unwrap();
    case.settle();
    case.store.fork("parent", None, "child").unwrap();
    let before = listed(&case.store);
    case.settle();
    case.reopen();
    assert_eq!(before.last_time, Some(99));
    let after = listed(&case.store);
    assert_eq!((after.last_time, after.bytes, after.revision), (Some(99), before.bytes, before.revision));
}

/// The parent's events behind the shared ones lie in one frame, or in one unit, with them.
fn a_fork_has_its_own_messages_where_its_parent_went_on(case: &mut Shaped) {
    case.write("parent", &[user(0), user(1), Draft::new("todo/write", "1"), user(3)]);
    case.store.fork("parent", Some(Seq::new(0)), "child").unwrap();
    case.write("child", &[user(7), user(8)]);
    case.store.fork("child", Some(Seq::new(2)), "grandchild").unwrap();
    case.write("grandchild", &[user(9), user(10)]);
    for (id, expected) in [("child", &["u0", "u7", "u8"][..]), ("grandchild", &["u0", "u7", "u9", "u10"])] {
        let messages = case.store.session(id).unwrap().request().unwrap().messages;
        let is_told = |(message, id): (&String, &&str)| message.contains(&format!(r#""id":"{id}""#));
        assert!(
            messages.len() == expected.len() && messages.iter().zip(expected).all(is_told),
            "{messages:?}"
        );
    }
}

fn no_fork_begins_where_there_is_no_event(case: &mut Shaped) {
    case.store.seed_session(header("parent"), &[user(0)]).unwrap();
    case.settle();
    for at in [2, u64::MAX - 1, u64::MAX] {
        let refused = case.store.fork("parent", Some(Seq::new(at)), "child").unwrap_err();
        assert_eq!((refused.kind(), refused.seq()), (ErrorKind::Invalid, Some(Seq::new(at))));
    }
}

fn submitted_batches_state_what_they_expect_and_stand_for_themselves(case: &mut Shaped) {
    case.write("a", &[user(0)]);
    case.write("b", &[user(0)]);
    let store = &case.store;
    let (a, b) = (store.session("a").unwrap(), store.session("b").unwrap());
    let drafts = [user(1)];
    let at = |session, seq| Submission { session, drafts: &drafts, expected: Some(Seq::new(seq)) };
    let outcomes = store.submit(&[at(&a, 1), at(&b, 2), at(&a, 1)], Durability::Synced);
    let [stored, refused, again] = <[_; 3]>::try_from(outcomes).unwrap();
    stored.unwrap().wait().unwrap();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
    assert!(again.unwrap().already_stored);
    assert_eq!((a.next_seq().unwrap(), b.next_seq().unwrap()), (Seq::new(2), Seq::new(1)));
}

fn a_host_feeds_its_own_projection_with_what_is_stored(case: &mut Shaped) {
    struct Turns(Vec<Seq>);
    impl Projection for Turns {
        fn apply(&mut self, event: &Admitted<'_>) {
            if event.event().type_name == "turn/start" {
                self.0.push(event.event().seq);
            }
        }
    }
    let turn = |n: u64| {
        let start = Draft::new("turn/start", format!(r#"{{"turn":{n}}}"#));
        [start, Draft::new("turn/end", format!(r#"{{"turn":{n},"reason":{{"kind":"completed"}}}}"#))]
    };
    case.write("s", &turn(1));
    let session = case.write("s", &turn(2));
    let mut turns = Turns(Vec::new());
    session.project(&mut turns).unwrap();
    assert_eq!(turns.0, [Seq::new(0), Seq::new(2)]);
}

fn a_closed_store_is_read_and_not_written_to(case: &mut Shaped) {
    let session = case.write("s", &[user(0)]);
    let store = &case.store;
    assert_eq!(session.surface().unwrap().len(), 1);
    store.clone().close().unwrap();
    let refused = [
        store.create_session(header("t")).map(|_| ()),
        session.append(&[user(1)], AppendOptions::default()).map(|_| ()),
        store.remove("s"),
        store.register_type("acme/x"),
        store.flush(),
        store.maintain(),
        store.compact().map(|_| ()),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Closed);
    }
    assert_eq!(store.list().unwrap().len(), 1);
    assert_eq!(
        session.with_state(|state| state.next_seq()).unwrap(),
        Seq::new(1),
        "no event that was refused"
    );
    assert_eq!(session.surface().unwrap(), [Seq::new(0)]);
}

/// As the README has it.
#[test]
fn the_first_example_runs_as_often_as_one_likes() {
    let dir = tempfile::tempdir().unwrap();
    for turn in 1..=3 {
        let store = Store::open(dir.path().join("agent-sessions")).unwrap();
        let session = match store.resume("session-1") {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                store.create_session(SessionHeader::new("session-1", 1_767_225_600_000)).unwrap()
            }
            resumed => resumed.unwrap(),
        };
        assert_eq!(session.next_seq().unwrap().get() / 3 + 1, turn);
        let message = format!(
            r#"{{"id":"m{turn}","role":"user","content":[{{"type":"text","text":"hello"}}],"source":{{"kind":"user"}}}}"#
        );
        let start = Draft::new("turn/start", format!(r#"{{"turn":{turn}}}"#));
        let batch = [start, Draft::new("user/message", message.as_str()).on_surface()];
        session.append(&batch, AppendOptions::default()).unwrap().wait().unwrap();
        assert_eq!(session.request().unwrap().messages.last(), Some(&message));
        let strict = VerifyOptions { strict: true, ..VerifyOptions::default() };
        assert!(store.verify(strict, &mut |_, _| ()).unwrap().findings.is_empty());
        store.close().unwrap();
    }
}
