//! The spans of a new job's waits, until they are linked to the chains that the job waits for.

use std::time::SystemTime;

use opentelemetry::KeyValue;
use opentelemetry::global::BoxedSpan;
use opentelemetry::trace::{Span as _, SpanContext};
use windlass_core::{ChainId, Traced, TypeName};

use crate::attributes::{BLOCKER_INDEX, BLOCKER_TYPE};
use crate::spans::end_all;

/// The spans of waits that are not linked yet. When dropped, ends them without links.
pub(crate) struct Waits(pub(crate) Vec<Wait>);

pub(crate) struct Wait {
    blocker: ChainId,
    span: BoxedSpan,
    /// When the wait was written. The span ends at this time, even if its link is found later.
    written_at: SystemTime,
}

impl Waits {
    /// `blockers` are the chains that the job waits for, in order.
    pub(crate) fn new(spans: Vec<(Traced, BoxedSpan)>, blockers: &[ChainId]) -> Self {
        let written_at = opentelemetry::time::now();
        let waits = spans.into_iter().filter_map(|(traced, mut span)| {
            let Traced::Wait(blocker) = traced else { return None };
            let index = blockers.iter().position(|chain| *chain == blocker);
            let index = index.and_then(|index| i64::try_from(index).ok());
            span.set_attributes(index.map(|index| KeyValue::new(BLOCKER_INDEX, index)));
            Some(Wait { blocker, span, written_at })
        });
        Self(waits.collect())
    }

    /// Links those waits whose chains `find` knows, and ends their spans. A chain that is not sampled has no span.
    pub(crate) fn link(&mut self, find: impl Fn(ChainId) -> Option<(SpanContext, TypeName)>) {
        for mut wait in std::mem::take(&mut self.0) {
            let Some((context, chain_type)) = find(wait.blocker) else {
                self.0.push(wait);
                continue;
            };
            wait.span.set_attribute(KeyValue::new(BLOCKER_TYPE, chain_type.as_str().to_owned()));
            if context.is_sampled() {
                wait.span.add_link(context, Vec::new());
            }
            wait.end();
        }
    }
}

impl Wait {
    fn end(self) {
        let Self { span, written_at, .. } = self;
        end_all([span], |span| span.end_with_timestamp(written_at));
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        std::mem::take(&mut self.0).into_iter().for_each(Wait::end);
    }
}
