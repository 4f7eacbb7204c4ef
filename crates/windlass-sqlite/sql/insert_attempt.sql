insert into {prefix}attempt (job, fence, attempt, worker, worker_name, started_at, ended_at, ended, error)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
