-- When the earliest pending job is due and when the earliest lease expires. The index of pending jobs has types and
-- priorities before due times, so one step per type and priority in use finds the earliest of each.
-- ?1: [type, ...] or null for all
with recursive
  every_type (type) as (
    select min(type) from {prefix}job where status = 'pending' and ?1 is null
    union all
    select (select min(type) from {prefix}job where status = 'pending' and type > every_type.type)
    from every_type
    where every_type.type is not null
  ),
  wanted as (
    select type
    from (
      select value as type from json_each(?1)
      union
      select type from every_type where type is not null
    )
    where type not in (select type from {prefix}paused)
  ),
  level (type, priority) as (
    select
      wanted.type,
      (
        select priority from {prefix}job
        where status = 'pending' and type = wanted.type
        order by priority desc limit 1
      )
    from wanted
    union all
    select
      level.type,
      (
        select priority from {prefix}job
        where status = 'pending' and type = level.type and priority < level.priority
        order by priority desc limit 1
      )
    from level
    where level.priority is not null
  )
select
  (
    select min((
      select due_at from {prefix}job
      where status = 'pending' and type = level.type and priority = level.priority
      order by due_at limit 1
    ))
    from level
  ) as due_at,
  (
    select lease_until from {prefix}job
    where status = 'running' and (?1 is null or type in (select value from json_each(?1)))
    order by lease_until limit 1
  ) as lease_until
