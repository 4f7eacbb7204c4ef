//! Job types by hand: outputs find their way back, sets merge, the graph is printed.

use serde::{Deserialize, Serialize};
use windlass_core::command::BlockerOutput;
use windlass_core::{
    Blockers, ChainId, Entry, ErrorKind, ErrorText, Fallible, Job, JobGraph, OnBlockerFailure, Payload, Rest,
    Status, Then, TypeName, decode_output,
};

macro_rules! job {
    ($type:ident, $name:literal, $output:ty, next ($($next:ident),*), blockers $blockers:ty) => {
        #[derive(Serialize, Deserialize)]
        struct $type;
        impl Job for $type {
            const NAME: &'static str = $name;
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

// A loop (a → b → a), a tail of another output, and types that all continue with each other.
job!(A, "a", CrmId, next(B), blockers Vec<Price>);
job!(B, "b", CrmId, next(A, C), blockers());
job!(C, "c", String, next(), blockers());
job!(Price, "price", f64, next(), blockers());
job!(W, "w", u8, next(W, X, Y, Z), blockers());
job!(X, "x", u8, next(W, X, Y, Z), blockers());
job!(Y, "y", u8, next(W, X, Y, Z), blockers());
job!(Z, "z", u8, next(W, X, Y, Z), blockers(Price, Fallible<Price>, Rest<Price>));
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
    assert!(error.to_string().contains("share the name"), "{error}");
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
