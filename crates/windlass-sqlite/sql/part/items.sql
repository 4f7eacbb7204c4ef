-- Each item is taken out of the array once, and its fields out of the item.
item as materialized (
  select key, jsonb(value) as value from json_each(?1)
)
