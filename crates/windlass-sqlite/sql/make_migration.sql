-- The steps that were applied.
create table if not exists {prefix}migration (
  step integer primary key,
  name text not null,
  applied_at integer not null
) strict
