//! Many threads on one store: appends, races for a seq, futures, a reader beside the writer, a full queue.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use sessionlog::event::{SessionHeader, SessionState};
use sessionlog::storage::fault::{Fault, FaultPlan, FaultStorage};
use sessionlog::storage::{DiskStorage, MemoryStorage, Storage};
use sessionlog::{
    AppendOptions, Appended, Completion, Draft, Durability, ErrorKind, Result, Seq, Session, Store,
    VerifyOptions, limits,
};

use crate::history::{Random, small_segments};
use crate::support::lines;

const BUFFERED: AppendOptions = AppendOptions { expected: None, durability: Durability::Buffered };

fn open(storage: &MemoryStorage, background: bool) -> Store {
    small_segments().background(background).open_storage(Arc::new(storage.clone())).unwrap()
}

fn session(store: &Store, id: &str) -> Session {
    store.session(id).or_else(|_| store.create_session(SessionHeader::new(id, 5))).unwrap()
}

fn note(text: impl std::fmt::Display) -> Draft<'static> {
    Draft::new("todo/write", format!(r#"{{"todos":["{text}"]}}"#))
}

#[test]
fn appends_of_many_threads_to_many_sessions_and_to_one_are_all_kept_in_their_order() {
    for background in [false, true] {
        let storage = MemoryStorage::new();
        let store = open(&storage, background);
        let shared = session(&store, "shared");
        let work = |thread: usize| {
            let own = session(&store, &format!("own-{thread}"));
            let mut random = Random::new(thread as u64);
            for n in 0..60 {
                let durability = [Durability::Buffered, Durability::Synced][random.below(2)];
                let options = AppendOptions { expected: None, durability };
                let filler = "x".repeat(random.below(600));
                own.append(&[note(n), note(&filler)], options).unwrap().wait().unwrap();
                let appended = shared.append(&[note(format!("{thread}:{n}"))], options).unwrap();
                appended.wait().unwrap();
                if durability == Durability::Synced {
                    assert!(shared.durable_seq() >= appended.next, "acknowledged, so durable");
                }
            }
        };
        thread::scope(|scope| (0..8).for_each(|thread| drop(scope.spawn(move || work(thread)))));
        let before: Vec<_> = store
            .list()
            .unwrap()
            .into_iter()
            .map(|info| (info.header.id.clone(), info.events, info.bytes))
            .collect();
        drop((shared, store));
        let store = open(&storage, false);
        let after: Vec<_> = store
            .list()
            .unwrap()
            .into_iter()
            .map(|info| (info.header.id.clone(), info.events, info.bytes))
            .collect();
        assert_eq!(before, after);
        let shared = lines(&session(&store, "shared"));
        assert_eq!(shared.len(), 8 * 60);
        for thread in 0..8 {
            let mine = shared.iter().filter(|line| line.contains(&format!(r#"["{thread}:"#)));
            let expected = (0..60).map(|n| format!(r#"["{thread}:{n}"]"#));
            assert!(mine.zip(expected).all(|(line, text)| line.contains(&text)), "thread {thread}");
            assert_eq!(lines(&session(&store, &format!("own-{thread}"))).len(), 2 * 60);
        }
        let report = store.verify(VerifyOptions { deep: true, strict: false }, &mut |_, _| ()).unwrap();
        assert_eq!(report.findings, []);
    }
}

#[test]
fn of_those_who_race_for_a_seq_exactly_one_wins() {
    let storage = MemoryStorage::new();
    let store = open(&storage, true);
    let contested = session(&store, "s");
    let rounds: u64 = 50;
    let start = Barrier::new(6);
    let race = |runner: u64| -> Vec<Result<()>> {
        let run = |round: u64| {
            start.wait();
            let options = AppendOptions { expected: Some(Seq::new(round)), durability: Durability::Synced };
            contested.append(&[note(format!("{runner}:{round}"))], options)?.wait()
        };
        (0..rounds).map(run).collect()
    };
    let outcomes: Vec<_> = thread::scope(|scope| {
        let runners: Vec<_> = (0..6).map(|runner| scope.spawn(move || race(runner))).collect();
        runners.into_iter().map(|runner| runner.join().unwrap()).collect()
    });
    let stored = lines(&contested);
    assert_eq!(stored.len() as u64, rounds);
    for (round, line) in stored.iter().enumerate() {
        let won = |(runner, outcomes): (usize, &Vec<Result<()>>)| match &outcomes[round] {
            Ok(()) => Some(runner),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                None
            }
        };
        let winners: Vec<_> = outcomes.iter().enumerate().filter_map(won).collect();
        assert_eq!(winners.len(), 1, "round {round}");
        assert!(line.contains(&format!(r#"["{}:{round}"]"#, winners[0])), "{line}");
    }
}

#[test]
fn those_who_submit_the_same_batch_at_the_same_seq_are_all_told_that_it_is_stored() {
    let store = open(&MemoryStorage::new(), true);
    let contested = session(&store, "s");
    let start = Barrier::new(6);
    let late = AtomicBool::new(false);
    let race = || -> Vec<Result<Appended>> {
        let run = |round: u64| {
            start.wait();
            let options =
                AppendOptions { expected: Some(Seq::new(2 * round)), durability: Durability::Synced };
            let appended = contested.append(&[note(round), note("b")], options);
            let stored = appended.and_then(|appended| appended.wait().map(|()| appended));
            late.fetch_or(stored.as_ref().is_ok_and(|a| contested.durable_seq() < a.next), Ordering::Relaxed);
            stored
        };
        (0..50_u64).map(run).collect()
    };
    let outcomes: Vec<_> = thread::scope(|scope| {
        let runners: Vec<_> = (0..6).map(|_| scope.spawn(race)).collect();
        runners.into_iter().flat_map(|runner| runner.join().unwrap()).collect()
    });
    let firsts = outcomes.into_iter().filter(|stored| !stored.as_ref().unwrap().already_stored).count();
    assert!(!late.into_inner(), "what was acknowledged is durable");
    assert_eq!((firsts, lines(&contested).len()), (50, 100));
}

#[test]
fn completions_are_awaited_with_any_executor() {
    for background in [false, true] {
        let storage = MemoryStorage::new();
        let store = open(&storage, background);
        let work = |thread: usize| {
            let own = session(&store, &format!("own-{thread}"));
            for round in 0..20 {
                let queued: Vec<Completion> = (0..5)
                    .map(|n| own.append(&[note(format!("{round}:{n}"))], AppendOptions::default()).unwrap())
                    .map(|appended| appended.into_completion().unwrap())
                    .collect();
                let committed = block_on(All::of(queued)).into_iter().collect::<Result<Vec<_>>>().unwrap();
                assert!(committed.is_sorted_by_key(|committed| committed.at), "in the order of the queue");
                assert_eq!(own.durable_seq(), Seq::new(5 * (round + 1)));
            }
        };
        thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || work(thread)))));
        store.close().unwrap();
        let store = open(&storage, false);
        assert!((0..4).all(|thread| lines(&session(&store, &format!("own-{thread}"))).len() == 100));
    }
}

#[test]
fn a_future_answers_with_the_failure_of_its_batch() {
    let storage = FaultStorage::new(1);
    let store = small_segments().background(true).open_storage(Arc::new(storage.clone())).unwrap();
    let own = session(&store, "s");
    storage.set_plan(FaultPlan::new().fail(storage.counters().operations, Fault::Io));
    let completion = own.append(&[note(1)], AppendOptions::default()).unwrap().into_completion().unwrap();
    assert_eq!(block_on(completion).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn batches_that_nobody_waits_for_are_there_after_a_flush() {
    for background in [false, true] {
        let storage = MemoryStorage::new();
        let store = open(&storage, background);
        let work = |thread: usize| {
            let own = session(&store, &format!("own-{thread}"));
            for n in 0..50 {
                drop(own.append(&[note(n), note("b")], BUFFERED).unwrap());
            }
        };
        thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || work(thread)))));
        store.flush().unwrap();
        let reader = small_segments().open_storage_read_only(Arc::new(storage.clone())).unwrap();
        for thread in 0..4 {
            let id = format!("own-{thread}");
            assert_eq!(lines(&reader.session(&id).unwrap()).len(), 100);
            assert_eq!(session(&store, &id).durable_seq(), Seq::new(100));
        }
    }
}

#[test]
fn a_reader_beside_a_writer_sees_whole_batches_in_order_and_never_an_error() {
    let storage = MemoryStorage::new();
    read_beside_a_writer(&|| Arc::new(storage.clone()), &|| Arc::new(storage.clone()));
    let directory = tempfile::tempdir().unwrap();
    read_beside_a_writer(&|| Arc::new(DiskStorage::open(directory.path(), true).unwrap()), &|| {
        Arc::new(DiskStorage::open_read_only(directory.path()).unwrap())
    });
}

type Opener<'o> = dyn Fn() -> Arc<dyn Storage> + Sync + 'o;

fn read_beside_a_writer(to_write: &Opener<'_>, to_read: &Opener<'_>) {
    const BATCHES: usize = 300;
    let store = small_segments().background(true).open_storage(to_write()).unwrap();
    let written = AtomicBool::new(false);
    let write = |id: &str| {
        let own = session(&store, id);
        let mut random = Random::new(id.len() as u64);
        for n in 0..BATCHES {
            let durability = [Durability::Buffered, Durability::Synced][usize::from(n % 16 == 0)];
            let filler = "x".repeat(random.below(1_200));
            let batch = [note(format!("{n}a")), note(filler), note(format!("{n}c"))];
            own.append(&batch, AppendOptions { expected: None, durability }).unwrap().wait().unwrap();
        }
    };
    let read = || {
        let reader = small_segments().open_storage_read_only(to_read()).unwrap();
        let mut seen = [0; 2];
        loop {
            let last = written.load(Ordering::Acquire);
            reader.refresh().unwrap();
            for (id, seen) in ["a", "bb"].into_iter().zip(&mut seen) {
                let Ok(session) = reader.session(id) else { continue };
                let next = usize::try_from(session.next_seq().unwrap().get()).unwrap();
                assert!(next >= *seen && next.is_multiple_of(3), "{id}: {next} events after {seen}");
                let new = session.events(Seq::new(*seen as u64)..Seq::new(next as u64)).unwrap();
                for (seq, event) in (*seen..).zip(new) {
                    let event = event.unwrap();
                    let mark = [format!("\"{}a\"", seq / 3), String::new(), format!("\"{}c\"", seq / 3)];
                    assert!(event.seq.get() == seq as u64 && event.data.contains(&mark[seq % 3]));
                }
                *seen = next;
            }
            if last {
                return seen;
            }
            thread::yield_now();
        }
    };
    let seen = thread::scope(|scope| {
        let readers = [scope.spawn(read), scope.spawn(read)];
        let writers = [scope.spawn(|| write("a")), scope.spawn(|| write("bb"))];
        let wrote = writers.map(|writer| writer.join());
        written.store(true, Ordering::Release);
        assert!(wrote.iter().all(|wrote| wrote.is_ok()));
        readers.map(|reader| reader.join().unwrap())
    });
    assert_eq!(seen, [[3 * BATCHES; 2]; 2]);
}

#[test]
fn whoever_finds_the_queue_full_waits_or_commits_and_nothing_is_lost() {
    const BYTES: usize = 9 << 20;
    for background in [false, true] {
        let storage = MemoryStorage::new();
        let options =
            small_segments().background(background).segment_bytes_max(limits::SEGMENT_BYTES_DEFAULT);
        let store = options.open_storage(Arc::new(storage.clone())).unwrap();
        let large = format!("\"{}\"", "x".repeat(BYTES));
        let work = |thread: usize| {
            let own = session(&store, &format!("own-{thread}"));
            let mut kept = Vec::new();
            for _ in 0..5 {
                kept.push(own.append(&[Draft::new("todo/write", &*large)], BUFFERED).unwrap());
                assert!(store.metrics().unwrap().queue_bytes <= limits::QUEUE_BYTES_MAX);
            }
            kept
        };
        let kept: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|thread| scope.spawn(move || work(thread))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let metrics = store.metrics().unwrap();
        assert!(metrics.bytes > 0, "the queue holds less than all, so some is written though nobody waited");
        store.flush().unwrap();
        assert!(kept.iter().all(|appended| appended.wait().is_ok()));
        assert!((0..3).all(|thread| session(&store, &format!("own-{thread}")).durable_seq() == Seq::new(5)));
    }
}

/// A refresh changes every session's state while others read through theirs.
#[test]
fn readers_of_a_store_that_is_refreshed_and_rewritten_all_come_to_an_end() {
    const ROUNDS: u64 = 60;
    let storage = MemoryStorage::new();
    let store = small_segments().background(false).open_storage(Arc::new(storage.clone())).unwrap();
    let fill = Draft::new("todo/write", format!("\"{}\"", "x".repeat(2_000)));
    let own = session(&store, "s");
    own.append(std::slice::from_ref(&fill), AppendOptions::default()).unwrap().wait().unwrap();
    store.fork("s", None, "child").unwrap();
    let reader = small_segments().open_storage_read_only(Arc::new(storage)).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for id in ["s", "child"] {
            let (seen, done) = (reader.session(id).unwrap(), &done);
            scope.spawn(move || {
                while !done.load(Ordering::Acquire) {
                    let events = seen.with_state(|state| state.next_seq()).unwrap();
                    assert!(seen.durable_seq() >= Seq::new(1));
                    assert!(seen.events(Seq::new(0)..events).unwrap().all(|event| event.is_ok()));
                }
            });
        }
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                reader.refresh().unwrap();
            }
        });
        for round in 0..ROUNDS {
            own.append(&vec![fill.clone(); 8], AppendOptions::default()).unwrap().wait().unwrap();
            store.maintain().unwrap();
            if round % 16 == 0 {
                store.compact().unwrap();
            }
        }
        done.store(true, Ordering::Release);
    });
    reader.refresh().unwrap();
    assert_eq!(reader.session("s").unwrap().next_seq().unwrap(), Seq::new(1 + 8 * ROUNDS));
}

/// Runs a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for many futures at once, the last one first.
struct All<F: Future>(Vec<(F, Option<F::Output>)>);

impl<F: Future> All<F> {
    fn of(futures: Vec<F>) -> Self {
        Self(futures.into_iter().map(|future| (future, None)).collect())
    }
}

impl<F: Future + Unpin> Future for All<F>
where
    F::Output: Unpin,
{
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        for (future, output) in self.0.iter_mut().rev().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(ready) = Pin::new(future).poll(context) {
                *output = Some(ready);
            }
        }
        if self.0.iter().any(|(_, output)| output.is_none()) {
            return Poll::Pending;
        }
        Poll::Ready(self.0.drain(..).filter_map(|(_, output)| output).collect())
    }
}
