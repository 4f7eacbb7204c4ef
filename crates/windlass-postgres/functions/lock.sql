-- Locks are acquired in one order: jobs held by attempts, keys, chains, waiting jobs; within a kind, by id or key. If
-- a lock is not granted in time, or would cause a deadlock, an open transaction holds the row: the item is busy.

-- Locks chains, for update or in share mode. Returns those that another transaction has locked.
create function windlass.lock_chains_v1(wanted uuid[], shared boolean) returns uuid[] language plpgsql as $$
declare
  locked uuid[];
begin
  if cardinality(wanted) = 0 then
    return wanted;
  end if;
  -- Most rows are free. This path needs no subtransaction.
  if shared then
    locked := array(select id from windlass.chain where id = any (wanted) order by id for share skip locked);
  else
    locked := array(select id from windlass.chain where id = any (wanted) order by id for no key update skip locked);
  end if;
  if cardinality(locked) = (select count(*) from windlass.chain where id = any (wanted)) then
    return '{}';
  end if;
  begin
    if shared then
      perform from windlass.chain where id = any (wanted) order by id for share;
    else
      perform from windlass.chain where id = any (wanted) order by id for no key update;
    end if;
    return '{}';
  exception when lock_not_available or deadlock_detected then
    return array(select id from windlass.chain where id = any (wanted) and id <> all (locked));
  end;
end
$$;

-- Locks in share mode the chains that new jobs wait for. Returns the items that wait for a chain that another
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

-- Locks jobs for update. Returns those that another transaction has locked.
create function windlass.lock_jobs_v1(wanted uuid[]) returns uuid[] language plpgsql as $$
declare
  locked uuid[];
begin
  locked := array(select id from windlass.job where id = any (wanted) order by id for no key update skip locked);
  if cardinality(locked) = (select count(*) from windlass.job where id = any (wanted)) then
    return '{}';
  end if;
  begin
    perform from windlass.job where id = any (wanted) order by id for no key update;
    return '{}';
  exception when lock_not_available or deadlock_detected then
    return array(select id from windlass.job where id = any (wanted) and id <> all (locked));
  end;
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
    from windlass.key k
    join windlass.chain c on c.id = k.chain
    where k.type = key_type and k.key = key_text and windlass.holds_key_v1(now, c)
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
    from unnest(ids, types, keys, replaces) n (id, type, key, replaces)
    join windlass.key k on k.type = n.type and k.key = n.key
    where n.id not in (select unnest(taken))
      and not exists (
        select from windlass.chain c where c.id = k.chain and c.id is distinct from n.replaces and windlass.holds_key_v1(now, c)
      )
    order by k.type, k.key
    for no key update of k
  );
  -- Read again, now that no other transaction can change it.
  with mine as (
    update windlass.key k
    set chain = n.id
    from unnest(ids, types, keys, replaces) n (id, type, key, replaces)
    where k.type = n.type and k.key = n.key and n.id in (select unnest(locked))
      and not exists (
        select from windlass.chain c where c.id = k.chain and c.id is distinct from n.replaces and windlass.holds_key_v1(now, c)
      )
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
  join windlass.key k on k.type = n.type and k.key = n.key
  join windlass.chain c on c.id = k.chain
  join windlass.job l on l.id = c.latest
  where n.id not in (select unnest(mine)) and c.id is distinct from n.replaces and windlass.holds_key_v1(now, c)
    and coalesce(octet_length(l.output), 0) <= 65536
    -- An item whose id is already stored is reported as a repeat or a refusal.
    and not exists (select from windlass.chain where id = n.id)
    and not exists (select from windlass.job where id = n.id);
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
  return not windlass.in_snapshot_v1() or cardinality(windlass.lock_chains_v1(array(
    select k.chain from windlass.key k where k.type = key_type and k.key = key_text and k.chain is not null
  ), true)) = 0;
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
    from windlass.key k
    where (k.type, k.key) in (
      select n.type, n.key
      from unnest(new_jobs) n
      where n.key is not null and coalesce(windlass.holder_v1(now, n.type, n.key), n.replaces) is not distinct from n.replaces
    )
    order by k.type, k.key
    for no key update;
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
