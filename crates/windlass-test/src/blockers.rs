//! Blocker chains that have completed with outputs chosen by the test.

use serde::Serialize;
use serde_json::Value;
use windlass_core::command::{CompleteFromOutside, Create, NewChain, NewJob, Step};
use windlass_core::{
    Blockers, ChainId, Error, ErrorKind, Payload, RequestId, Result, Store, TypeName, Version,
};

/// Returns the type and the encoded output of each blocker chain, in order.
pub(crate) fn payloads<B: Blockers>(outputs: &B::Outputs) -> Result<Vec<(TypeName, Payload)>>
where
    B::Outputs: Serialize,
{
    let unwritable =
        |error| Error::new(ErrorKind::Invalid, format!("the outputs cannot be encoded as JSON: {error}"));
    let outputs = serde_json::to_value(outputs).map_err(unwritable)?;
    let names = B::names();
    let slots = match names.as_slice() {
        // A list is a slot by itself; everything else is a tuple with one slot per name.
        [only] if is_many(only) => vec![outputs],
        _ => elements(outputs),
    };
    let mut given = Vec::new();
    for (name, slot) in names.iter().zip(slots) {
        let each = if is_many(name) { elements(slot) } else { vec![slot] };
        for output in each {
            given.push((TypeName::new(name.trim_end_matches('…'))?, Payload::encode(&output)?));
        }
    }
    Ok(given)
}

/// Whether a name stands for any number of chains (`Vec` or `Rest`).
fn is_many(name: &str) -> bool {
    name.ends_with('…')
}

fn elements(value: Value) -> Vec<Value> {
    match value {
        Value::Array(elements) => elements,
        other => vec![other],
    }
}

/// Stores one completed chain for each output.
pub(crate) async fn completed_chains(
    store: &impl Store,
    outputs: Vec<(TypeName, Payload)>,
) -> Result<Vec<ChainId>> {
    let mut chains = Vec::new();
    for (job_type, output) in outputs {
        let (id, request, version) = (ChainId::new(), RequestId::new(), Version::default());
        let job = NewJob::new(job_type, Payload::encode(&())?);
        store.create(Create { chains: vec![NewChain::new(id, job)] }).await?;
        let steps = vec![Step::Complete { output, retention: None, create: Vec::new() }];
        let complete = CompleteFromOutside { request, job: id.first_job(), version, steps };
        store.complete_from_outside(complete).await?;
        chains.push(id);
    }
    Ok(chains)
}
