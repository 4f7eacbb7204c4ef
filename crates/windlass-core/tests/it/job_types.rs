//! Job types implemented by hand: conversion of outputs, merging of graphs, and the printed graph.

use std::any::type_name;

use serde::{Deserialize, Serialize};
use windlass_core::command::BlockerOutput;
use windlass_core::{
    Blockers, ChainId, Entry, ErrorKind, ErrorText, Fallible, Job, JobGraph, OnBlockerFailure, Payload, Rest,
    Status, Then, TypeName, decode_output,
};

macro_rules! job {
    ($type:ident, $name:expr, $output:ty, next ($($next:ident),*), blockers $blockers:ty $(, aliases $aliases:expr)?) => {
        #[derive(Serialize, Deserialize)]
        struct $type;
        impl Job for $type {
            const NAME: &'static str = $name;
            $(const ALIASES: &'static [&'static str] = &$aliases;)?
            type Output = $output;
            type Next = ($($next,)*);
            type Blockers = $blockers;
        }
        $(impl Then<$next> for $type {})*
    };
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct CrmId(String);

impl From<String> for CrmId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// An output that takes space on the stack.
#[derive(Serialize, Deserialize)]
struct Kilobyte([[u64; 16]; 8]);

// A loop (a → b → a), a tail with another output type, and types that all continue with each other.
job!(A, "a", CrmId, next(B), blockers Vec<Price>);
job!(B, "b", CrmId, next(A, C), blockers());
job!(C, "c", String, next(), blockers());
job!(Price, "price", f64, next(), blockers());
job!(W, "w", u8, next(W, X, Y, Z), blockers());
job!(X, "x", u8, next(W, X, Y, Z), blockers());
job!(Y, "y", u8, next(W, X, Y, Z), blockers());
job!(Z, "z", u8, next(W, X, Y, Z), blockers(Price, Fallible<Price>, Rest<Price>));
job!(Pair, "pair", u8, next(), blockers(Price, Fallible<Price>));
job!(Renamed, "renamed", u8, next(), blockers(), aliases ["old", "older"]);
job!(Claims, "claims", u8, next(), blockers(), aliases ["new", "old"]);
job!(Former, "older", u8, next(), blockers());
job!(Itself, "itself", u8, next(), blockers(), aliases["itself"]);
job!(Double, "double", u8, next(), blockers(), aliases ["once", "twice", "once"]);
impl Entry for A {}
impl Entry for Price {}

#[test]
fn outputs_are_converted_along_the_shortest_declared_path() {
    let text = Payload::encode("crm-7").unwrap();
    for last in ["a", "b", "c"] {
        assert_eq!(decode_output::<A>(last, &text).unwrap(), CrmId("crm-7".into()));
    }
    let error = decode_output::<A>("zzz", &text).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("`zzz`"), "{error}");
}

#[test]
fn a_dense_graph_is_searched_once() {
    assert!(decode_output::<W>("unknown", &Payload::encode(&1).unwrap()).is_err());
}

/// Declares a sequence of types, each of which continues with the next.
macro_rules! line {
    ($last:ident) => {
        job!($last, stringify!($last), u8, next(), blockers());
    };
    ($first:ident $second:ident $($rest:ident)*) => {
        job!($first, stringify!($first), u8, next($second), blockers());
        line!($second $($rest)*);
    };
}

#[test]
fn an_output_is_converted_through_64_continuations() {
    line! {
        L0 L1 L2 L3 L4 L5 L6 L7 L8 L9 L10 L11 L12 L13 L14 L15 L16 L17 L18 L19 L20 L21 L22 L23 L24 L25 L26 L27
        L28 L29 L30 L31 L32 L33 L34 L35 L36 L37 L38 L39 L40 L41 L42 L43 L44 L45 L46 L47 L48 L49 L50 L51 L52
        L53 L54 L55 L56 L57 L58 L59 L60 L61 L62 L63 L64 L65
    }
    let output = Payload::encode(&7).unwrap();
    assert_eq!(decode_output::<L0>("L16", &output).unwrap(), 7);
    assert_eq!(decode_output::<L0>("L64", &output).unwrap(), 7);
    assert_eq!(decode_output::<L1>("L65", &output).unwrap(), 7);
    let error = decode_output::<L0>("L65", &output).unwrap_err();
    assert!(error.to_string().contains("within 64 declared continuations"), "{error}");
}

#[test]
fn a_search_needs_little_stack() {
    job!(Big, "big", Kilobyte, next(Big), blockers());
    let search = || decode_output::<Big>("unknown", &Payload::encode(&1).unwrap()).is_err();
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(search).unwrap();
    assert!(thread.join().unwrap());
}

#[test]
fn blockers_are_decoded_by_their_slots() {
    let [first, second, third, fourth] = [completed("1.5"), failed("no"), completed("2.5"), completed("3.5")];
    let (one, two, rest) = <Z as Job>::Blockers::decode(&[first, second, third, fourth]).unwrap();
    assert_eq!(one, 1.5);
    assert_eq!(two.unwrap_err().error, Some(ErrorText::new("no")));
    assert_eq!(rest, [2.5, 3.5]);
    assert_eq!(<Z as Job>::Blockers::policy(), Some(OnBlockerFailure::Receive));
    assert_eq!(<A as Job>::Blockers::policy(), None);
    assert!(<Z as Job>::Blockers::decode(&[completed("1.5")]).is_err(), "one is missing");
    assert!(<A as Job>::Blockers::decode(&[failed("no")]).is_err(), "not declared as fallible");
}

#[test]
fn the_number_of_blockers_must_match_the_declaration() {
    let check = |stored: usize| <Pair as Job>::Blockers::decode(&vec![completed("1.5"); stored]).map(|_| ());
    assert!(check(2).is_ok());
    for (stored, how) in [(0, "fewer"), (1, "fewer"), (3, "more")] {
        let error = check(stored).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(&format!("stored with {how} blockers")), "{error}");
    }
    assert!(<C as Job>::Blockers::decode(&[]).is_ok());
    let error = <C as Job>::Blockers::decode(&[completed("1.5")]).unwrap_err();
    assert!(error.to_string().contains("more blockers"), "no blockers are declared: {error}");
}

#[test]
fn sets_merge_and_a_duplicate_name_is_refused() {
    job!(Other, "c", u8, next(), blockers());
    let mut jobs = JobGraph::new();
    jobs.add::<A>().unwrap();
    jobs.add::<A>().unwrap();
    let mut more = JobGraph::new();
    more.add::<B>().unwrap();
    more.add::<C>().unwrap();
    jobs.merge(more).unwrap();
    assert_eq!(jobs.to_string(), "a -> b (waits for price…)\nb -> a | c\nc\n");
    assert!(jobs.to_dot().contains("\"b\" -> \"c\";\n"), "{}", jobs.to_dot());
    assert!(jobs.to_dot().contains("\"price\" -> \"a\" [style=dashed];\n"), "{}", jobs.to_dot());
    let error = jobs.add::<Other>().unwrap_err();
    assert!(error.to_string().contains("share the name or alias `c`"), "{error}");
}

#[test]
fn rust_types_with_the_same_name_are_distinguished() {
    let mut jobs = JobGraph::new();
    let first = {
        job!(Twin, "twin", u8, next(), blockers());
        jobs.add::<Twin>().unwrap();
        type_name::<Twin>()
    };
    job!(Twin, "twin", u8, next(), blockers());
    assert_eq!(type_name::<Twin>(), first);
    let error = jobs.add::<Twin>().unwrap_err();
    assert!(error.to_string().contains("share the name or alias `twin`"), "{error}");
}

#[test]
fn a_refusal_names_the_shared_or_repeated_alias() {
    let check = |error: windlass_core::Result<()>, text: &str| {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(text), "{error}");
    };
    let mut jobs = JobGraph::new();
    jobs.add::<Renamed>().unwrap();
    check(jobs.add::<Claims>(), "share the name or alias `old`");
    check(jobs.add::<Former>(), "share the name or alias `older`");
    check(jobs.add::<Itself>(), "has the name or alias `itself` twice");
    check(jobs.add::<Double>(), "has the name or alias `once` twice");
    assert_eq!(jobs.to_string(), "renamed\n", "a refused type is not added");
}

fn completed(output: &'static str) -> BlockerOutput {
    BlockerOutput { output: Some(Payload::json(output).unwrap()), ..blocker(Status::Completed) }
}

fn failed(error: &str) -> BlockerOutput {
    BlockerOutput { error: Some(ErrorText::new(error)), ..blocker(Status::Failed) }
}

fn blocker(status: Status) -> BlockerOutput {
    let price = TypeName::new("price").unwrap();
    let (chain_type, job_type) = (price.clone(), price);
    BlockerOutput { chain: ChainId::new(), chain_type, job_type, status, output: None, error: None }
}
