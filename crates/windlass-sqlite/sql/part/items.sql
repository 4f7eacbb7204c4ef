-- Extracts each item from the array once, and its fields from the item.
item as materialized (
  select key, jsonb(value) as value from json_each(?1)
)
