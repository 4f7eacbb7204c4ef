use std::sync::Arc;

use super::Execution;
use super::create::Aliases;
use super::row::JobRow;
use super::settle::Closing;
use crate::command::{CompleteFromOutside, CompleteFromOutsideReply, OutsideApplied, Ripple, Step};
use crate::error::Result;
use crate::record::{AttemptEnd, ClosedAs, Status};
use crate::refusal::Refusal;

impl Execution<'_> {
    pub(super) fn complete_from_outside(
        &mut self,
        request: &CompleteFromOutside,
    ) -> Result<CompleteFromOutsideReply> {
        request.check_size()?;
        Ok(self.complete(request))
    }

    fn complete(&mut self, request: &CompleteFromOutside) -> CompleteFromOutsideReply {
        let Some(row) = self.tables.job(request.job).cloned() else {
            return CompleteFromOutsideReply::NotFound;
        };
        if row.outside == Some(request.request) {
            return CompleteFromOutsideReply::AlreadyApplied;
        }
        let (status, version) = (row.job.status, row.job.version);
        if !status.is_open() || version != request.version {
            return CompleteFromOutsideReply::Changed { status, version };
        }
        if let Err(refusal) = request.check() {
            return CompleteFromOutsideReply::Refused(refusal);
        }
        let mark = self.tables.mark();
        match self.apply_steps(&row, request) {
            Ok(applied) => CompleteFromOutsideReply::Applied(applied),
            Err(refusal) => {
                self.tables.undo_to(mark);
                CompleteFromOutsideReply::Refused(refusal)
            }
        }
    }

    fn apply_steps(
        &mut self,
        row: &JobRow,
        request: &CompleteFromOutside,
    ) -> Result<OutsideApplied, Refusal> {
        let displaced = row.job.lease.map(|lease| lease.worker);
        let (mut created, mut ripple, mut latest) = (Vec::new(), Ripple::default(), row.summary());
        for step in &request.steps {
            let Some(row) = self.tables.job(latest.job) else { break };
            let mut row = Arc::clone(row);
            Arc::make_mut(&mut row).outside = Some(request.request);
            let end = (row.job.status == Status::Running).then_some(AttemptEnd::Displaced);
            let stopping = row.job.cancel_requested.then_some(row.job.chain);
            let (closed_as, output, error, retention) = match step {
                Step::Continue { .. } if stopping.is_some() => {
                    (ClosedAs::Cancelled, None, row.job.error.clone(), None)
                }
                Step::Continue { next, create } => {
                    let applied = self.continue_chain(row, next, create, (None, end), &mut ripple)?;
                    created.extend(applied.created);
                    latest = applied.next.unwrap_or(applied.job);
                    continue;
                }
                Step::Complete { output, retention, create } => {
                    created.extend(self.create_carried(create, &mut Aliases::new(), stopping)?);
                    (ClosedAs::Completed, Some(output.clone()), None, *retention)
                }
                Step::Fail { error, retention } => (ClosedAs::Failed, None, Some(error.clone()), *retention),
            };
            let row = self.close_job(row, Closing { closed_as, output, error, by: None, end });
            ripple.closed.extend(self.close_chain(row.job.chain, closed_as, retention));
            latest = row.summary();
            break;
        }
        self.ripple(&mut ripple);
        Ok(OutsideApplied { latest, displaced, created, ripple })
    }
}
