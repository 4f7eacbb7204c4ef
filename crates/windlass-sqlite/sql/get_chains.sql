-- The chains of these targets, each with its first and its latest job: one row if they are the same.
-- ?1: [[kind, id or null, type or null, key or null], ...]
with
  asked as (
    select
      key as item, value ->> 0 as kind, unhex(value ->> 1) as id, value ->> 2 as type, value ->> 3 as key
    from json_each(?1)
  ),
  found as (
    select asked.item, job.id, 0 as by_key
    from asked join {prefix}job as job on job.id = asked.id
    where asked.kind = 'chain' and job.position = 0
    union all
    select asked.item, job.chain, 0
    from asked join {prefix}job as job on job.id = asked.id
    where asked.kind = 'job'
    union all
    select asked.item, holder.id, 1
    from asked
    join {prefix}job as holder
      on holder.type = asked.type and holder.key = asked.key and holder.key_held = 1
    where asked.kind = 'key'
  )
select
  found.item, found.by_key,
  {chain},
  {record}
from found
join {prefix}job as first on first.id = found.id
join {prefix}job as job on job.id in (first.id, first.latest)
order by found.item, job.position
