//! What an event may do to the surface, and what it may cite (spec section 5, with sections 20 and 21).
//!
//! Plans only: nothing is changed here, so a refusal leaves the session as it was. Costs are linear in the sources and
//! in the shadowed nodes, up to a logarithm where their order is unusual.

use std::borrow::Cow;
use std::ops::Range;

use super::json::Digest;
use super::model::{Placement, SessionState, SurfaceOp};
use super::verdict::{Refusal, RefusalKind};
use super::vocabulary::is_surface_type;
use crate::ids::Seq;
use crate::limits::SOURCES_PER_EVENT_MAX;

/// Sources beyond the shadowed nodes that the quick check takes: compaction adds two.
const EXTRA_SOURCES_MAX: usize = 4;

/// Missing nodes that a message names before it stops counting them out.
const MISSING_SHOWN_MAX: usize = 8;

/// The event's place on the surface. Its provenance must be checked afterwards.
pub(super) fn place(
    state: &dyn SessionState,
    type_name: &str,
    op: Option<SurfaceOp>,
    has_sources: bool,
) -> Result<Placement, Refusal> {
    match (is_surface_type(type_name), op) {
        (true, None) => {
            Err(refuse("surface-marker", format!("{type_name} joins the surface and needs a surfaceOp")))
        }
        (true, Some(SurfaceOp::Append)) => Ok(Placement::Append),
        (true, Some(SurfaceOp::Replace { start, end })) => {
            replaced(state, start, end).map(Placement::Replace)
        }
        (false, None) if !has_sources => Ok(Placement::LogOnly),
        (false, _) => Err(refuse(
            "log-only",
            format!(
                "{type_name} does not join the surface and carries neither surfaceOp nor sourceEventSeqs"
            ),
        )),
    }
}

/// The positions from `start` to `end`, both of which are nodes now, in this order by position.
fn replaced(state: &dyn SessionState, start: Seq, end: Seq) -> Result<Range<usize>, Refusal> {
    let find = |node, side| {
        state.position_of(node).ok_or_else(|| {
            refuse("replace-range", format!("the replaced range's {side}, seq {node}, is not on the surface"))
        })
    };
    let (first, last) = (find(start, "start")?, find(end, "end")?);
    if first > last {
        return Err(refuse(
            "replace-order",
            format!(
                "the replaced range starts with seq {start} at position {first}, after its end, seq {end} at position {last}"
            ),
        ));
    }
    Ok(first..last + 1)
}

/// Ranges written out: each runs forward and ends before the event, and the list that they make is strictly increasing,
/// so it has at most as many members as there are earlier events (spec section 20).
pub(super) fn expanded(ranges: &[(Seq, Seq)], own: Seq) -> Result<Vec<Seq>, Refusal> {
    let (mut next, mut total) = (Seq::new(0), 0);
    for &(start, end) in ranges {
        if start > end || end >= own || start < next {
            let message = format!(
                "the range [{start}, {end}] in sourceEventSeqs runs backwards, is out of order or does not end before the event"
            );
            return Err(Refusal::new(RefusalKind::RangeProvenance, "range-order", message));
        }
        next = end.next();
        total += next.get() - start.get();
    }
    if !usize::try_from(total).is_ok_and(|total| total <= SOURCES_PER_EVENT_MAX) {
        return Err(too_many_sources());
    }
    let seqs = ranges.iter().flat_map(|(start, end)| start.get()..=end.get()).map(Seq::new);
    Ok(seqs.collect())
}

/// More sources than [`SOURCES_PER_EVENT_MAX`].
pub(super) fn too_many_sources() -> Refusal {
    let message = format!("sourceEventSeqs has more than {SOURCES_PER_EVENT_MAX} members");
    Refusal::new(RefusalKind::Limit, "sources-per-event", message)
}

/// Sources: not empty except on an `assistant/message`, no duplicates, all earlier than the event, and of a replacement
/// all shadowed nodes among them; judged in this order (spec section 5).
pub(super) fn check_sources(
    state: &dyn SessionState,
    type_name: &str,
    own: Seq,
    sources: Option<&[Seq]>,
    placement: &Placement,
) -> Result<(), Refusal> {
    if sources.is_some_and(<[Seq]>::is_empty) && type_name != "assistant/message" {
        return Err(refuse_source("sources-empty", "sourceEventSeqs must not be empty here".to_owned()));
    }
    let sources = sources.unwrap_or_default();
    let shadowed = match placement {
        Placement::Replace(range) => state.surface().get(range.clone()).unwrap_or_default(),
        Placement::LogOnly | Placement::Append => &[],
    };
    if is_usual(sources, shadowed, own) {
        return Ok(());
    }
    let sorted = ascending(sources);
    if let Some(twice) = sorted.windows(2).find(|w| w[0] == w[1]) {
        return Err(refuse_source(
            "sources-distinct",
            format!("sourceEventSeqs names seq {} twice", twice[0]),
        ));
    }
    if let Some(last) = sorted.last().filter(|last| **last >= own) {
        let message = format!("sourceEventSeqs names seq {last}, which is not earlier than the event");
        return Err(refuse_source("sources-earlier", message));
    }
    cites_all(&sorted, shadowed)
}

/// Whether sources have the form that compaction writes: a few distinct earlier seqs, then exactly the shadowed nodes.
/// Such sources keep every rule, and seeing so takes no copy, however long the range.
fn is_usual(sources: &[Seq], shadowed: &[u32], own: Seq) -> bool {
    let Some(extra) = sources.len().checked_sub(shadowed.len()).filter(|extra| *extra <= EXTRA_SOURCES_MAX)
    else {
        return false;
    };
    let (extra, tail) = sources.split_at(extra);
    // Without early exits both loops are vectorised.
    let differs =
        tail.iter().zip(shadowed).fold(0, |bits, (seq, node)| bits | (seq.get() ^ u64::from(*node)));
    let is_shadowed = |seq: &Seq| {
        u32::try_from(seq.get())
            .is_ok_and(|seq| shadowed.iter().fold(false, |found, node| found | (*node == seq)))
    };
    differs == 0
        && extra
            .iter()
            .enumerate()
            .all(|(i, seq)| *seq < own && !extra[..i].contains(seq) && !is_shadowed(seq))
}

/// A replacing `tool/result` shadows exactly one other and changes its content alone (spec sections 5 and 21).
pub(super) fn check_rewrite(
    state: &dyn SessionState,
    placement: &Placement,
    digest: Option<Digest>,
) -> Result<(), Refusal> {
    let Placement::Replace(range) = placement else { return Ok(()) };
    let [node] = state.surface().get(range.clone()).unwrap_or_default() else {
        return Err(refuse("rewrite-one-node", "a tool/result replaces exactly one node".to_owned()));
    };
    match state.rewrite_digest(Seq::new(u64::from(*node))) {
        None => Err(refuse(
            "rewrite-result",
            format!("a tool/result replaces a tool/result, and seq {node} is none"),
        )),
        old if old == digest => Ok(()),
        Some(_) => Err(refuse(
            "rewrite-content",
            format!("a replacing tool/result may differ from seq {node} in the content of its block alone"),
        )),
    }
}

/// The list in ascending order; no copy where it already is.
fn ascending(list: &[Seq]) -> Cow<'_, [Seq]> {
    if list.is_sorted() {
        return Cow::Borrowed(list);
    }
    let mut sorted = list.to_vec();
    // Stable on purpose: it finds the long ascending run that sources usually have.
    sorted.sort();
    Cow::Owned(sorted)
}

/// Every shadowed node is among the sources, which ascend.
fn cites_all(sources: &[Seq], shadowed: &[u32]) -> Result<(), Refusal> {
    let mut cursor = 0;
    let mut missing = Vec::new();
    let mut missing_total = 0_usize;
    for &node in shadowed {
        let node = Seq::new(u64::from(node));
        cursor = lower_bound(sources, cursor, node);
        if sources.get(cursor) == Some(&node) {
            cursor += 1;
            continue;
        }
        missing_total += 1;
        if missing.len() < MISSING_SHOWN_MAX {
            missing.push(node.to_string());
        }
    }
    if missing_total == 0 {
        return Ok(());
    }
    let shown = missing.join(", ");
    Err(refuse(
        "sources-shadowed",
        format!("sourceEventSeqs must name every replaced node; missing {missing_total}: seq {shown}"),
    ))
}

/// First index whose source is not below `node`. The search gallops on from `from`, where a node in ascending order is
/// found at once, and starts over for one that lies before it.
fn lower_bound(sources: &[Seq], from: usize, node: Seq) -> usize {
    if from > 0 && sources[from - 1] >= node {
        return sources[..from].partition_point(|source| *source < node);
    }
    let mut low = from;
    let mut step = 1;
    while sources.get(low + step - 1).is_some_and(|source| *source < node) {
        low += step;
        step *= 2;
    }
    let high = sources.len().min(low + step);
    low + sources[low..high].partition_point(|source| *source < node)
}

fn refuse(rule: &'static str, message: String) -> Refusal {
    Refusal::new(RefusalKind::Surface, rule, message)
}

fn refuse_source(rule: &'static str, message: String) -> Refusal {
    Refusal::new(RefusalKind::Provenance, rule, message)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ASSISTANT, RESULT, Session, USER};
    use super::*;

    fn seqs(list: &[u64]) -> Vec<Seq> {
        list.iter().copied().map(Seq::new).collect()
    }

    fn place_in(surface: &[u32], start: u64, end: u64) -> Result<Placement, &'static str> {
        let session = Session { surface: surface.to_vec(), ..Session::default() };
        let op = SurfaceOp::Replace { start: Seq::new(start), end: Seq::new(end) };
        place(&session, "user/message", Some(op), true).map_err(|refusal| refusal.rule)
    }

    #[test]
    fn ranges_are_judged_by_position() {
        let surface = [1, 9, 4, 6];
        assert_eq!(place_in(&surface, 9, 4), Ok(Placement::Replace(1..3)));
        assert_eq!(place_in(&surface, 6, 6), Ok(Placement::Replace(3..4)));
        assert_eq!(place_in(&surface, 4, 9), Err("replace-order"));
        assert_eq!(place_in(&surface, 2, 4), Err("replace-range"));
        assert_eq!(place_in(&surface, 1, 4 + (1 << 32)), Err("replace-range"));
    }

    #[test]
    fn markers_belong_to_surface_types() {
        let rule = |name, op, sources| {
            place(&Session::default(), name, op, sources).map_or_else(|refusal| refusal.rule, |_| "")
        };
        for name in ["user/message", "assistant/message", "tool/result"] {
            assert_eq!(rule(name, None, false), "surface-marker");
            assert_eq!(rule(name, Some(SurfaceOp::Append), false), "");
        }
        assert_eq!(rule("todo/write", None, false), "");
        assert_eq!(rule("todo/write", Some(SurfaceOp::Append), false), "log-only");
        assert_eq!(rule("todo/write", None, true), "log-only");
    }

    #[test]
    fn faults_of_sources_come_in_order() {
        let rule = |name, list: &[u64]| {
            let verdict =
                check_sources(&Session::default(), name, Seq::new(10), Some(&seqs(list)), &Placement::Append);
            verdict.map_or_else(|refusal| refusal.rule, |()| "")
        };
        assert_eq!(rule("user/message", &[]), "sources-empty");
        assert_eq!(rule("assistant/message", &[]), "");
        assert_eq!(rule("user/message", &[12, 3, 12]), "sources-distinct");
        assert_eq!(rule("user/message", &[3, 10]), "sources-earlier");
        assert_eq!(rule("user/message", &[9, 3, 7]), "");
        assert_eq!(rule("user/message", &[u64::MAX]), "sources-earlier");
    }

    #[test]
    fn every_shadowed_node_is_cited() {
        let verdict = |sources: &[u64], shadowed: &[u32]| {
            cites_all(&ascending(&seqs(sources)), shadowed).map_err(|refusal| refusal.message)
        };
        assert_eq!(verdict(&[40, 41, 1, 3, 5], &[1, 3, 5]), Ok(()));
        assert_eq!(verdict(&[1, 3, 5, 40], &[40, 1, 5, 3]), Ok(()));
        assert_eq!(verdict(&[], &[]), Ok(()));
        let message = verdict(&[1, 5], &[40, 1, 3]).unwrap_err();
        assert!(message.ends_with("missing 2: seq 40, 3"), "{message}");
        let message = verdict(&[], &(0..100).collect::<Vec<_>>()).unwrap_err();
        assert!(message.ends_with("missing 100: seq 0, 1, 2, 3, 4, 5, 6, 7"), "{message}");
    }

    #[test]
    fn the_quick_check_is_never_kinder_than_the_rules() {
        // All lists of up to four seqs below 5, against every two shadowed nodes of an event at seq 4.
        let mut lists: Vec<Vec<u64>> = vec![Vec::new()];
        for len in 0..4 {
            let longer: Vec<_> = lists.iter().filter(|l| l.len() == len).cloned().collect();
            lists.extend(longer.iter().flat_map(|l| (0..5).map(move |n| [l.as_slice(), &[n]].concat())));
        }
        let mut usual = 0;
        for list in &lists {
            for shadowed in [[0, 1], [3, 1], [2, 3]] {
                let (list, own) = (seqs(list), Seq::new(4));
                let sorted = ascending(&list);
                let distinct = sorted.windows(2).all(|w| w[0] < w[1]);
                let rules =
                    distinct && list.iter().all(|s| *s < own) && cites_all(&sorted, &shadowed).is_ok();
                let quick = is_usual(&list, &shadowed, own);
                assert!(rules || !quick, "{list:?} {shadowed:?}");
                usual += usize::from(quick);
            }
        }
        assert!(usual > 3, "the quick check takes compaction's own form");
    }

    #[test]
    fn the_search_agrees_with_a_plain_one_from_any_start() {
        let sources = seqs(&[2, 3, 5, 8, 13, 21, 34, 55, 89]);
        for from in 0..=sources.len() {
            for node in (0..100).map(Seq::new) {
                let plain = sources.iter().position(|s| *s >= node).unwrap_or(sources.len());
                assert_eq!(lower_bound(&sources, from, node), plain, "{from} {node}");
            }
        }
    }

    #[test]
    fn hostile_orders_stay_far_from_quadratic() {
        let n = 1 << 19;
        let sources: Vec<Seq> = (0..n).rev().map(Seq::new).collect();
        // Low and high nodes in turns: each lookup jumps across the list.
        let shadowed: Vec<u32> = (0..1 << 18).flat_map(|i| [i, (1 << 19) - 1 - i]).collect();
        assert_eq!(cites_all(&ascending(&sources), &shadowed), Ok(()));
    }

    #[test]
    fn ranges_expand_to_increasing_earlier_seqs() {
        let expand = |pairs: &[(u64, u64)]| {
            let pairs: Vec<_> = pairs.iter().map(|(a, b)| (Seq::new(*a), Seq::new(*b))).collect();
            expanded(&pairs, Seq::new(20)).map_err(|refusal| refusal.rule)
        };
        assert_eq!(expand(&[(3, 5), (6, 6), (19, 19)]), Ok(seqs(&[3, 4, 5, 6, 19])));
        assert_eq!(expand(&[(5, 3)]), Err("range-order"));
        assert_eq!(expand(&[(3, 5), (5, 6)]), Err("range-order"));
        assert_eq!(expand(&[(7, 8), (3, 4)]), Err("range-order"));
        assert_eq!(expand(&[(3, 20)]), Err("range-order"));
        assert_eq!(expand(&[(0, u64::MAX)]), Err("range-order"));
        let wide = [(Seq::new(0), Seq::new(u64::from(u32::MAX) - 2))];
        assert_eq!(expanded(&wide, Seq::new(u64::from(u32::MAX))).unwrap_err().kind, RefusalKind::Limit);
    }

    #[test]
    fn a_rewrite_keeps_all_but_the_content() {
        let session = Session::of(&[USER, ASSISTANT, RESULT]);
        let rule = |range: Range<usize>, digest| {
            check_rewrite(&session, &Placement::Replace(range), digest)
                .map_or_else(|refusal| refusal.rule, |()| "")
        };
        let digest = session.rewrite_digest(Seq::new(2));
        assert_eq!(rule(2..3, digest), "");
        assert_eq!(rule(2..3, Some(7)), "rewrite-content");
        assert_eq!(rule(1..2, digest), "rewrite-result");
        assert_eq!(rule(1..3, digest), "rewrite-one-node");
        assert_eq!(check_rewrite(&session, &Placement::Append, None), Ok(()));
    }
}
