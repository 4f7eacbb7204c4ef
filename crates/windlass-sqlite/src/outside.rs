//! Completes jobs without a worker.

use windlass_core::command::{
    CompleteFromOutside, CompleteFromOutsideReply, Outcome, OutsideApplied, Ripple, Settlement, Step,
};
use windlass_core::{AttemptEnd, ClosedAs, Refusal, RequestId, Result, Status};

use crate::create::Aliases;
use crate::row::{JobRow, hex};
use crate::session::{Execute, Session};
use crate::settle::Closing;
use crate::statement::set;
use crate::unit_of_work::UnitOfWork;

impl Execute for CompleteFromOutside {
    async fn execute(&self, session: &mut Session<'_>) -> Result<CompleteFromOutsideReply> {
        self.check_size()?;
        let mut working = UnitOfWork::new(session.now());
        let asked = [(hex(self.job.as_uuid()), 0)];
        let rows = session.rows(&session.statements.load_jobs, vec![set(&asked)?]).await?;
        let Some(stored) = rows.first() else { return Ok(CompleteFromOutsideReply::NotFound) };
        if stored.maybe_uuid("outside")?.map(RequestId::from_uuid) == Some(self.request) {
            return Ok(CompleteFromOutsideReply::AlreadyApplied);
        }
        let row = JobRow::read(stored)?;
        let (status, version) = (row.status, row.version);
        if !status.is_open() || version != self.version {
            return Ok(CompleteFromOutsideReply::Changed { status, version });
        }
        if let Err(refusal) = self.check() {
            return Ok(CompleteFromOutsideReply::Refused(refusal));
        }
        working.learn_job(row.clone());
        let ends: Vec<_> = self.steps.iter().map(|step| settlement(&row, step)).collect();
        working.load_touched(session, &ends.iter().collect::<Vec<_>>()).await?;
        let mut applied = match working.apply_steps(row, self) {
            Ok(applied) => applied,
            // Nothing has been written: the steps before this one changed only `working`.
            Err(refusal) => return Ok(CompleteFromOutsideReply::Refused(refusal)),
        };
        working.load_traces(session, &mut applied.ripple).await?;
        working.flush(session).await?;
        Ok(CompleteFromOutsideReply::Applied(applied))
    }
}

impl UnitOfWork {
    fn apply_steps(
        &mut self,
        mut row: JobRow,
        request: &CompleteFromOutside,
    ) -> Result<OutsideApplied, Refusal> {
        let displaced = row.worker.filter(|_| row.status == Status::Running);
        let (mut created, mut ripple, mut latest) = (Vec::new(), Ripple::default(), row.summary());
        for step in &request.steps {
            row.outside = Some(request.request);
            let end = (row.status == Status::Running).then_some(AttemptEnd::Displaced);
            let stopping = row.cancel_requested.then_some(row.chain);
            let (closed_as, output, error, retention) = match step {
                Step::Continue { .. } if stopping.is_some() => {
                    (ClosedAs::Cancelled, None, row.error.clone(), None)
                }
                Step::Continue { next, create } => {
                    let applied = self.continue_chain(row, next, create, (None, end), &mut ripple)?;
                    created.extend(applied.created);
                    latest = applied.next.unwrap_or(applied.job);
                    let Some(next) = self.job(latest.job) else { break };
                    row = next.clone();
                    continue;
                }
                Step::Complete { output, retention, create } => {
                    created.extend(self.create_carried(create, &mut Aliases::new(), stopping)?);
                    (ClosedAs::Completed, Some(output.clone()), None, *retention)
                }
                Step::Fail { error, retention } => (ClosedAs::Failed, None, Some(error.clone()), *retention),
            };
            let row = self.close_job(row, Closing { closed_as, output, error, by: None, end });
            ripple.closed.extend(self.close_chain(row.chain, closed_as, retention));
            latest = row.summary();
            break;
        }
        self.ripple(&mut ripple);
        Ok(OutsideApplied { latest, displaced, created, ripple })
    }
}

/// Converts a step to the settlement that touches the same rows.
fn settlement(row: &JobRow, step: &Step) -> Settlement {
    let outcome = match step.clone() {
        Step::Complete { output, retention, create } => Outcome::Complete { output, retention, create },
        Step::Continue { next, create } => Outcome::Continue { next, create },
        Step::Fail { error, retention } => Outcome::Fail { error, retention },
    };
    Settlement { job: row.id, fence: row.fence, outcome }
}
