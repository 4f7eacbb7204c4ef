-- Whether this transaction reads from a snapshot (repeatable read or serializable), which hides what other transactions have committed
-- since it was taken. PostgreSQL checks the level once for each transaction, so it cannot change in between.
create function windlass.in_snapshot_v1() returns boolean language sql stable as $$
  select current_setting('transaction_isolation') in ('repeatable read', 'serializable')
$$;

-- Marks chains whose dependents a later command has to resolve.
create function windlass.mark_v1(now bigint, chains uuid[]) returns void language plpgsql as $$
begin
  insert into windlass.ripple (since, seq, chain)
  select now, c.seq, c.id from windlass.chain c where c.id = any (chains);
end
$$;

-- Checks that a command of the store runs at the right isolation level and settings, before it writes anything.
-- Returns the time passed to it. If the defaults of the database, the role or the pool differ, the client begins a
-- transaction with the right ones.
--
-- A command waits for locks for up to a second. A statement timeout in the same range would cancel a whole batch
-- because one of its items is busy. Operators are qualified with their schema, because the search path is still the
-- session's.
create function windlass.own_v1(given bigint) returns bigint language plpgsql as $$
declare
  level constant text := pg_catalog.current_setting('transaction_isolation');
  patience constant text := pg_catalog.current_setting('statement_timeout');
  mark text;
begin
  if level operator(pg_catalog.<>) 'read committed' and level operator(pg_catalog.<>) 'read uncommitted' then
    raise exception using errcode = 'WL002', message = 'the isolation level is ' operator(pg_catalog.||) level;
  elsif pg_catalog.current_setting('transaction_read_only') operator(pg_catalog.=) 'on' then
    raise exception using errcode = 'WL002', message = 'the transaction is read-only';
  elsif patience operator(pg_catalog.<>) '0' and patience::interval operator(pg_catalog.<) interval '10 seconds' then
    raise exception using errcode = 'WL002', message = 'statement_timeout is ' operator(pg_catalog.||) patience;
  end if;
  -- For `ripple_v1`: this transaction belongs to the store and ends with the command. An assignment is evaluated without a
  -- query, unlike `perform`.
  mark := pg_catalog.set_config('windlassjobs.own', '1', true);
  return given;
end
$$;
