page as (
  select
    iif(
      (select count(*) from passed) = ?4,
      (select iif(?1, min(place), max(place)) from passed),
      (select iif(?1, min(place), max(place)) from looked_at)
    ) as last
)
