//! Sealing that the store does by itself: beside appends and reads, gone when the store is, and never in anybody's way.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;

use sessionlog::event::SessionHeader;
use sessionlog::limits::{CHECKPOINT_LIVE_LAG_EVENTS, SEGMENT_BYTES_MAX};
use sessionlog::storage::{
    Access, DiskStorage, LockHolder, MemoryStorage, Storage, StorageFile, StorageLock,
};
use sessionlog::{
    AppendOptions, Draft, Durability, ErrorKind, Seq, Session, Store, StoreOptions, VerifyOptions,
};

use crate::checkpoints::run_ahead;
use crate::history::{Random, small_segments};
use crate::sealing::names;
use crate::support::lines;

fn sealing() -> StoreOptions {
    small_segments().background(true)
}

fn session(store: &Store, id: &str) -> Session {
    store.session(id).or_else(|_| store.create_session(SessionHeader::new(id, 5))).unwrap()
}

fn note(text: &str) -> Draft<'static> {
    Draft::new("todo/write", format!("\"{text}\"")).at_time(7)
}

/// Appends until a segment has ended.
fn fill(session: &Session) {
    let large = "x".repeat(30_000);
    for _ in 0..4 {
        session.append(&[note(&large)], AppendOptions::default()).unwrap().wait().unwrap();
    }
}

fn has_sealed(storage: &impl Storage) -> bool {
    names(storage).iter().any(|name| name.ends_with(".sealed"))
}

/// Waits for the thread without asking it anything.
fn until(reached: impl Fn() -> bool) {
    while !reached() {
        thread::yield_now();
    }
}

#[test]
fn a_segment_that_has_ended_is_sealed_without_a_caller() {
    let storage = MemoryStorage::new();
    let store = sealing().open_storage(Arc::new(storage.clone())).unwrap();
    let own = session(&store, "s");
    fill(&own);
    let before = lines(&own);
    until(|| has_sealed(&storage) && store.metrics().unwrap().unsealed_segments == 0);
    assert_eq!(lines(&own), before);
    assert_eq!(store.metrics().unwrap().upkeep_failure, None);
    store.maintain().unwrap();
}

#[test]
fn what_waits_for_being_sealed_is_counted() {
    for options in [small_segments(), sealing().sealing(false)] {
        let storage = MemoryStorage::new();
        let store = options.open_storage(Arc::new(storage.clone())).unwrap();
        let waiting = || {
            let metrics = store.metrics().unwrap();
            (metrics.unsealed_segments, metrics.unsealed_bytes)
        };
        assert_eq!(waiting(), (0, 0));
        let own = session(&store, "s");
        (0..3).for_each(|_| fill(&own));
        let (segments, bytes) = waiting();
        assert!(segments >= 3 && bytes > segments * 30_000, "{segments} segments, {bytes} bytes");
        assert!(!has_sealed(&storage), "nobody asked for it");
        store.maintain().unwrap();
        assert_eq!(waiting(), (0, 0));
        assert!(has_sealed(&storage));
    }
}

#[test]
fn a_session_in_use_is_checkpointed_without_a_caller() {
    let storage = MemoryStorage::new();
    let options = StoreOptions::new().segment_bytes_max(SEGMENT_BYTES_MAX);
    let store = options.open_storage(Arc::new(storage.clone())).unwrap();
    let own = session(&store, "s");
    run_ahead(&own, CHECKPOINT_LIVE_LAG_EVENTS);
    until(|| names(&storage).iter().any(|name| name.ends_with(".state")));
    assert!(!has_sealed(&storage));
}

/// A host that dies again and again before its segment is full leaves no segment unsealed for good.
#[test]
fn what_had_ended_before_is_sealed_after_opening() {
    let storage = MemoryStorage::new();
    let store = small_segments().open_storage(Arc::new(storage.clone())).unwrap();
    fill(&session(&store, "s"));
    drop(store);
    assert!(!has_sealed(&storage));
    let store = sealing().open_storage(Arc::new(storage.clone())).unwrap();
    until(|| has_sealed(&storage));
    assert_eq!(lines(&session(&store, "s")).len(), 4);
}

/// Holds handles until it is woken, as a task does whose executor is gone; and tells that it was.
struct LastHandles {
    handles: Mutex<Option<(Store, Session)>>,
    gone: mpsc::Sender<()>,
}

impl Wake for LastHandles {
    fn wake(self: Arc<Self>) {
        drop(self.handles.lock().unwrap().take());
        self.gone.send(()).unwrap();
    }
}

/// The last handles may go on a thread of the store itself, amid a commit, while others wait for it.
#[test]
fn the_last_handles_may_go_when_a_waker_runs() {
    let storage = MemoryStorage::new();
    for round in 0..40 {
        let mut store = sealing().open_storage(Arc::new(storage.clone()));
        while store.as_ref().is_err_and(|error| error.kind() == ErrorKind::Locked) {
            thread::yield_now();
            store = sealing().open_storage(Arc::new(storage.clone()));
        }
        let store = store.unwrap();
        let own = session(&store, "s");
        assert_eq!(own.next_seq().unwrap(), Seq::new(5 * round));
        fill(&own);
        let appended = own.append(&[note("last")], AppendOptions::default()).unwrap();
        let mut completion = pin!(appended.into_completion().unwrap());
        let (gone, told) = mpsc::channel();
        let handles = Mutex::new(Some((store, own)));
        let waker = Waker::from(Arc::new(LastHandles { handles, gone }));
        while completion.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            thread::yield_now();
        }
        drop(waker);
        told.recv().expect("the waker ran to its end");
    }
}

/// Whoever lets the last handle go, or closes the store, finds it free at once, however much is being sealed.
#[test]
fn a_store_that_is_let_go_can_be_opened_at_once() {
    let storage = MemoryStorage::new();
    let mut written = 0;
    for round in 0..60 {
        let store = sealing()
            .open_storage(Arc::new(storage.clone()))
            .unwrap_or_else(|error| panic!("{round}: {error}"));
        let own = session(&store, "s");
        assert_eq!(own.next_seq().unwrap(), Seq::new(written), "round {round}");
        fill(&own);
        written += 4;
        match round % 3 {
            0 => store.close().unwrap(),
            // The session's handle is the last one, then the store's.
            1 => drop((store, own)),
            _ => drop((own, store)),
        }
    }
    let store = sealing().open_storage(Arc::new(storage)).unwrap();
    assert_eq!(lines(&session(&store, "s")).len() as u64, written);
}

#[test]
fn a_session_keeps_the_store_open_and_sealing() {
    let storage = MemoryStorage::new();
    let own = session(&sealing().open_storage(Arc::new(storage.clone())).unwrap(), "s");
    fill(&own);
    until(|| has_sealed(&storage));
    let again = sealing().open_storage(Arc::new(storage.clone()));
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Locked);
    drop(own);
    sealing().open_storage(Arc::new(storage)).unwrap();
}

/// Sealing that fails is told, harms nobody, and is tried again.
#[test]
fn a_failure_of_the_thread_is_kept_and_appends_go_on() {
    let storage = Unsealable::default();
    let store = sealing().open_storage(Arc::new(storage.clone())).unwrap();
    let own = session(&store, "s");
    storage.refuses.store(true, Ordering::Release);
    fill(&own);
    until(|| store.metrics().unwrap().upkeep_failure.is_some());
    let told = store.metrics().unwrap().upkeep_failure.unwrap();
    assert!(told.contains("seal segments") && told.contains(".sealed"), "{told}");
    fill(&own);
    storage.refuses.store(false, Ordering::Release);
    assert_eq!(store.maintain().unwrap_err().to_string(), told);
    assert_eq!(store.metrics().unwrap().upkeep_failure, None);
    store.maintain().unwrap();
    assert_eq!(store.metrics().unwrap().unsealed_segments, 0);
    assert_eq!(lines(&own).len(), 8);
}

/// A storage in memory in which, for a while, no sealed file can be made.
#[derive(Debug, Clone, Default)]
struct Unsealable {
    storage: MemoryStorage,
    refuses: Arc<AtomicBool>,
}

impl Storage for Unsealable {
    fn list(&self) -> io::Result<Vec<String>> {
        self.storage.list()
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn StorageFile>> {
        self.storage.open(name, access)
    }

    fn create_new(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        if name.contains(".sealed") && self.refuses.load(Ordering::Acquire) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.storage.create_new(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.storage.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.storage.remove(name)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.storage.sync_directory()
    }

    fn try_lock(&self) -> io::Result<Result<Box<dyn StorageLock>, LockHolder>> {
        self.storage.try_lock()
    }

    fn path(&self) -> Option<&Path> {
        self.storage.path()
    }
}

/// Many sessions in small segments, read, forked and removed, in a store that is closed again and again.
#[test]
fn a_busy_store_that_seals_by_itself_keeps_every_event() {
    const WORKERS: usize = 4;
    let directory = tempfile::tempdir().unwrap();
    let work = |store: &Store, worker: usize, round: usize| {
        let mut random = Random::new((worker * 100 + round) as u64);
        let (own, gone) =
            (session(store, &format!("own-{worker}")), session(store, &format!("gone-{worker}-{round}")));
        for n in 0..60 {
            let durability = [Durability::Buffered, Durability::Synced][random.below(2)];
            let options = AppendOptions { expected: None, durability };
            let text = format!("{:016x}", random.next()).repeat(random.below(120));
            own.append(&[note(&format!("{worker}.{round}.{n}")), note(&text)], options)
                .unwrap()
                .wait()
                .unwrap();
            gone.append(&[note(&text)], options).unwrap().wait().unwrap();
            let first = (round * 60 + random.below(n + 1)) * 2;
            let found = own.event(Seq::new(first as u64)).unwrap();
            assert!(found.data.starts_with(&format!("\"{worker}.{round}.")), "{}", found.data);
            if n % 20 == 19 {
                assert_eq!(lines(&own).len(), (round * 60 + n + 1) * 2);
            }
        }
        store.fork(own.id(), Some(Seq::new(9)), &format!("fork-{worker}-{round}")).unwrap();
        store.remove(gone.id()).unwrap();
    };
    for round in 0..5 {
        let store = sealing().open(directory.path()).unwrap();
        thread::scope(|scope| {
            let (store, work) = (&store, &work);
            (0..WORKERS).for_each(|worker| drop(scope.spawn(move || work(store, worker, round))));
        });
        if round % 2 == 0 { store.close().unwrap() } else { drop(store) }
    }
    let store = small_segments().open(directory.path()).unwrap();
    assert_eq!(store.list().unwrap().len(), WORKERS * (1 + 5));
    for worker in 0..WORKERS {
        let own = lines(&session(&store, &format!("own-{worker}")));
        let expected = (0..5).flat_map(|round| (0..60).map(move |n| format!("\"{worker}.{round}.{n}\"")));
        assert!(
            own.iter().step_by(2).zip(expected).all(|(line, text)| line.contains(&text)),
            "worker {worker}"
        );
        assert_eq!(own.len(), 5 * 60 * 2);
        (0..5).for_each(|round| {
            let fork = lines(&session(&store, &format!("fork-{worker}-{round}")));
            assert_eq!((fork.len(), &fork[..10]), (11, &own[..10]));
        });
    }
    assert!(has_sealed(&DiskStorage::open_read_only(directory.path()).unwrap()));
    let deep = VerifyOptions { deep: true, strict: false };
    assert_eq!(store.verify(deep, &mut |_, _| ()).unwrap().findings, []);
}
