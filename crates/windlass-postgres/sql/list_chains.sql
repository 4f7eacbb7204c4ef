-- Rows after the cursor in the requested order, up to the scan limit of one page.
with walked as materialized (
  (
    select c.id, c.seq as place, c.type, c.latest, c.created_at, c.closed_at, c.key
    from windlass.chain c
    where $1::boolean and c.seq < coalesce($2::bigint, 9223372036854775807)
    order by c.seq desc
    limit $12::bigint
  )
  union all
  (
    select c.id, c.seq, c.type, c.latest, c.created_at, c.closed_at, c.key
    from windlass.chain c
    where not $1::boolean and c.seq > coalesce($2::bigint, 0)
    order by c.seq
    limit $12::bigint
  )
), judged as (
  select
    w.id, w.latest, w.place, row_number() over (order by case when $1::boolean then -w.place else w.place end) as n,
    (pg_catalog.cardinality($4::text[]) = 0 or w.type = any ($4::text[]))
      and (
        -- With `exists`, PostgreSQL would build a list of all jobs with the status.
        pg_catalog.cardinality($5::text[]) = 0
        or (select l.status from windlass.job l where l.id = w.latest) = any ($5::text[])
      )
      and (not $6::boolean or (select b.chain from windlass.blocker b where b.chain = w.id limit 1) is null)
      and w.created_at >= coalesce($7::bigint, 0)
      and w.created_at <= coalesce($8::bigint, 9223372036854775807)
      and ($9::bigint is null or w.closed_at >= $9::bigint)
      and ($10::bigint is null or w.closed_at <= $10::bigint)
      and ($11::text is null or w.key = $11::text) as passes
  from walked w
), counted as materialized (
  select j.id, j.latest, j.place, j.n, j.passes, count(*) filter (where j.passes) over (order by j.n) as passed
  from judged j
), ended as (
  select coalesce(min(c.n) filter (where c.passed = $3::bigint), least(max(c.n), 10000)) as n from counted c
), page as materialized (
  select c.id, c.latest, c.n::integer from counted c where c.passes and c.n <= (select e.n from ended e)
)
select 'chain', p.n, c.ids, c.words, c.numbers, null::bytea[], (null::windlass.job_reply_v1).*
from page p
join windlass.chain_reply_v1 c on c.id = p.id
union all
select 'job', p.n, null::uuid[], null::text[], null::bigint[], null::bytea[], j.*
from page p
cross join lateral pg_catalog.unnest(array[p.id] || nullif(p.latest, p.id)) w (id)
join windlass.job_reply_v1 j on j.id = w.id and w.id is not null
union all
select 'next', null::integer, null::uuid[], null::text[], array[c.place], null::bytea[], (null::windlass.job_reply_v1).*
from counted c
where c.n = (select e.n from ended e) and exists (select from counted m where m.n > c.n)
order by 2
