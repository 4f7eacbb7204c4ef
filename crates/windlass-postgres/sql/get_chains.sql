with found as materialized (
  select f.item, c.id, c.latest, c.ids, c.words, c.numbers
  from windlass.find_v1(windlass.time_v1($1), $2, $3, $4, $5) f
  join windlass.chain_reply_v1 c on c.id = f.chain
)
select 'chain', f.item, f.ids, f.words, f.numbers, null::bytea[]
from found f
union all
select 'job', f.item, j.ids, j.words, j.numbers, j.bytes
from found f
join windlass.job_reply_v1 j on j.id in (f.id, f.latest)
