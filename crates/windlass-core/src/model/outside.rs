use std::sync::Arc;

use super::create::Aliases;
use super::row::JobRow;
use super::rows::Stop;
use super::settle::Closing;
use super::{Execution, Rows};
use crate::command::{CompleteFromOutside, CompleteFromOutsideReply, OutsideApplied, Ripple, Step};
use crate::error::Result;
use crate::record::{AttemptEnd, ClosedAs, Status};

impl<R: Rows> Execution<'_, R> {
    pub(super) fn complete_from_outside(
        &mut self,
        request: &CompleteFromOutside,
    ) -> Result<CompleteFromOutsideReply> {
        request.check_size()?;
        self.complete(request)
    }

    fn complete(&mut self, request: &CompleteFromOutside) -> Result<CompleteFromOutsideReply> {
        let Some(row) = self.rows.job(request.job)? else { return Ok(CompleteFromOutsideReply::NotFound) };
        if row.outside == Some(request.request) {
            return Ok(CompleteFromOutsideReply::AlreadyApplied);
        }
        let (status, version) = (row.job.status, row.job.version);
        if !status.is_open() || version != request.version {
            return Ok(CompleteFromOutsideReply::Changed { status, version });
        }
        if let Err(refusal) = request.check() {
            return Ok(CompleteFromOutsideReply::Refused(refusal));
        }
        let mark = self.rows.mark();
        match self.apply_steps(&row, request) {
            Ok(applied) => Ok(CompleteFromOutsideReply::Applied(applied)),
            Err(Stop::Refused(refusal)) => {
                self.rows.undo_to(mark)?;
                Ok(CompleteFromOutsideReply::Refused(refusal))
            }
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn apply_steps(&mut self, row: &JobRow, request: &CompleteFromOutside) -> Result<OutsideApplied, Stop> {
        let displaced = row.job.lease.as_ref().map(|lease| lease.worker);
        let (mut created, mut ripple, mut latest) = (Vec::new(), Ripple::default(), row.summary());
        for step in &request.steps {
            let Some(mut row) = self.rows.job(latest.job)? else { break };
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
            let row = self.close_job(row, Closing { closed_as, output, error, by: None, end })?;
            ripple.closed.extend(self.close_chain(row.job.chain, closed_as, retention)?);
            latest = row.summary();
            break;
        }
        self.ripple(&mut ripple)?;
        Ok(OutsideApplied { latest, displaced, created, ripple })
    }
}
