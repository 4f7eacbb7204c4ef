with walked as materialized (
  (
    select b.job, b.seq
    from windlass.blocker b
    where b.chain = $4 and $1::boolean and b.seq < coalesce($2::bigint, 9223372036854775807)
    group by b.seq, b.job
    order by b.seq desc
    limit $3::bigint + 1
  )
  union all
  (
    select b.job, b.seq
    from windlass.blocker b
    where b.chain = $4 and not $1::boolean and b.seq > coalesce($2::bigint, 0)
    group by b.seq, b.job
    order by b.seq
    limit $3::bigint + 1
  )
), numbered as materialized (
  select w.job, w.seq, row_number() over (order by case when $1::boolean then -w.seq else w.seq end) as n from walked w
)
select 'job', n.n::integer, null::uuid[], null::text[], null::bigint[], null::bytea[], j.*
from numbered n
join windlass.job_reply_v1 j on j.id = n.job
where n.n <= $3::bigint
union all
select 'next', null::integer, null::uuid[], null::text[], array[n.seq], null::bytea[], (null::windlass.job_reply_v1).*
from numbered n
where n.n = $3::bigint and exists (select from numbered m where m.n > n.n)
order by 2
