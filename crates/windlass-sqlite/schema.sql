CREATE TABLE windlass_attempt (
  job integer not null,
  fence integer not null,
  attempt integer not null,
  worker blob not null,
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

CREATE TABLE windlass_sequence (
  last integer not null
) strict;

CREATE TABLE windlass_tally (
  type text not null,
  status text not null,                       -- blocked, pending, running, completed, failed or cancelled
  jobs integer not null,
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

CREATE INDEX windlass_worker_expiry on windlass_worker (expires_at);

