use std::fmt;
use std::marker::PhantomData;

use super::{Entry, decode_output};
use crate::chain::Chain;
use crate::command::BlockerOutput;
use crate::error::{Error, ErrorKind, Result};
use crate::id::ChainId;
use crate::name::ErrorText;
use crate::record::{OnBlockerFailure, Status};

/// Marks a start or continuation that is complete and can be awaited.
#[derive(Clone, Copy, Debug)]
pub struct Ready;

/// Marks a start or continuation whose blockers are missing. It cannot be awaited before `.blocked_by(…)`: the compiler
/// says that a `Plan<_, NeedsBlockedBy, _>` is not a future.
#[derive(Clone, Copy, Debug)]
pub struct NeedsBlockedBy;

/// Implemented by [`Ready`], the state of a complete start or continuation.
#[diagnostic::on_unimplemented(
    message = "the blockers of this job are missing",
    label = "the job type declares blockers",
    note = "call `.blocked_by(…)` with the blocker chains, also on `plan(job)` and `next(job)`"
)]
pub trait IsReady {}

impl IsReady for Ready {}

/// The chains that a job type waits for.
///
/// Implemented for `()`, for tuples of up to six [`BlockerSlot`]s, for a `Vec` of one slot type, and for tuples
/// whose last member is a [`Rest`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the blockers of a job type",
    note = "use a tuple of entry types, a `Vec` of one entry type, or a tuple that ends with `Rest<T>`"
)]
pub trait Blockers: 'static {
    /// The chains to pass at the start.
    type Chains: Send;
    /// The outputs of the chains, as the handler receives them.
    type Outputs: Send + Sync + 'static;
    /// [`Ready`] if a start without blockers is complete, else [`NeedsBlockedBy`].
    type Initial;

    /// Returns the ids of the chains, in order.
    fn ids(chains: &Self::Chains) -> Vec<ChainId>;

    /// Decodes the outputs of the chains.
    ///
    /// # Errors
    /// Returns an error if an output cannot be decoded, or if the number of outputs does not match the
    /// declared blockers.
    fn decode(outputs: &[BlockerOutput]) -> Result<Self::Outputs>;

    /// Returns the names of the chains' types.
    fn names() -> Vec<String>;

    /// Returns what the job does if one of the chains does not complete, or `None` if the blocker types do
    /// not decide that.
    #[must_use]
    fn policy() -> Option<OnBlockerFailure> {
        None
    }
}

/// One chain that a job waits for: an entry type, whose output the handler receives, or [`Fallible`], for
/// which it receives a `Result`.
pub trait BlockerSlot: 'static {
    /// The entry type of the chain.
    type Job: Entry;
    /// The value that the handler receives.
    type Value: Send + Sync + 'static;
    /// Whether the handler receives a failure as a value.
    const RECEIVES: bool;

    /// Decodes the output of the chain.
    ///
    /// # Errors
    /// Returns an error if the output cannot be decoded. An entry type also returns one if the chain did not
    /// complete.
    fn decode(output: &BlockerOutput) -> Result<Self::Value>;
}

impl<J: Entry> BlockerSlot for J
where
    J::Output: Sync,
{
    type Job = J;
    type Value = J::Output;
    const RECEIVES: bool = false;

    fn decode(output: &BlockerOutput) -> Result<J::Output> {
        match (&output.status, &output.output) {
            (Status::Completed, Some(payload)) => decode_output::<J>(output.job_type.as_str(), payload),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "blocker chain {} did not complete: declare it as `Fallible` to receive its failure",
                    output.chain
                ),
            )),
        }
    }
}

/// A blocker whose failure or cancellation the handler receives as a value.
///
/// A job type with at least one such blocker runs when all its blockers have closed, whether they completed
/// or not.
pub struct Fallible<J>(PhantomData<fn() -> J>);

impl<J> fmt::Debug for Fallible<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fallible")
    }
}

/// Why a blocker chain has no output.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The blocker chain.
    pub chain: ChainId,
    /// The status of the chain: failed or cancelled, or an open status if it has been retried since.
    pub status: Status,
    /// The error of the chain's latest job.
    pub error: Option<ErrorText>,
}

impl<J: Entry> BlockerSlot for Fallible<J>
where
    J::Output: Sync,
{
    type Job = J;
    type Value = Result<J::Output, Failure>;
    const RECEIVES: bool = true;

    fn decode(output: &BlockerOutput) -> Result<Self::Value> {
        match (output.status, &output.output) {
            (Status::Completed, Some(payload)) => {
                decode_output::<J>(output.job_type.as_str(), payload).map(Ok)
            }
            (status, _) => Ok(Err(Failure { chain: output.chain, status, error: output.error.clone() })),
        }
    }
}

/// Any number of chains after the fixed ones.
pub struct Rest<T>(PhantomData<fn() -> T>);

impl<T> fmt::Debug for Rest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rest")
    }
}

impl Blockers for () {
    type Chains = ();
    type Outputs = ();
    type Initial = Ready;

    fn ids((): &()) -> Vec<ChainId> {
        Vec::new()
    }

    fn decode(outputs: &[BlockerOutput]) -> Result<()> {
        end(&mut outputs.iter())
    }

    fn names() -> Vec<String> {
        Vec::new()
    }
}

impl<T: BlockerSlot> Blockers for Vec<T> {
    type Chains = Vec<Chain<T::Job>>;
    type Outputs = Vec<T::Value>;
    type Initial = NeedsBlockedBy;

    fn ids(chains: &Self::Chains) -> Vec<ChainId> {
        chains.iter().map(Chain::id).collect()
    }

    fn decode(outputs: &[BlockerOutput]) -> Result<Self::Outputs> {
        outputs.iter().map(T::decode).collect()
    }

    fn names() -> Vec<String> {
        vec![many::<T>()]
    }

    fn policy() -> Option<OnBlockerFailure> {
        T::RECEIVES.then_some(OnBlockerFailure::Receive)
    }
}

fn many<T: BlockerSlot>() -> String {
    use super::Job;
    format!("{}…", <T::Job as Job>::NAME)
}

/// Returns the next output, or an error if the job was stored with fewer blockers than its type declares.
fn next<'a>(outputs: &mut std::slice::Iter<'a, BlockerOutput>) -> Result<&'a BlockerOutput> {
    outputs.next().ok_or_else(|| changed("fewer"))
}

/// Returns an error if outputs are left. A handler that ignored one might do what that blocker was meant to
/// prevent.
fn end(outputs: &mut std::slice::Iter<'_, BlockerOutput>) -> Result<()> {
    outputs.next().map_or(Ok(()), |_| Err(changed("more")))
}

fn changed(how: &str) -> Error {
    let text = format!(
        "the job was stored with {how} blockers than its type now declares: cancel it and start it again, \
         or run it with the previous declaration"
    );
    Error::new(ErrorKind::Invalid, text)
}

macro_rules! blockers {
    ($($slot:ident $value:ident)+) => {
        impl<$($slot: BlockerSlot),+> Blockers for ($($slot,)+) {
            type Chains = ($(Chain<$slot::Job>,)+);
            type Outputs = ($($slot::Value,)+);
            type Initial = NeedsBlockedBy;

            fn ids(($($value,)+): &Self::Chains) -> Vec<ChainId> {
                vec![$($value.id(),)+]
            }

            fn decode(outputs: &[BlockerOutput]) -> Result<Self::Outputs> {
                let mut outputs = outputs.iter();
                let decoded = ($($slot::decode(next(&mut outputs)?)?,)+);
                end(&mut outputs)?;
                Ok(decoded)
            }

            fn names() -> Vec<String> {
                vec![$(<$slot::Job as super::Job>::NAME.to_owned(),)+]
            }

            fn policy() -> Option<OnBlockerFailure> {
                ($($slot::RECEIVES ||)+ false).then_some(OnBlockerFailure::Receive)
            }
        }

        impl<$($slot: BlockerSlot,)+ Z: BlockerSlot> Blockers for ($($slot,)+ Rest<Z>,) {
            type Chains = ($(Chain<$slot::Job>,)+ Vec<Chain<Z::Job>>,);
            type Outputs = ($($slot::Value,)+ Vec<Z::Value>,);
            type Initial = NeedsBlockedBy;

            fn ids(($($value,)+ rest,): &Self::Chains) -> Vec<ChainId> {
                [$($value.id(),)+].into_iter().chain(rest.iter().map(Chain::id)).collect()
            }

            fn decode(outputs: &[BlockerOutput]) -> Result<Self::Outputs> {
                let mut outputs = outputs.iter();
                Ok(($($slot::decode(next(&mut outputs)?)?,)+ outputs.map(Z::decode).collect::<Result<_>>()?,))
            }

            fn names() -> Vec<String> {
                vec![$(<$slot::Job as super::Job>::NAME.to_owned(),)+ many::<Z>()]
            }

            fn policy() -> Option<OnBlockerFailure> {
                ($($slot::RECEIVES ||)+ Z::RECEIVES).then_some(OnBlockerFailure::Receive)
            }
        }
    };
}
blockers!(A a);
blockers!(A a B b);
blockers!(A a B b C c);
blockers!(A a B b C c D d);
blockers!(A a B b C c D d E e);
blockers!(A a B b C c D d E e F f);
