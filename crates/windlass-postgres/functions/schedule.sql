-- Writes a schedule that is not stored. Returns false if its name or its id is stored, and null if an open transaction
-- may be storing them.
create function windlass.insert_schedule_v1(new windlass.schedule) returns boolean language plpgsql as $$
begin
  insert into windlass.schedule values (new.*) on conflict do nothing;
  return found;
exception when lock_not_available or deadlock_detected then
  return null;
end
$$;

-- Decides whether a change applies to the stored schedule, and locks its row. Returns `apply`, or why it does not apply.
create function windlass.match_schedule_v1(
  now bigint, of_name text, of_id uuid, expected uuid, own uuid, not_before bigint, not_after bigint, is_delete boolean,
  new_handled bigint
) returns text language plpgsql as $$
declare
  stored windlass.schedule;
begin
  select * into stored from windlass.schedule where name = of_name for update skip locked;
  if not found then
    select * into stored from windlass.schedule where name = of_name;
    if found then
      return case when stored.revision = own then 'repeated' else 'busy' end;
    elsif is_delete then
      return 'repeated';
    elsif expected is not null then
      return 'conflict';
    elsif exists (select from windlass.schedule where id = of_id) then
      return 'conflict';
    end if;
  elsif stored.revision = own then
    return 'repeated';
  elsif expected is null or stored.id <> of_id or stored.revision <> expected then
    return 'conflict';
  end if;
  if now < not_before then
    return 'not_due';
  end if;
  if now > not_after then
    return 'too_late';
  end if;
  if not is_delete and stored.handled is not null and (new_handled is null or new_handled < stored.handled) then
    return 'conflict';
  end if;
  return 'apply';
end
$$;

-- Creates, changes, fires or deletes schedules. `chains` has the number of each change's chain among `new_jobs`, 0 for a
-- chain that the client refused, and null for none.
create function windlass.change_schedules_v1(
  given bigint, names text[], schedules uuid[], expected uuid[], revisions uuid[], not_before bigint[], not_after bigint[],
  deletes bigint[], due_times bigint[], handled_times bigint[], definitions text[], states text[], other_states text[], chains bigint[],
  new_jobs windlass.new_v1[]
) returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '1s' set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  busy_keys integer[];
  created windlass.reply_v1;
  result text;
  is_created boolean;
begin
  return query select 'now', null::integer, null::uuid[], null::text[], array[now], null::bytea[];
  -- An open transaction delays no item for longer.
  perform set_config('lock_timeout', '20ms', true);
  busy_keys := windlass.lock_keys_v1(now, new_jobs);
  for n in 1 .. coalesce(cardinality(names), 0) loop
    created := null;
    is_created := true;
    result := windlass.match_schedule_v1(
      now, names[n], schedules[n], expected[n], revisions[n], not_before[n], not_after[n], deletes[n] = 1,
      handled_times[n]
    );
    if result = 'apply' and deletes[n] = 1 then
      delete from windlass.schedule where name = names[n];
    elsif result = 'apply' then
      if expected[n] is null then
        -- Stored before its chain: if another transaction stores the same name, no chain must be created.
        result := case windlass.insert_schedule_v1((
          names[n], schedules[n], revisions[n], due_times[n], handled_times[n], coalesce(definitions[n], ''), states[n]
        )::windlass.schedule) when true then 'apply' when false then 'conflict' else 'busy' end;
      end if;
      if result = 'apply' and chains[n] = 0 then
        is_created := false;
      elsif result = 'apply' and chains[n] > 0 then
        if chains[n] = any (busy_keys) then
          created.words := array['busy'];
        else
          created := windlass.create_chain_v1(now, new_jobs[chains[n]], '{}', '{}');
        end if;
        if created.words[1] = 'busy' then
          result := 'busy';
          if expected[n] is null then
            delete from windlass.schedule where name = names[n];
          end if;
        else
          is_created := created.words[1] = 'new';
          return next created;
        end if;
      end if;
      if result = 'apply' then
        update windlass.schedule s
        set id = schedules[n], revision = revisions[n], due_at = due_times[n],
          handled = handled_times[n], definition = coalesce(definitions[n], s.definition),
          state = case when is_created then states[n] else other_states[n] end
        where s.name = names[n];
      end if;
    end if;
    return query select 'changed', n, null::uuid[], array[result], null::bigint[], null::bytea[];
  end loop;
  perform windlass.free_keys_v1(new_jobs);
end
$$;
