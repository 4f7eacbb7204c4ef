use super::{Job, Search, Then};
use crate::error::Result;

/// The declared continuations of a job type.
///
/// They connect the output of a chain's last job to the output of its entry type. Implemented for tuples of
/// up to eight job types for which `J` implements [`Then`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the continuations of `{J}`",
    note = "use a tuple of job types, and implement `Then<N>` for each of them"
)]
pub trait Continuations<J: Job> {
    /// Resolves the search exactly `depth` continuations away from each of these types.
    #[doc(hidden)]
    fn resolve(search: &mut Search<'_>, depth: usize) -> Option<Result<J::Output>>;

    /// Returns the names of the types.
    fn names() -> Vec<&'static str>;
}

impl<J: Job> Continuations<J> for () {
    fn resolve(_: &mut Search<'_>, _: usize) -> Option<Result<J::Output>> {
        None
    }

    fn names() -> Vec<&'static str> {
        Vec::new()
    }
}

macro_rules! continuations {
    ($($next:ident)+) => {
        impl<J, $($next),+> Continuations<J> for ($($next,)+)
        where
            J: Job $(+ Then<$next>)+,
            J::Output: $(From<$next::Output> +)+,
            $($next: Job,)+
        {
            fn resolve(search: &mut Search<'_>, depth: usize) -> Option<Result<J::Output>> {
                $(if let Some(found) = search.resolve::<$next>(depth) {
                    return Some(found.map(Into::into));
                })+
                None
            }

            fn names() -> Vec<&'static str> {
                vec![$($next::NAME,)+]
            }
        }
    };
}
continuations!(A);
continuations!(A B);
continuations!(A B C);
continuations!(A B C D);
continuations!(A B C D E);
continuations!(A B C D E F);
continuations!(A B C D E F G);
continuations!(A B C D E F G H);
