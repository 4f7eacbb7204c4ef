-- Paused job types.
create table {prefix}paused (
  type text primary key
) strict, without rowid;

-- Registered workers.
create table {prefix}worker (
  id blob primary key,
  name text,
  types text not null,                        -- a JSON array
  concurrency integer not null,
  running integer not null,
  started_at integer not null,
  seen_at integer not null,
  expires_at integer not null                 -- without a beat until then, the worker is not listed
) strict, without rowid;

create index {prefix}worker_expiry on {prefix}worker (expires_at);

-- Locks with one holder at a time.
create table {prefix}leader (
  name text primary key,
  token blob not null,
  until integer not null
) strict, without rowid;

create index {prefix}leader_ended on {prefix}leader (until);

-- Schedules. Only the library reads the definition and the state.
create table {prefix}schedule (
  name text primary key,
  id blob not null unique,
  revision blob not null,
  due_at integer,
  handled integer,
  definition text not null,
  state text not null
) strict, without rowid;

create index {prefix}schedule_due on {prefix}schedule (due_at, name) where due_at is not null;
