//! What a host's subscriber is told, under the feature `tracing`.

use std::cell::RefCell;
use std::fmt;
use std::sync::Once;

use sessionlog::event::SessionHeader;
use sessionlog::storage::MemoryStorage;
use sessionlog::storage::fault::{Fault, FaultPlan, FaultStorage};
use sessionlog::{AppendOptions, Draft, Store};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::sealing::{fill, small};

thread_local! {
    /// Level, message and fields of each event of this thread.
    static TOLD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The subscriber of the whole process: one that comes and goes would race with the tests beside.
struct Collector;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "sessionlog"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        TOLD.with_borrow_mut(|told| told.push(line.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// What `work` makes the engine tell on this thread.
fn told(work: impl FnOnce()) -> Vec<String> {
    static SUBSCRIBED: Once = Once::new();
    SUBSCRIBED.call_once(|| tracing::subscriber::set_global_default(Collector).unwrap());
    TOLD.take();
    work();
    TOLD.take()
}

fn create(store: &Store) -> sessionlog::Session {
    store.create_session(SessionHeader::new("s", 5)).unwrap()
}

#[test]
fn a_host_is_told_of_commits_sealing_and_checkpoints() {
    let told = told(|| {
        let store = small(&MemoryStorage::new());
        fill(&create(&store), 4, 1);
        store.compact().unwrap();
    });
    for expected in [
        "INFO message=store opened sessions=0 frames=0 damaged_places=0",
        "DEBUG message=segment begun",
        "TRACE message=group written batches=1",
        "TRACE message=log synced nanos=",
        "DEBUG message=segments sealed file=\"0000000000000001-",
        "DEBUG message=checkpoints written number=1 sessions=1",
    ] {
        assert!(told.iter().any(|line| line.starts_with(expected)), "{expected}: {told:#?}");
    }
    let failures: Vec<_> = told.iter().filter(|l| l.starts_with("WARN") || l.starts_with("ERROR")).collect();
    assert_eq!(failures, Vec::<&String>::new());
}

#[test]
fn a_host_is_told_of_failures() {
    let storage = FaultStorage::new(1);
    let store = small(&storage);
    let session = create(&store);
    fill(&session, 1, 1);
    let told = told(|| {
        storage.set_plan(FaultPlan::new().fail(storage.counters().operations, Fault::Io));
        let draft = Draft::new("todo/write", "1");
        session.append(&[draft], AppendOptions::default()).unwrap().wait().unwrap_err();
    });
    let errors: Vec<_> = told.iter().filter(|line| line.starts_with("ERROR")).collect();
    assert_eq!(errors.len(), 1, "{told:#?}");
    assert!(errors[0].starts_with("ERROR message=log closed by a failure error="), "{errors:?}");
}
