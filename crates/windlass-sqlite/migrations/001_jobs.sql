-- One row per job. The row of a chain's first job (position 0) also has the chain's columns, so that the common chain
-- of one job is one row. Payloads come last, so that the other columns can be read without their pages. There are no
-- checks of values: SQLite builds a temporary tree for each list of values that it compares a new row with, which costs
-- more than the insert.
create table {prefix}job (
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

create unique index {prefix}job_id on {prefix}job (id);
create unique index {prefix}job_chain on {prefix}job (chain, position) where position > 0;
create index {prefix}job_pending on {prefix}job (type, priority desc, due_at, seq) where status = 'pending';
create index {prefix}job_running on {prefix}job (request, lease_until, seq, type) where status = 'running';
create unique index {prefix}job_key on {prefix}job (type, key) where key_held = 1;
create index {prefix}job_leaving on {prefix}job (leaves_at, seq) where leaves_at is not null and needed_by = 0;
create index {prefix}job_trimming on {prefix}job (trim_at, id) where trim_at is not null and chain_closed_at is null;
create index {prefix}job_rippling on {prefix}job (chain_closed_at, seq) where rippling = 1;

-- Numbers that outlive deleted jobs: a new job never reuses a creation number or a fence.
create table {prefix}sequence (
  last integer not null,                      -- the last number in the order of creation
  deleted_fence integer not null              -- the largest fence of a deleted job
) strict;

insert into {prefix}sequence (last, deleted_fence) values (0, 0);

-- How many jobs have each type and status.
create table {prefix}tally (
  type text not null,
  status text not null,                       -- blocked, pending, running, completed, failed or cancelled
  jobs integer not null,
  former integer not null default 0,          -- how many ended with this status, and were removed or retried since
  primary key (type, status)
) strict, without rowid;

-- The chains that a job waits or waited for.
create table {prefix}blocker (
  job integer not null,
  position integer not null,
  chain blob not null,
  resolved integer not null,
  waiting integer not null,                   -- whether the job is blocked, and by this chain too
  eager integer not null,                     -- whether a failure of the chain ends the wait
  trace text,
  primary key (job, position)
) strict, without rowid;

create index {prefix}blocker_chain on {prefix}blocker (chain, job);
create index {prefix}blocker_waiting on {prefix}blocker (chain, job) where waiting = 1;
create index {prefix}blocker_eager on {prefix}blocker (chain, job) where waiting = 1 and eager = 1;

-- Attempts that ended without closing their job.
create table {prefix}attempt (
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
