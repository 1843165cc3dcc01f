// A change of the policy that a person tries out. It is in the address, so that it can be shared.

/** Values by key; null takes the key out. */
export type Changes = Record<string, string | null>

export type Data = Record<string, string>

const maxDraftBytes = 32_768

/** Reads changes from a parameter of the address; what is none is no change. */
export function parseDraft(text: string): Changes {
  if (text === '' || text.length > maxDraftBytes) return {}
  let parsed: unknown
  try {
    parsed = JSON.parse(text)
  } catch {
    return {}
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return {}
  const changes: Changes = {}
  for (const [key, value] of Object.entries(parsed)) {
    if (typeof value === 'string' || value === null) setOwn(changes, key, value)
  }
  return changes
}

// A key may be named as what every object has.
function setOwn<V>(object: Record<string, V>, key: string, value: V): void {
  Object.defineProperty(object, key, { value, enumerable: true, configurable: true, writable: true })
}

export function formatDraft(changes: Changes): string | undefined {
  const keys = Object.keys(changes).sort()
  return keys.length === 0 ? undefined : JSON.stringify(Object.fromEntries(keys.map((k) => [k, changes[k]])))
}

/** Returns the changes that change something: others are as it is written. */
export function effective(base: Data, changes: Changes): Changes {
  const left: Changes = {}
  for (const [key, value] of Object.entries(changes)) {
    const before = Object.hasOwn(base, key) ? base[key]! : null
    if (value !== before) setOwn(left, key, value)
  }
  return left
}

export function apply(base: Data, changes: Changes): Data {
  const data: Data = { ...base }
  for (const [key, value] of Object.entries(changes)) {
    if (value === null) delete data[key]
    else setOwn(data, key, value)
  }
  return data
}

/** Returns changes with another value of a key. An empty value takes the key out. */
export function withValue(base: Data, changes: Changes, key: string, value: string): Changes {
  return effective(base, { ...changes, [key]: value === '' ? null : value })
}
