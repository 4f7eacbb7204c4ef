-- Rows after the cursor in the requested order, up to the scan limit of one page. Jobs of one chain are ordered by
-- index.
with walked as materialized (
  (
    select j.id, j.seq as place
    from windlass.job j
    where $7::uuid is null and $1::boolean and j.seq < coalesce($2::bigint, 9223372036854775807)
    order by j.seq desc
    limit $12::bigint
  )
  union all
  (
    select j.id, j.seq
    from windlass.job j
    where $7::uuid is null and not $1::boolean and j.seq > coalesce($2::bigint, 0)
    order by j.seq
    limit $12::bigint
  )
  union all
  (
    select j.id, 1
    from windlass.job j
    where j.id = $7::uuid and j.position = 0
      and case when $1::boolean then coalesce($2::bigint, 2) > 1 else coalesce($2::bigint, 0) < 1 end
  )
  union all
  (
    select j.id, j.position + 1
    from windlass.job j
    where j.chain = $7::uuid and j.position > 0 and $1::boolean and j.position < coalesce($2::bigint, 2147483648) - 1
    order by j.position desc
    limit $12::bigint
  )
  union all
  (
    select j.id, j.position + 1
    from windlass.job j
    where j.chain = $7::uuid and j.position > 0 and not $1::boolean and j.position >= coalesce($2::bigint, 0)
    order by j.position
    limit $12::bigint
  )
), behind as materialized (
  select w.id, w.place, row_number() over (order by case when $1::boolean then -w.place else w.place end) as n
  from walked w
  order by n
  limit $12::bigint
), judged as (
  select
    b.id, b.place, b.n,
    (pg_catalog.cardinality($4::text[]) = 0 or j.type = any ($4::text[]))
      and (pg_catalog.cardinality($5::text[]) = 0 or j.status = any ($5::text[]))
      and (pg_catalog.cardinality($6::text[]) = 0 or j.chain_type = any ($6::text[]))
      and j.created_at >= coalesce($8::bigint, 0)
      and j.created_at <= coalesce($9::bigint, 9223372036854775807)
      and ($10::bigint is null or j.closed_at >= $10::bigint)
      and ($11::bigint is null or j.closed_at <= $11::bigint) as passes
  from behind b
  -- One index lookup per row, whatever the statistics are.
  cross join lateral (
    select j.type, j.status, j.chain_type, j.created_at, j.closed_at from windlass.job j where j.id = b.id offset 0
  ) j
), counted as materialized (
  select j.id, j.place, j.n, j.passes, count(*) filter (where j.passes) over (order by j.n) as passed from judged j
), ended as (
  select coalesce(min(c.n) filter (where c.passed = $3::bigint), least(max(c.n), 10000)) as n from counted c
)
select 'job', c.n::integer, null::uuid[], null::text[], null::bigint[], null::bytea[], j.*
from counted c
join windlass.job_reply_v1 j on j.id = c.id
where c.passes and c.n <= (select e.n from ended e)
union all
select 'next', null::integer, null::uuid[], null::text[], array[c.place], null::bytea[], (null::windlass.job_reply_v1).*
from counted c
where c.n = (select e.n from ended e) and exists (select from counted m where m.n > c.n)
order by 2
