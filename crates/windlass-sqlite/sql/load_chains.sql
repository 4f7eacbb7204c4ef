-- The chains that these ids belong to and that these keys point at, each with its latest job. The output is loaded
-- only for keys, because no other caller needs it.
-- ?1: [id, ...] of chains or jobs; ?2: [[type, key], ...]
with
  asked as (
    select unhex(value) as id from json_each(?1)
  ),
  pointed_at as (
    select value ->> 0 as type, value ->> 1 as key from json_each(?2)
  ),
  found as (
    select job.id as asked, job.chain
    from asked
    join {prefix}job as job on job.id = asked.id
    union all
    select null, holder.id
    from pointed_at
    join {prefix}job as holder
      on holder.type = pointed_at.type and holder.key = pointed_at.key and holder.key_held = 1
  )
select
  found.asked,
  {chain},
  {concern},
  {job},
  case when found.asked is null then job.output_codec end as output_codec,
  case when found.asked is null then job.output end as output
from found
join {prefix}job as first on first.id = found.chain
join {prefix}job as job on job.id = first.latest
