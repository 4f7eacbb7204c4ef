-- Locks are acquired in one order: jobs held by attempts, keys, chains, waiting jobs; within a kind, by id or key. If
-- a lock is not granted in time, or would cause a deadlock, an open transaction holds the row: the item is busy.
--
-- The row of a first job is also its chain's row. Who may hold it at the same time:
--
-- - `key share`: attaches a job to the chain. While it is held, the chain cannot end, but its job can be acquired, renewed and
--   retried. In a snapshot, it may succeed on a chain that has ended since: only the mark that `insert_job_v1` leaves
--   makes a later command resolve that wait.
-- - `no key update`: changes the job, without ending the chain. All updates take this lock by themselves.
-- - `update`: ends, continues, reopens or removes the chain. Waits for the transactions that attach to it.
-- - `share`: no session can change the row. In a snapshot, this also fails if the row has changed since.
--
-- An acquire locks rows of `ready`, skips locked ones, and then updates the jobs. It must not wait there. So a
-- transaction that locks the row of a pending job in a way that excludes updates locks its row of `ready` first.

-- Locks the rows of `ready` of the pending jobs among these. Returns the jobs whose row another transaction has locked.
create function windlass.lock_ready_v1(wanted uuid[], patient boolean) returns uuid[] language plpgsql as $$
declare
  pending constant uuid[] := array(select j.id from windlass.job j where j.id = any (wanted) and j.status = 'pending');
  locked uuid[];
begin
  if cardinality(pending) = 0 then
    return pending;
  end if;
  locked := array(
    select r.job
    from (select j.* from windlass.job j where j.id = any (pending) order by j.id) j
    cross join lateral (
      select r.job from windlass.ready r
      where r.type = j.type and r.priority = j.priority and r.due_at = j.due_at and r.seq = j.seq
      for update skip locked
    ) r
  );
  if cardinality(locked) = cardinality(pending) then
    return '{}';
  end if;
  if patient then
    begin
      -- A row that has been deleted in the meantime belongs to a job that is not pending any more.
      perform
      from (select j.* from windlass.job j where j.id = any (pending) order by j.id) j
      cross join lateral (
        select r.job from windlass.ready r
        where r.type = j.type and r.priority = j.priority and r.due_at = j.due_at and r.seq = j.seq
        for update
      ) r;
      return '{}';
    exception when lock_not_available or deadlock_detected then
      null;
    end;
  end if;
  return array(select p from unnest(pending) p where p <> all (locked));
end
$$;

-- Locks jobs or chains that are free. Returns their ids.
create function windlass.lock_free_v1(wanted uuid[], mode text) returns uuid[] language plpgsql as $$
begin
  return case mode
    when 'key share' then array(select id from windlass.job where id = any (wanted) order by id for key share skip locked)
    when 'share' then array(select id from windlass.job where id = any (wanted) order by id for share skip locked)
    when 'no key update'
      then array(select id from windlass.job where id = any (wanted) order by id for no key update skip locked)
    else array(select id from windlass.job where id = any (wanted) order by id for update skip locked)
  end;
end
$$;

-- Locks jobs or chains, and waits for locked ones. Fails if a row stays locked.
create function windlass.lock_all_v1(wanted uuid[], mode text) returns void language plpgsql as $$
begin
  if mode = 'key share' then
    perform from windlass.job where id = any (wanted) order by id for key share;
  elsif mode = 'share' then
    perform from windlass.job where id = any (wanted) order by id for share;
  elsif mode = 'no key update' then
    perform from windlass.job where id = any (wanted) order by id for no key update;
  else
    perform from windlass.job where id = any (wanted) order by id for update;
  end if;
end
$$;

-- Locks chains, to attach jobs to them. Returns those that another transaction has locked.
create function windlass.lock_shared_v1(wanted uuid[]) returns uuid[] language plpgsql as $$
declare
  locked uuid[];
begin
  -- PostgreSQL may wait despite `skip locked`: for a newer version of a row that it does not see yet.
  begin
    locked := windlass.lock_free_v1(wanted, 'key share');
  exception when lock_not_available or deadlock_detected then
    return wanted;
  end;
  if cardinality(locked) = (select count(*) from windlass.job where id = any (wanted)) then
    return '{}';
  end if;
  begin
    perform windlass.lock_all_v1(wanted, 'key share');
    return '{}';
  exception when lock_not_available or deadlock_detected then
    return array(select id from windlass.job where id = any (wanted) and id <> all (locked));
  end;
end
$$;

-- Locks jobs or chains that may be pending. Returns those that another transaction has locked. Fails if an acquire is just
-- taking one of them.
create function windlass.lock_rows_v1(wanted uuid[], mode text) returns uuid[] language plpgsql as $$
declare
  busy uuid[] := windlass.lock_ready_v1(wanted, true);
  rows uuid[] := wanted;
  locked uuid[];
begin
  if cardinality(busy) > 0 then
    rows := array(select w from unnest(wanted) w where w <> all (busy));
  end if;
  -- Most rows are free. This path needs no subtransaction.
  locked := windlass.lock_free_v1(rows, mode);
  if cardinality(locked) < (select count(*) from windlass.job where id = any (rows)) then
    begin
      perform windlass.lock_all_v1(rows, mode);
    exception when lock_not_available or deadlock_detected then
      busy := busy || array(select id from windlass.job where id = any (rows) and id <> all (locked));
    end;
  end if;
  -- A job that has become pending since the first read has a row of `ready` that an acquire may have locked.
  locked := windlass.lock_ready_v1(array(select r from unnest(rows) r where r <> all (busy)), false);
  if cardinality(locked) > 0 then
    raise exception using errcode = 'WL003', message = 'a job has just become pending';
  end if;
  return busy;
end
$$;

-- As `lock_rows_v1`. If an acquire is just taking one of the jobs, all are busy and none stays locked.
create function windlass.try_lock_v1(wanted uuid[], mode text) returns uuid[] language plpgsql as $$
begin
  if cardinality(wanted) = 0 then
    return wanted;
  elsif mode = 'key share' then
    return windlass.lock_shared_v1(wanted);
  end if;
  return windlass.lock_rows_v1(wanted, mode);
exception when sqlstate 'WL003' then
  return wanted;
end
$$;

-- Locks jobs, to change them. Returns those that another transaction has locked.
create function windlass.lock_jobs_v1(wanted uuid[]) returns uuid[] language plpgsql as $$
begin
  return windlass.try_lock_v1(wanted, 'no key update');
end
$$;

-- Locks chains: shared to attach jobs to them, otherwise to end or to change them. Returns those that another
-- transaction has locked.
create function windlass.lock_chains_v1(wanted uuid[], shared boolean) returns uuid[] language plpgsql as $$
begin
  if shared then
    return case when cardinality(wanted) = 0 then wanted else windlass.lock_shared_v1(wanted) end;
  end if;
  return windlass.try_lock_v1(wanted, 'update');
end
$$;

-- Locks the chains that new jobs wait for, to attach to them. Returns the items that wait for a chain that another
-- transaction has locked.
create function windlass.lock_blockers_v1(new_jobs windlass.new_v1[]) returns integer[] language plpgsql as $$
declare
  -- Called once for all items. In a condition it would be called for each item.
  busy constant uuid[] := windlass.lock_chains_v1(
    array(select distinct b from unnest(new_jobs) n, unnest(n.blockers) b), true
  );
begin
  if cardinality(busy) = 0 then
    return '{}';
  end if;
  return array(select n.item from unnest(new_jobs) n where n.blockers && busy);
end
$$;

-- Whether a chain holds its key now. An expression, so that PostgreSQL can inline it.
create function windlass.holds_key_v1(now bigint, c windlass.chain) returns boolean language sql stable as $$
  select (c.key_window is null or now < windlass.later_v1(c.created_at, c.key_window))
    and (
      c.closed_as is null
      or now < c.retain_until and (
        c.key_hold = 'any'
        or c.closed_as = 'completed' and c.key_hold in ('completed', 'completed_or_failed')
        or c.closed_as = 'failed' and c.key_hold = 'completed_or_failed'
      )
    )
$$;

-- Returns the chain that holds a key now.
create function windlass.holder_v1(now bigint, key_type text, key_text text) returns uuid language plpgsql stable as $$
begin
  return (
    select c.id
    from (select k.chain from windlass.key k where k.type = key_type and k.key = key_text offset 0) k
    cross join lateral (
      select c.id from windlass.chain c where c.id = k.chain and windlass.holds_key_v1(now, c) offset 0
    ) c
  );
end
$$;

-- Points the keys of new chains at them: keys that were never used, and keys that no chain holds any more. Returns
-- the chains that got their key.
create function windlass.take_keys_v1(now bigint, ids uuid[], types text[], keys text[], replaces uuid[])
returns uuid[] language plpgsql as $$
declare
  taken uuid[];
  locked uuid[];
  freed uuid[];
begin
  with mine as (
    insert into windlass.key (type, key, chain)
    select n.type, n.key, n.id
    from unnest(ids, types, keys) n (id, type, key)
    where n.key is not null
    order by n.type, n.key
    on conflict do nothing
    returning chain
  )
  select coalesce(array_agg(m.chain), '{}') into taken from mine m;
  if cardinality(taken) = cardinality(array_remove(keys, null)) then
    return taken;
  end if;
  locked := array(
    select n.id
    from (
      select n.* from unnest(ids, types, keys, replaces) n (id, type, key, replaces)
      where n.key is not null and n.id not in (select unnest(taken))
      order by n.type, n.key
    ) n
    cross join lateral (
      select from windlass.key k
      where k.type = n.type and k.key = n.key and (
        select c.id is distinct from n.replaces and windlass.holds_key_v1(now, c) from windlass.chain c where c.id = k.chain
      ) is not true
      for no key update
    ) k
  );
  -- Read again, now that no other transaction can change it.
  with mine as (
    update windlass.key k
    set chain = n.id
    from unnest(ids, types, keys, replaces) n (id, type, key, replaces)
    where k.type = any (array[n.type]) and k.key = n.key and n.id in (select unnest(locked)) and (
        select c.id is distinct from n.replaces and windlass.holds_key_v1(now, c) from windlass.chain c where c.id = k.chain
      ) is not true
    returning k.chain
  )
  select coalesce(array_agg(m.chain), '{}') into freed from mine m;
  return taken || freed;
end
$$;

-- Returns the replies for new chains whose key another chain holds. Omits chains with large outputs, because all
-- outputs are returned in one array.
create function windlass.existing_v1(now bigint, ids uuid[], types text[], keys text[], replaces uuid[], mine uuid[])
returns setof windlass.reply_v1 language plpgsql stable as $$
begin
  return query
  select
    'created', n.item::integer, array[c.id], array['existing', l.status, l.type, l.output_codec, l.error, c.trace],
    null::bigint[], array[l.output]
  from unnest(ids, types, keys, replaces) with ordinality n (id, type, key, replaces, item)
  cross join lateral (select k.chain from windlass.key k where k.type = n.type and k.key = n.key offset 0) k
  cross join lateral (
    select c.* from windlass.chain c where c.id = k.chain and c.id is distinct from n.replaces and windlass.holds_key_v1(now, c)
    offset 0
  ) c
  cross join lateral (
    select l.* from windlass.job l where l.id = c.latest and coalesce(octet_length(l.output), 0) <= 65536 offset 0
  ) l
  where n.id not in (select unnest(mine))
    -- An item whose id is already stored is reported as a repeat or a refusal.
    and (select true from windlass.job j where j.id = n.id) is not true;
end
$$;

-- Removes the keys that were locked for chains that were not created.
create function windlass.free_keys_v1(new_jobs windlass.new_v1[]) returns void language plpgsql as $$
declare
  new windlass.new_v1;
begin
  foreach new in array new_jobs loop
    if new.key is not null then
      delete from windlass.key where type = new.type and key = new.key and chain is null;
    end if;
  end loop;
end
$$;

-- Acquires the key of a new chain, unless another chain holds it. Returns false if an open transaction has locked it.
create function windlass.lock_key_v1(now bigint, key_type text, key_text text) returns boolean language plpgsql as $$
begin
  insert into windlass.key (type, key) values (key_type, key_text) on conflict do nothing;
  perform from windlass.key where type = key_type and key = key_text for no key update;
  return true;
exception when lock_not_available or deadlock_detected then
  return false;
end
$$;

-- Checks that a snapshot shows the current state of the chain that a locked key points at. Its retention may have
-- been extended since, so that it still holds the key. Locking a row that has changed fails. Returns false if another
-- transaction has locked the row.
create function windlass.lock_pointed_v1(key_type text, key_text text) returns boolean language plpgsql as $$
begin
  return not windlass.in_snapshot_v1() or cardinality(windlass.try_lock_v1(array(
    select k.chain from windlass.key k where k.type = key_type and k.key = key_text and k.chain is not null
  ), 'share')) = 0;
end
$$;

-- Locks the keys of new chains that are free. Returns the items whose key an open transaction has locked.
create function windlass.lock_keys_v1(now bigint, new_jobs windlass.new_v1[]) returns integer[] language plpgsql as $$
declare
  wanted record;
  busy integer[] := '{}';
  patience constant text := current_setting('lock_timeout');
begin
  if not exists (select from unnest(new_jobs) n where n.key is not null) then
    return busy;
  end if;
  begin
    insert into windlass.key (type, key)
    select distinct n.type, n.key
    from unnest(new_jobs) n
    where n.key is not null
      and coalesce(windlass.holder_v1(now, n.type, n.key), n.replaces) is not distinct from n.replaces
    order by 1, 2
    on conflict do nothing;
    -- An item that waited for another creator now finds the key held, and needs no lock.
    perform
    from (
      select n.type, n.key
      from unnest(new_jobs) n
      where n.key is not null and coalesce(windlass.holder_v1(now, n.type, n.key), n.replaces) is not distinct from n.replaces
      order by n.type, n.key
    ) n
    cross join lateral (select from windlass.key k where k.type = n.type and k.key = n.key for no key update) k;
    return busy;
  exception when lock_not_available or deadlock_detected then
    null;
  end;
  -- The time limit for all items has passed: from here on, skip each locked row immediately.
  perform set_config('lock_timeout', '1ms', true);
  for wanted in
    select n.type, n.key, array_agg(n.item) as items
    from unnest(new_jobs) n
    where n.key is not null
      and coalesce(windlass.holder_v1(now, n.type, n.key), n.replaces) is not distinct from n.replaces
    group by n.type, n.key
    order by n.type, n.key
  loop
    if not windlass.lock_key_v1(now, wanted.type, wanted.key) then
      busy := busy || wanted.items;
    end if;
  end loop;
  perform set_config('lock_timeout', patience, true);
  return busy;
end
$$;
