-- Registers a worker or renews its registration. Removes a few expired registrations.
create function windlass.beat_v1(
  given bigint, who uuid, its_name text, its_types text[], slots bigint, busy bigint, ttl bigint
) returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '1s' set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
begin
  delete from windlass.worker where id in (
    select id from windlass.worker where expires_at <= now order by expires_at, id limit 10 for update skip locked
  );
  insert into windlass.worker (id, name, types, concurrency, running, started_at, seen_at, expires_at)
  values (who, its_name, its_types, slots, busy, now, now, windlass.later_v1(now, ttl))
  on conflict (id) do update
  set name = excluded.name, types = excluded.types, concurrency = excluded.concurrency, running = excluded.running,
    seen_at = excluded.seen_at, expires_at = excluded.expires_at;
  return query select 'now', null::integer, null::uuid[], null::text[], array[now], null::bytea[];
end
$$;

-- Removes a worker from the list.
create function windlass.retire_v1(given bigint, who uuid) returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '1s' set search_path = pg_catalog, pg_temp
as $$
declare
  until bigint;
begin
  delete from windlass.worker where id = who returning expires_at into until;
  return query
  select
    'retired', null::integer, null::uuid[], null::text[],
    array[coalesce(until > windlass.time_v1(given), false)::int::bigint], null::bytea[];
end
$$;

-- Acquires, renews or releases a lock.
create function windlass.leader_lock_v1(given bigint, of_name text, own uuid, ttl bigint)
returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '1s' set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  held windlass.leader;
begin
  delete from windlass.leader where name in (
    select name from windlass.leader where until <= now order by until, name limit 10 for update skip locked
  );
  if ttl is null then
    delete from windlass.leader where name = of_name and (token = own or until <= now);
  else
    insert into windlass.leader as l (name, token, until) values (of_name, own, windlass.later_v1(now, ttl))
    on conflict (name) do update set token = excluded.token, until = excluded.until
    where l.token = own or l.until <= now;
  end if;
  select * into held from windlass.leader where name = of_name;
  return query
  select
    'leader', null::integer, null::uuid[],
    array[case when held.name is null then 'free' when held.token = own then 'held' else 'held_by_another' end],
    array[held.until], null::bytea[];
end
$$;
