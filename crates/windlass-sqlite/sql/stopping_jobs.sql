-- Running jobs that were asked to stop.
select id, fence, worker
from {prefix}job indexed by {prefix}job_running
where status = 'running' and cancel_requested = 1
