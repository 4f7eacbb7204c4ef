use tracing::{Level, debug, enabled, error, info, warn};

use super::{Event, Frequent, Observer};

/// Logs each event with [`tracing`], under the target `windlass`. Every client has this observer. Without a
/// `tracing` subscriber it costs almost nothing.
///
/// Handlers run inside the span `attempt`, which has the job, chain, type and attempt number as fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Log;

/// Logs a line about a job.
macro_rules! line {
    ($level:ident, $about:expr, $message:literal $(, $field:ident = $value:expr)*) => {
        $level!(
            target: "windlass",
            job = %$about.job,
            job_type = %$about.job_type,
            chain = %$about.chain,
            chain_type = %$about.chain_type,
            attempt = $about.attempt,
            worker = $about.worker.map(tracing::field::display),
            worker_name = $about.worker_name.as_ref().map(tracing::field::display),
            $($field = %$value,)*
            $message
        )
    };
}

/// Logs a line about a worker.
macro_rules! worker_line {
    ($level:ident, $worker:expr, $message:literal $(, $field:ident = $value:expr)*) => {
        $level!(
            target: "windlass",
            worker = %$worker.id,
            worker_name = $worker.name.as_ref().map(tracing::field::display),
            $($field = %$value,)*
            $message
        )
    };
}

impl Observer for Log {
    fn observe(&self, event: &Event) {
        match event {
            Event::WorkerStarted(worker) => worker_line!(info, worker, "worker started"),
            Event::WorkerFailed(worker, why) => {
                worker_line!(error, worker, "worker failed, will retry", error = why);
            }
            Event::WorkerStopping(worker) => worker_line!(info, worker, "worker stopping"),
            Event::WorkerStopped(worker) => worker_line!(info, worker, "worker stopped"),
            Event::ChainDeleted(chain, chain_type) => {
                info!(target: "windlass", %chain, %chain_type, "chain deleted");
            }
            Event::ChainExpired(chain, chain_type) => {
                debug!(target: "windlass", %chain, %chain_type, "chain expired");
            }
            Event::StoreFailed(command, why) => {
                warn!(target: "windlass", command, error = %why, "store command failed");
            }
            Event::NotifierFailed(call, why) => {
                warn!(target: "windlass", call, error = %why, "notifier call failed");
            }
            event => about_job(event),
        }
    }

    fn is_on(&self) -> bool {
        enabled!(target: "windlass", Level::ERROR)
    }

    fn wants(&self, event: Frequent) -> bool {
        match event {
            Frequent::ChainCreated | Frequent::AttemptStarted => enabled!(target: "windlass", Level::DEBUG),
            Frequent::JobCompleted => enabled!(target: "windlass", Level::INFO),
        }
    }
}

fn about_job(event: &Event) {
    match event {
        Event::ChainCreated(about) => line!(debug, about, "chain created"),
        Event::JobCreated(about) => line!(debug, about, "job created"),
        Event::JobBlocked(about) => line!(debug, about, "job blocked"),
        Event::JobUnblocked(about) => line!(debug, about, "job unblocked"),
        Event::BlockerFailed(about, blocker, closed_as) => {
            line!(
                warn,
                about,
                "job still waits for a chain that failed or was cancelled: retry the chain or cancel the job",
                blocker = blocker,
                closed_as = format_args!("{closed_as:?}")
            );
        }
        Event::JobTriggered(about) => line!(info, about, "job triggered"),
        Event::AttemptStarted(about) => line!(debug, about, "attempt started"),
        Event::LeaseRenewed(about) => line!(debug, about, "lease renewed"),
        Event::AttemptTimedOut(about) => {
            line!(warn, about, "attempt timed out, its lease is no longer renewed")
        }
        Event::AttemptLost(about) => line!(warn, about, "attempt lost its job"),
        Event::HandlerMissing(about) => line!(warn, about, "no handler for acquired job, will reschedule"),
        Event::AttemptFailed(about, why, at) => {
            line!(warn, about, "attempt failed", error = why, due_at = at);
        }
        Event::AttemptRescheduled(about, at) => line!(info, about, "attempt rescheduled", due_at = at),
        Event::AttemptReleased(about) => line!(info, about, "job requeued, its worker is stopping"),
        Event::AttemptReaped(about) => line!(warn, about, "lease expired"),
        Event::JobCompleted(about, Some(next)) => line!(info, about, "job completed", next = next),
        Event::JobCompleted(about, None) => line!(info, about, "job completed"),
        Event::JobFailed(about, why) => line!(error, about, "job failed", error = why),
        Event::JobCancelled(about) => line!(info, about, "job cancelled"),
        Event::ChainClosed(about, closed_as) => {
            line!(info, about, "chain closed", closed_as = format_args!("{closed_as:?}"));
        }
        Event::ChainRetried(about) => line!(info, about, "chain retried"),
        Event::TransactionLong(about, open_for) => {
            line!(
                warn,
                about,
                "handler kept its transaction open for a long time",
                open_for = format_args!("{open_for:?}")
            );
        }
        Event::HookFailed(about, why) => line!(error, about, "hook failed after the handler", error = why),
        Event::MiddlewareFailed(about, why) => line!(error, about, "middleware failed", error = why),
        _ => {}
    }
}
