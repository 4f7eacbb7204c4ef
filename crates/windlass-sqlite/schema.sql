CREATE VIEW windlass_attempts as
select
  case when j.id is not null then lower(substr(hex(j.id), 1, 8) || '-' || substr(hex(j.id), 9, 4) || '-' || substr(hex(j.id), 13, 4) || '-' || substr(hex(j.id), 17, 4) || '-' || substr(hex(j.id), 21)) end as job,
  j.type,
  case when j.chain is not null then lower(substr(hex(j.chain), 1, 8) || '-' || substr(hex(j.chain), 9, 4) || '-' || substr(hex(j.chain), 13, 4) || '-' || substr(hex(j.chain), 17, 4) || '-' || substr(hex(j.chain), 21)) end as chain,
  a.attempt,
  a.ended,                                    -- `running`, or how it ended
  strftime('%Y-%m-%dT%H:%M:%fZ', a.started_at / 1000.0, 'unixepoch') as started_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', a.ended_at / 1000.0, 'unixepoch') as ended_at,
  case when a.worker is not null then lower(substr(hex(a.worker), 1, 8) || '-' || substr(hex(a.worker), 9, 4) || '-' || substr(hex(a.worker), 13, 4) || '-' || substr(hex(a.worker), 17, 4) || '-' || substr(hex(a.worker), 21)) end as worker,
  a.worker_name,
  a.error
from (
  select job, attempt, ended, started_at, ended_at, worker, worker_name, error
  from windlass_attempt
  union all
  select
    seq, attempt, case status when 'running' then 'running' else ended end, started_at,
    case when status <> 'running' then closed_at end, worker, worker_name,
    case when status in ('failed', 'cancelled') then error end
  from windlass_job
  where worker is not null and started_at is not null and (status = 'running' or ended is not null)
) a
join windlass_job j on j.seq = a.job;

CREATE VIEW windlass_chains as
select
  case when f.id is not null then lower(substr(hex(f.id), 1, 8) || '-' || substr(hex(f.id), 9, 4) || '-' || substr(hex(f.id), 13, 4) || '-' || substr(hex(f.id), 17, 4) || '-' || substr(hex(f.id), 21)) end as id,
  f.type,
  coalesce(f.chain_closed_as, l.status) as status,
  f.key,
  strftime('%Y-%m-%dT%H:%M:%fZ', f.created_at / 1000.0, 'unixepoch') as created_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', f.chain_closed_at / 1000.0, 'unixepoch') as closed_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', f.retain_until / 1000.0, 'unixepoch') as retain_until,
  f.latest_position + 1 as jobs,              -- how many it has had
  case when f.latest is not null then lower(substr(hex(f.latest), 1, 8) || '-' || substr(hex(f.latest), 9, 4) || '-' || substr(hex(f.latest), 13, 4) || '-' || substr(hex(f.latest), 17, 4) || '-' || substr(hex(f.latest), 21)) end as job,                     -- its latest job
  l.type as job_type,
  l.attempt,
  strftime('%Y-%m-%dT%H:%M:%fZ', l.due_at / 1000.0, 'unixepoch') as due_at,
  l.error,
  case when f.input_codec = 'json' and json_valid(cast(f.input as text)) then json(cast(f.input as text)) end as input,
  f.input_codec as input_encoding,
  length(f.input) as input_bytes,
  case when l.output_codec = 'json' and json_valid(cast(l.output as text)) then json(cast(l.output as text)) end as output,
  l.output_codec as output_encoding,
  length(l.output) as output_bytes
from windlass_job f
left join windlass_job l on l.id = f.latest
where f.position = 0;

CREATE VIEW windlass_jobs as
select
  case when j.id is not null then lower(substr(hex(j.id), 1, 8) || '-' || substr(hex(j.id), 9, 4) || '-' || substr(hex(j.id), 13, 4) || '-' || substr(hex(j.id), 17, 4) || '-' || substr(hex(j.id), 21)) end as id,
  j.type,
  j.status,
  (select f.key from windlass_job f where f.id = j.chain) as key, -- its chain's
  case when j.chain is not null then lower(substr(hex(j.chain), 1, 8) || '-' || substr(hex(j.chain), 9, 4) || '-' || substr(hex(j.chain), 13, 4) || '-' || substr(hex(j.chain), 17, 4) || '-' || substr(hex(j.chain), 21)) end as chain,
  j.chain_type,
  j.position,                                 -- its place in the chain, from 0
  j.priority,
  j.attempt,                                  -- the number of the latest attempt, 0 before the first
  j.max_attempts,
  strftime('%Y-%m-%dT%H:%M:%fZ', j.due_at / 1000.0, 'unixepoch') as due_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', j.created_at / 1000.0, 'unixepoch') as created_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', j.started_at / 1000.0, 'unixepoch') as started_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', j.closed_at / 1000.0, 'unixepoch') as closed_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', j.lease_until / 1000.0, 'unixepoch') as leased_until,
  case when j.worker is not null then lower(substr(hex(j.worker), 1, 8) || '-' || substr(hex(j.worker), 9, 4) || '-' || substr(hex(j.worker), 13, 4) || '-' || substr(hex(j.worker), 17, 4) || '-' || substr(hex(j.worker), 21)) end as worker,                  -- of the latest attempt
  j.worker_name,
  j.cancel_requested,
  j.error,
  case when j.blockers > 0 then (
    select json_group_array(chain) from (
      select case when b.chain is not null then lower(substr(hex(b.chain), 1, 8) || '-' || substr(hex(b.chain), 9, 4) || '-' || substr(hex(b.chain), 13, 4) || '-' || substr(hex(b.chain), 17, 4) || '-' || substr(hex(b.chain), 21)) end as chain from windlass_blocker b where b.job = j.seq order by b.position
    )
  ) else '[]' end as blockers,
  case when j.status = 'blocked' then (
    select json_group_array(chain) from (
      select case when b.chain is not null then lower(substr(hex(b.chain), 1, 8) || '-' || substr(hex(b.chain), 9, 4) || '-' || substr(hex(b.chain), 13, 4) || '-' || substr(hex(b.chain), 17, 4) || '-' || substr(hex(b.chain), 21)) end as chain from windlass_blocker b where b.job = j.seq and b.waiting = 1 order by b.position
    )
  ) else '[]' end as waiting_for,             -- the blockers that have not ended
  case when j.input_codec = 'json' and json_valid(cast(j.input as text)) then json(cast(j.input as text)) end as input,
  j.input_codec as input_encoding,
  length(j.input) as input_bytes,
  case when j.output_codec = 'json' and json_valid(cast(j.output as text)) then json(cast(j.output as text)) end as output,
  j.output_codec as output_encoding,
  length(j.output) as output_bytes
from windlass_job j;

CREATE TABLE windlass_attempt (
  job integer not null,
  fence integer not null,
  attempt integer not null,
  worker blob not null,
  worker_name text,
  started_at integer not null,
  ended_at integer not null,
  ended text not null,
  error text,
  primary key (job, fence)
) strict, without rowid;

CREATE TABLE windlass_blocker (
  job integer not null,
  position integer not null,
  chain blob not null,
  resolved integer not null,
  waiting integer not null,                   -- whether the job is blocked, and by this chain too
  eager integer not null,                     -- whether a failure of the chain ends the wait
  trace text,
  primary key (job, position)
) strict, without rowid;

CREATE TABLE windlass_job (
  seq integer primary key,                    -- the order of creation
  id blob not null,
  chain blob not null,
  position integer not null,                  -- its place in the chain, from 0
  type text not null,
  chain_type text not null,
  status text not null,                       -- blocked, pending, running, completed, failed or cancelled
  priority integer not null,
  due_at integer not null,
  attempt integer not null,
  max_attempts integer,
  fence integer not null,
  version integer not null,
  worker blob,                                -- who made the latest attempt
  worker_name text,                           -- its name, if it has one
  request blob,                               -- the acquire that leased it, while it runs
  lease_until integer,                        -- while it runs
  cancel_requested integer not null,
  blockers integer not null,                  -- how many it has in the table of blockers
  attempts integer not null,                  -- how many it has in the table of attempts
  on_blocker_failure text not null,           -- wait, fail or receive
  created_at integer not null,
  started_at integer,
  closed_at integer,
  closed_by blob,
  ended text,                                 -- how the attempt that closed it ended
  outside blob,                               -- the completion from outside that closed it
  trace text,

  -- The chain, in its first job's row only.
  latest blob,
  latest_position integer,
  key text,
  key_hold text,                              -- open, completed, completed_or_failed or any
  key_window integer,
  key_held integer,
  retain_completed integer,
  retain_failed integer,
  retain_cancelled integer,
  chain_trace text,
  chain_closed_at integer,
  chain_closed_as text,                       -- completed, failed or cancelled
  retain_until integer,
  leaves_at integer,                          -- when the closed chain may be deleted
  trim_at integer,                            -- when the oldest inner job of the open chain may be deleted
  needed_by integer not null default 0,       -- how many blockers of open or failed jobs it is
  rippling integer,                           -- whether jobs that waited for it are still to be resolved

  error text,
  input_codec text not null,
  input blob not null,
  output_codec text,
  output blob
) strict;

CREATE TABLE windlass_leader (
  name text primary key,
  token blob not null,
  until integer not null
) strict, without rowid;

CREATE TABLE windlass_migration (
  step integer primary key,
  name text not null,
  applied_at integer not null
) strict
;

CREATE TABLE windlass_paused (
  type text primary key
) strict, without rowid;

CREATE TABLE windlass_schedule (
  name text primary key,
  id blob not null unique,
  revision blob not null,
  due_at integer,
  handled integer,
  definition text not null,
  state text not null
) strict, without rowid;

CREATE TABLE windlass_sequence (
  last integer not null,                      -- the last number in the order of creation
  deleted_fence integer not null              -- the largest fence of a deleted job
) strict;

CREATE TABLE windlass_tally (
  type text not null,
  status text not null,                       -- blocked, pending, running, completed, failed or cancelled
  jobs integer not null,
  former integer not null default 0,          -- how many ended with this status, and were removed or retried since
  primary key (type, status)
) strict, without rowid;

CREATE TABLE windlass_worker (
  id blob primary key,
  name text,
  types text not null,                        -- a JSON array
  concurrency integer not null,
  running integer not null,
  started_at integer not null,
  seen_at integer not null,
  expires_at integer not null                 -- without a beat until then, the worker is not listed
) strict, without rowid;

CREATE INDEX windlass_blocker_chain on windlass_blocker (chain, job);

CREATE INDEX windlass_blocker_eager on windlass_blocker (chain, job) where waiting = 1 and eager = 1;

CREATE INDEX windlass_blocker_waiting on windlass_blocker (chain, job) where waiting = 1;

CREATE UNIQUE INDEX windlass_job_chain on windlass_job (chain, position) where position > 0;

CREATE UNIQUE INDEX windlass_job_id on windlass_job (id);

CREATE UNIQUE INDEX windlass_job_key on windlass_job (type, key) where key_held = 1;

CREATE INDEX windlass_job_leaving on windlass_job (leaves_at, seq) where leaves_at is not null and needed_by = 0;

CREATE INDEX windlass_job_pending on windlass_job (type, priority desc, due_at, seq) where status = 'pending';

CREATE INDEX windlass_job_rippling on windlass_job (chain_closed_at, seq) where rippling = 1;

CREATE INDEX windlass_job_running on windlass_job (request, lease_until, seq, type) where status = 'running';

CREATE INDEX windlass_job_trimming on windlass_job (trim_at, id) where trim_at is not null and chain_closed_at is null;

CREATE INDEX windlass_leader_ended on windlass_leader (until);

CREATE INDEX windlass_schedule_due on windlass_schedule (due_at, name) where due_at is not null;

CREATE INDEX windlass_worker_expiry on windlass_worker (expires_at);

